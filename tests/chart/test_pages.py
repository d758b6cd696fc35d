"""What the pages for operators name is there: fields of the API, events of the log, causes, values of the chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from headrace.coordinator import admin_views, recent_events, replica_view
from headrace.coordinator.settings import CoordinatorSettings
from headrace.core import errors
from headrace.core.batch import BAD_REASONS
from headrace.core.starvation import CAUSES
from headrace.telemetry.metrics import CATALOGUE
from headrace.worker.settings import WorkerSettings
from tests.chart.helm import CHART, HELMS, NAMESPACE, RELEASE, ROOT, attempt, parsed, pods, rendered

SOURCE = ROOT / "services/headrace"
PAGES = [*sorted((ROOT / "docs/runbooks").glob("*.md")), ROOT / "docs/monitoring.md", ROOT / "docs/status.md"]
# Of Prometheus' rules, and a module's name.
OTHERS = {"runbook_url"}


def quoted(page: Path) -> set[str]:
    """What stands between backticks, without blocks of code."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)))


def known() -> set[str]:
    """All names in snake case that an operator meets: in the API, in logs, in metrics, in settings."""
    models = [kind for module in (admin_views, replica_view) for kind in vars(module).values() if isinstance(kind, type)]
    fields = {name for kind in models if issubclass(kind, BaseModel) for name in kind.model_fields}
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HeadraceError)}
    logged = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"\blog\.(?:debug|info|warning|error|exception)\(\s*\"(\w+)\"", path.read_text())
    }
    settings = {name for kind in (CoordinatorSettings, WorkerSettings) for name in kind.model_fields}
    reasons = {*BAD_REASONS, *CAUSES, *recent_events._NOTES, "admin_unauthenticated"}
    return fields | codes | logged | settings | reasons | set(CATALOGUE) | OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_names_on_the_pages_exist(page: Path) -> None:
    named = {word for word in quoted(page) if re.fullmatch(r"[a-z]+(?:_[a-z]+)+", word)}
    assert named <= known()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/kubernetes.md"], ids=lambda path: path.stem)
def test_paths_of_the_api_on_the_pages_exist(page: Path) -> None:
    routes = set(re.findall(r'@app\.get\("([^"]+)"', (SOURCE / "coordinator/admin_api.py").read_text()))
    named = {
        re.sub(r"<(\w+)>", r"{\1}", word)
        for word in quoted(page)
        if re.fullmatch(r"/(?:api|readyz|healthz|metrics)[\w/<>]*", word)
    }
    assert named <= routes


def leads(values: Any, path: str) -> bool:
    """Whether a dotted path is in the values; a class's keys are those of workerDefaults."""
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def test_values_on_the_pages_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    top, ofclass = set(values), values["workerDefaults"]
    nested = {key for key, value in ofclass.items() if isinstance(value, dict)}
    for page in [*PAGES, ROOT / "docs/kubernetes.md", ROOT / "docs/security.md", ROOT / "README.md"]:
        for word in quoted(page):
            path = word.partition(":")[0].partition("=")[0].removesuffix(".*")
            if not re.fullmatch(r"[a-zA-Z]+(?:\.[a-zA-Z]+)+", path) or path.rpartition(".")[2] in (
                "yaml",
                "crt",
                "key",
                "py",
                "md",
            ):
                continue
            first = path.partition(".")[0]
            if first in top or first in nested:
                assert leads(values, path) or leads(ofclass, path), f"{page.name}: {word}"


def examples() -> list[str]:
    """Blocks of values on the page of the chart."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return [block for block in blocks if set(yaml.safe_load(block)) <= set(values)]


@pytest.mark.parametrize("version", HELMS)
def test_examples_on_the_page_make_the_workers_that_they_show(version: str) -> None:
    """And no others: Helm merges them with the classes of the chart."""
    assert len(examples()) >= 2
    for block in examples():
        result = attempt(block, version)
        assert result.returncode == 0, result.stderr
        classes = {labels.get("headrace.dev/class") for _, labels, _ in pods(parsed(result.stdout))} - {None}
        shown = yaml.safe_load(block)["workers"]
        assert classes == {name for name, given in shown.items() if given.get("enabled", True)}


@pytest.mark.parametrize("path", [CHART / "values.yaml", ROOT / "docs/kubernetes.md"], ids=lambda path: path.name)
def test_names_that_are_called_are_those_that_a_certificate_is_asked_for(path: Path) -> None:
    """Whoever makes certificates by hand reads them here: of workers' and trainers' calls, of Prometheus and of `helm test`."""
    host = re.compile(rf"{RELEASE}-headrace-(\w+)\.{NAMESPACE}\.svc")
    others = [item for item in rendered("default") + rendered("sidecar") if item["kind"] not in ("Certificate", "ConfigMap")]
    called = set(host.findall(yaml.safe_dump_all(others))) - {"store", "worker"}  # no TLS, and a name of the values'
    assert called == {"coordinator", "status"}
    text = path.read_text()
    assert set(re.findall(r"<(?:full)?name>-(\w+)\.<namespace>\.svc", text)) - {"worker"} == called


@pytest.mark.parametrize("text", ["`made_up_field`", "see `why_not`"])
def test_a_name_that_is_not_there_would_be_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(AssertionError):
        test_names_on_the_pages_exist(tmp_path / "page.md")
