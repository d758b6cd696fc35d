"""What the tests of rules and dashboards share: the files, names and labels in an expression, and where promtool is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.telemetry.metrics import CATALOGUE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/headrace"
RULES = sorted((CHART / "files/rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "files/dashboards").glob("*.json"))

# Labels that Prometheus itself puts on what it scrapes: `namespace` and `pod` come from the monitors, `le` from histograms.
SCRAPED = {"namespace", "pod", "instance", "le"}


def program(name: str) -> str:
    """The path of a program of Prometheus; skips the test with the reason where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; tools/prometheus.sh installs it where apt may")
    return found


def rules() -> list[dict[str, Any]]:
    """All rules of the chart."""
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """All panels of the chart's dashboards, those in rows too."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += panel.get("panels", []) if panel["type"] == "row" else [panel]
    return found


def queries(template: str) -> list[str]:
    """Expressions that an annotation asks of Prometheus."""
    return re.findall(r'printf "((?:[^"\\]|\\.)+)"(?: \$labels\.\w+)+ \| query', template)


def metrics_in(expr: str) -> set[str]:
    """Names of series in an expression, but for those of recording rules, which have colons."""
    return set(re.findall(r"(?<![\w:])(headrace_\w+)(?![\w:])", expr))


def labels_in(expr: str) -> set[str]:
    """Labels that an expression matches or groups by."""
    found = set()
    for group in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expr):
        found |= {label.strip() for label in group.split(",") if label.strip()}
    for matchers in re.findall(r"\{([^}]*)\}", re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)):
        found |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return found


def strangers(expr: str) -> list[str]:
    """What an expression names that the catalogue does not have: metrics, and labels that none of its metrics has."""
    bare = {metric: re.sub(r"_(bucket|sum|count)$", "", metric) for metric in metrics_in(expr)}
    unknown = [metric for metric, name in bare.items() if name not in CATALOGUE]
    unknown += [m for m, n in bare.items() if n != m and n in CATALOGUE and CATALOGUE[n].type != "histogram"]
    known = SCRAPED | {label for name in bare.values() if name in CATALOGUE for label in CATALOGUE[name].labels}
    if "ALERTS{" in expr:
        known |= {"alertname", "alertstate"}
    if "__name__" in expr:
        known |= {label for metric in CATALOGUE.values() for label in metric.labels}
    for record in re.findall(r"\w+:headrace_\w+:\w+", expr):
        known |= set(record.partition(":")[0].split("_"))
    return unknown + sorted(labels_in(expr) - known - {"__name__"})
