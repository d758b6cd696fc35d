"""Dashboards: made by code, up to date, without a fixed data source, each panel with a unit and a word on what high means."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.core.starvation import CAUSES
from headrace.core.verdict import VERDICTS
from headrace.telemetry.metrics import CATALOGUE
from headrace.telemetry.panels import OVERVIEW
from tests.chart.promql import DASHBOARDS, metrics_in, panels, program, strangers

every_panel = pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
every_file = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)


def sources(node: Any) -> Iterator[Any]:
    """All that is called `datasource`, at any depth."""
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "datasource")
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from sources(child)


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_file_is_what_the_code_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="the extra `dashboards` is not installed")
    from headrace.telemetry import dashboards

    (path,) = DASHBOARDS
    assert path.name == dashboards.FILE.name
    assert path.read_text() == dashboards.text(), "run: python -m headrace.telemetry.dashboards"


@every_panel
def test_panels_name_only_what_is_exported(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert not strangers(target["expr"])
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert not shown - {"instance", "alertname"} - {name for metric in CATALOGUE.values() for name in metric.labels}


@every_panel
def test_each_panel_has_a_unit_and_says_what_high_means(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert re.search(r"\bHigh\b", panel["description"])
    assert panel["description"].endswith(".")


@every_panel
def test_no_window_is_fixed_but_where_the_panel_says_so(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        fixed = set(re.findall(r"\[(\w+)\]", target["expr"]))
        assert not fixed or (fixed == {"1h"} and "last hour" in panel["description"])


@every_file
def test_no_data_source_is_fixed(path: Any) -> None:
    found = list(sources(json.loads(path.read_text())))
    assert len(found) > 2 * len(panels())
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in found)


@every_file
def test_variables_are_there_and_used(path: Any) -> None:
    board = json.loads(path.read_text())
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "namespace", "job", "rank"]
    text = json.dumps(board["panels"])
    assert all(f"${name}" in text or f"${{{name}}}" in text for name in names)
    for variable in board["templating"]["list"][1:]:
        assert not strangers(variable["query"].removeprefix("label_values(").rpartition(",")[0])
        assert variable["allValue"] == ".*"


@every_file
def test_the_first_row_is_open_and_the_others_closed_and_nothing_overlaps(path: Any) -> None:
    board = json.loads(path.read_text())
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    assert [row["collapsed"] for row in rows] == [False] + [True] * (len(rows) - 1)
    groups = [[panel for panel in board["panels"] if panel["type"] != "row"], *(row["panels"] for row in rows[1:])]
    for group in groups:
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in group)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for group in groups for panel in group] + [row["id"] for row in rows]
    assert len(ids) == len(set(ids))


def test_a_training_has_one_verdict_while_replicas_differ(tmp_path: Path) -> None:
    """What most of them say; where it is one against one, either."""
    (panel,) = [panel for panel in panels() if panel["title"] == "Verdict"]
    expr = panel["targets"][0]["expr"].replace("$namespace", ".*").replace("$job", ".*")
    said = {"a": ["balanced", "input-bound", "input-bound"], "b": ["unknown"], "c": ["balanced", "input-bound"]}
    series = [
        {"series": f'headrace_job_verdict{{job="{job}",instance="{n}",verdict="{verdict}"}}', "values": f"{verdict == told:d}"}
        for job, replicas in said.items()
        for n, told in enumerate(replicas)
        for verdict in VERDICTS
    ]
    shown = f'label_replace({expr}, "verdict", "", "job", "c")'  # of c it may be either
    wanted = [
        {"labels": '{job="a", verdict="input-bound"}', "value": 2},
        {"labels": '{job="b", verdict="unknown"}', "value": 1},
        {"labels": '{job="c"}', "value": 1},
    ]
    asked = {"expr": shown, "eval_time": "0", "exp_samples": wanted}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"tests": [{"input_series": series, "promql_expr_test": [asked]}]}))
    command = [program("promtool"), "test", "rules", str(tmp_path / "case.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for panel in panels()
        for t in panel["targets"]
        for name in metrics_in(t["expr"])
    }
    assert sorted(set(CATALOGUE) - shown) == []


def test_every_cause_has_an_action() -> None:
    (panel,) = [panel for panel in OVERVIEW.panels if panel.names]
    assert {cause for cause, _ in panel.names} == set(CAUSES)
