"""Alerts: silent before, firing after, each with a page, and nothing in them that Headrace does not export."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.telemetry.metrics import MOST_SERIES
from tests.chart.promql import CHART, ROOT, RULES, program, queries, rules, strangers

ALERTS = [rule for rule in rules() if "alert" in rule]
CASES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
SEVERITIES = {"warning", "critical"}

every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])


def test_promtool_finds_the_rules_sound() -> None:
    subprocess.run([program("promtool"), "check", "rules", *map(str, RULES)], check=True, timeout=60)


def run_cases(cases: list[Path]) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), "test", "rules", *map(str, cases)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def copied(directory: Path, text: str) -> list[Path]:
    """The cases beside these rules: promtool looks for rules beside the cases."""
    (directory / "headrace.yaml").write_text(text)
    return [Path((directory / case.name).write_text(case.read_text()) and directory / case.name) for case in CASES]


def test_alerts_are_silent_before_and_fire_after(tmp_path: Path) -> None:
    (rules_file,) = RULES
    result = run_cases(copied(tmp_path, rules_file.read_text()))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("> 0.1\n", "> 0.3\n"),
        ("for: 10m", "for: 1m"),
        ("on (namespace, job)", "on (namespace)"),
        ("> 0.01\n", "> 0.0001\n"),
        ("> 0.15\n", "> 0.08\n"),
        ("ratio5m) > 2\n", "ratio5m) > 1\n"),
        ("28 * 86400", "40 * 86400"),
        ("28 * 86400) / 4\n", "28 * 86400) / 2\n"),
    ],
)
def test_the_cases_fail_where_a_rule_is_wrong(tmp_path: Path, sound: str, broken: str) -> None:
    text = RULES[0].read_text()
    assert sound in text
    assert run_cases(copied(tmp_path, text.replace(sound, broken))).returncode != 0


def test_too_many_series_are_told(tmp_path: Path) -> None:
    """With a smaller bound: 50,000 series would take promtool a minute."""
    assert f"> {MOST_SERIES}\n" in RULES[0].read_text()  # the status page has the same bound
    (tmp_path / "headrace.yaml").write_text(RULES[0].read_text().replace(f"> {MOST_SERIES}", "> 50"))
    few = [{"series": f'headrace_lanes{{instance="few",job="j{i}"}}', "values": "1x30"} for i in range(50)]
    many = [{"series": f'headrace_lanes{{instance="many",job="j{i}"}}', "values": "1x30"} for i in range(51)]
    told = {
        "exp_labels": {"severity": "warning", "instance": "many"},
        "exp_annotations": {
            "summary": "many exports 51 series.",
            "description": "Some label has more values than were meant; mostly many jobs, each under a new name.",
            "runbook_url": "docs/runbooks/HeadraceTooManySeries.md",
        },
    }
    name = "HeadraceTooManySeries"
    case = {
        "rule_files": ["headrace.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": few + many,
                "alert_rule_test": [
                    {"alertname": name, "eval_time": "14m"},
                    {"alertname": name, "eval_time": "20m", "exp_alerts": [told]},
                ],
            }
        ],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    result = run_cases([tmp_path / "case.yaml"])
    assert result.returncode == 0, result.stdout + result.stderr


@every_alert
def test_each_alert_is_tried_silent_and_firing(alert: dict[str, Any]) -> None:
    if alert["alert"] == "HeadraceTooManySeries":
        return  # above
    tries = [
        case
        for path in CASES
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert["alert"]
    ]
    assert {bool(case.get("exp_alerts")) for case in tries} == {True, False}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_name_only_what_is_exported(rule: dict[str, Any]) -> None:
    asked = [expr for text in rule.get("annotations", {}).values() for expr in queries(text)]
    for expr in [rule["expr"], *asked]:
        assert not strangers(expr), expr


@every_alert
def test_each_alert_says_what_is_wrong_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in SEVERITIES
    assert re.fullmatch(r"[1-9][0-9]*m", alert["for"])
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["summary"].endswith(".")
    page = ROOT / notes["runbook_url"]
    assert page == ROOT / f"docs/runbooks/{alert['alert']}.md"
    text = page.read_text()
    assert text.startswith(f"# {alert['alert']}\n")
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["What it means", "How to see it", "First two actions"]
    actions = re.findall(r"^[0-9]+\. .+", text.partition("## First two actions")[2], re.MULTILINE)
    assert len(actions) == 2
    assert not strangers("\n".join(re.findall(r"```promql\n(.*?)```", text, re.DOTALL)))


def test_no_page_is_left_without_an_alert() -> None:
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("Headrace*.md")}
    assert pages == {alert["alert"] for alert in ALERTS}


def test_scrapes_keep_the_label_job() -> None:
    """Prometheus would rename it to exported_job, and no rule would find it."""
    monitors = (CHART / "templates/monitoring/monitors.yaml").read_text()
    assert monitors.count("honorLabels: true") == monitors.count("path: /metrics") == 2


@pytest.mark.parametrize(
    "expr",
    [
        "headrace_made_up_total",
        "sum by (rnak) (headrace_rank_wait_seconds_total)",
        'headrace_lanes{jab="a"}',
        "headrace_workers_live_sum",
        "sum by (cause) (headrace_lanes)",
    ],
)
def test_the_check_finds_names_that_do_not_exist(expr: str) -> None:
    assert strangers(expr)


def test_the_check_lets_sound_names_pass() -> None:
    assert not strangers('histogram_quantile(0.9, sum by (le) (rate(headrace_store_request_seconds_bucket{pod="a"}[5m])))')
    assert not strangers('sum by (cause) (namespace_job_rank_cause:headrace_rank_wait_seconds:rate5m{job="a"})')


def test_the_overview_lists_every_alert() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (ROOT / "docs/monitoring.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(alert["alert"] for alert in ALERTS)
