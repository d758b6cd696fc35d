"""Rules that every name in the metric catalogue keeps."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry import metrics
from headrace.telemetry.metrics import CATALOGUE, LABELS, UNITS, Metric

ALL = pytest.mark.parametrize("metric", CATALOGUE.values(), ids=list(CATALOGUE))


@ALL
def test_naming_rules(metric: Metric) -> None:
    assert re.fullmatch(r"headrace(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|kilobytes|mb|percent)(_|$)", metric.name), "base units only"
    stem = metric.name.removesuffix("_total")
    assert metric.unit in ("", *UNITS)
    assert [unit for unit in UNITS if stem.endswith(f"_{unit}")] == ([metric.unit] if metric.unit else [])


@ALL
def test_labels_are_bounded_and_help_is_a_sentence(metric: Metric) -> None:
    assert set(metric.labels) <= LABELS
    assert len(set(metric.labels)) == len(metric.labels)
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")
    assert (metric.type == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))


@ALL
def test_what_is_exported_is_what_the_catalogue_says(metric: Metric) -> None:
    registry = CollectorRegistry()
    made = {"counter": metrics.counter, "gauge": metrics.gauge, "histogram": metrics.histogram}[metric.type](
        metric.name, registry
    )
    child = made.labels(*["x"] * len(metric.labels)) if metric.labels else made
    if metric.type == "histogram":
        child.observe(0.01)
    else:
        child.inc()
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.type == metric.type
    assert family.documentation == metric.help
    names = {sample.name for sample in family.samples if not sample.name.endswith("_created")}
    if metric.type == "histogram":
        assert names == {f"{metric.name}_bucket", f"{metric.name}_sum", f"{metric.name}_count"}
    else:
        assert names == {metric.name}


def test_families_carry_totals_from_elsewhere() -> None:
    family = metrics.counter_family("headrace_rank_wait_seconds_total")
    family.add_metric(["j", "0", "read"], 1.5)
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == (
        "headrace_rank_wait_seconds_total",
        {"job": "j", "rank": "0", "cause": "read"},
        1.5,
    )
    assert metrics.gauge_family("headrace_workers_live").name == "headrace_workers_live"


def test_names_outside_the_catalogue_and_wrong_types_are_refused() -> None:
    with pytest.raises(KeyError):
        metrics.counter("headrace_made_up_total", CollectorRegistry())
    with pytest.raises(TypeError, match="is a gauge, not a counter"):
        metrics.counter("headrace_workers_live", CollectorRegistry())


def test_the_catalogue_is_read_without_prometheus_client() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import headrace.telemetry.metrics"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
