"""This installation: Python, the package, and what its settings in the environment say."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from headrace.cli.checks.finding import Finding
from headrace.core.errors import ConfigInvalid

if TYPE_CHECKING:
    from headrace.worker.settings import WorkerSettings

_SUBJECT = "program"
_LEAST_PYTHON = (3, 11)
# One module of each extra, by which its absence shows.
_EXTRAS = {"worker": "PIL", "coordinator": "fastapi", "datasets": "obstore", "cli": "rich"}


def check() -> list[Finding]:
    """Python, the operating system, the package and its extras."""
    from headrace.worker.placement import is_installed

    version = platform.python_version()
    python = Finding(_SUBJECT, "Python", "ok", f"{version}, {sys.executable}")
    if sys.version_info < _LEAST_PYTHON:
        python = Finding(_SUBJECT, "Python", "bad", version, "Headrace needs Python 3.11 or later: install one")
    system = Finding(_SUBJECT, "system", "ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    if platform.system() != "Linux":
        system = Finding(
            _SUBJECT, "system", "bad", platform.system(), "Headrace runs on Linux: use a Linux machine or container"
        )
    missing = [extra for extra, module in _EXTRAS.items() if not is_installed(module)]
    package = Finding(_SUBJECT, "headrace", "ok", f"{metadata.version('headrace')}, all extras that it looked for")
    if missing:
        found = f"{metadata.version('headrace')}, without the extras {', '.join(missing)}"
        advice = f"whoever needs them here installs headrace[{','.join(missing)}]; a trainer needs none"
        package = Finding(_SUBJECT, "headrace", "note", found, advice)
    return [python, system, package]


def settings() -> tuple[WorkerSettings | None, list[Finding]]:
    """A worker's settings as the environment has them. None where there is no worker, or they cannot be used."""
    try:
        from headrace.telemetry.settings import load
        from headrace.worker.settings import WorkerSettings
    except ImportError as error:
        advice = "to run a worker here: pip install 'headrace[worker]'"
        return None, [Finding(_SUBJECT, "a worker's settings", "bad", f"{error.name} is not installed", advice, of="worker")]
    try:
        found = load(WorkerSettings, [], "headrace worker")
    except ConfigInvalid as error:
        return None, [
            Finding(_SUBJECT, "a worker's settings", "bad", error.message, "correct the variable that is named", of="worker")
        ]
    return found, [Finding(_SUBJECT, "a worker's settings", "ok", "HEADRACE_WORKER_* in the environment, else defaults")]
