"""Installs the sets of wheels that came whole: `python install.py JOINED.json WHEELS LACKING.json [FOLDER]`; no other library.

Headrace itself is not installed but used from the tree; only its metadata are put beside the packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--no-cache-dir"]


def main(joined: Path, wheels: Path, lacking: Path, site: Path | None = None) -> None:
    """Install what `wheels.py join` told of; what could not be, and why, goes into `lacking`.

    Into this Python's own environment, set by set; or all at once into a folder beside what the machine has.
    """
    told = json.loads(joined.read_text())
    missing: dict[str, str] = {}
    if not told["sets"]:
        missing["base"] = told["lacking"]["base"][0]
    elif site is None:
        for name, wanted in told["sets"].items():
            _pip(["--find-links", str(wheels), *wanted], [name], told, missing)
    else:
        # In one call: a second one would not lay its part of `nvidia` beside the first one's.
        whole = {name: files for name, files in told["whole"].items() if name not in told["lacking"]}
        files = [str(wheels / file) for names in whole.values() for file in names if file.endswith(".whl")]
        _pip(["--no-deps", "--target", str(site), *files], list(whole), told, missing)
        for name, pieces in told["lacking"].items():
            missing[name] = f"set {name} is not installed: {'; '.join(pieces)}"
    lacking.write_text(json.dumps(missing))
    name_headrace(site or Path(sysconfig.get_path("purelib")))


def _pip(words: list[str], sets: list[str], told: dict[str, Any], missing: dict[str, str]) -> None:
    """Also where pieces are missing: what is there already may do instead."""
    done = subprocess.run([*PIP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        for name in sets:
            said = told["lacking"].get(name) or done.stderr.strip().splitlines()[-2:]
            missing[name] = f"set {name} is not installed: {'; '.join(said)}"
            print(missing[name], file=sys.stderr)


def name_headrace(packages: Path) -> None:
    """So that importlib.metadata knows the version of the tree's package."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    folder = packages / f"headrace-{project['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headrace\nVersion: {project['version']}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
