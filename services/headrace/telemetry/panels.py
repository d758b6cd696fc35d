"""What the Grafana dashboard shows: panels as data. `dashboards.py` makes Grafana's JSON of them.

The first row answers whether anyone starves, why, and what to do; the others are closed until somebody asks further. Each
panel has a unit and says what it means when its figures are high. Every replica of the coordinator exports the same jobs and
ranks: those are maxima over replicas. What a process counts of its own doing is summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.verdict import ACTION, INPUT_BOUND_AT

Kind = Literal["lines", "stack", "number", "name", "bars"]

FLEET = 'namespace=~"$namespace"'
JOB = f'{FLEET}, job=~"$job"'
RANK = f'{JOB}, rank=~"$rank"'
RATE = "[$__rate_interval]"
BY_RANK = "namespace, job, rank"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and what its series are called, with labels as {{label}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """kind: lines or stack over time; bars, number or name as of now. unit: Grafana's. width: of 24 columns.

    description ends with what high means. warn, alarm: from where its figure is yellow and red. names: a series' name -> what
    is shown instead. nothing: what is shown where no series is.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    width: int = 12
    height: int = 8
    least: float | None = 0
    most: float | None = None
    warn: float | None = None
    alarm: float | None = None
    names: tuple[tuple[str, str], ...] = ()
    nothing: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of panels; all but the first are closed."""

    title: str
    panels: tuple[Panel, ...]
    closed: bool = True


def own(function: str, metric: str, by: str, where: str = JOB) -> str:
    """Sum over processes of what each counts of its own doing."""
    return f"sum by ({by}) ({function}({metric}{{{where}}}{RATE}))"


def seen(metric: str, by: str, where: str = JOB) -> str:
    """What all replicas see."""
    return f"max by ({by}) ({metric}{{{where}}})"


def quantile(share: float, metric: str, by: str, where: str) -> str:
    """What so large a share of a histogram's observations stays below."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{where}}}{RATE})))"


# Seconds waited a second, and the share of a rank's time that makes: none for a rank that has gone.
WAITS = f"max by ({BY_RANK}, cause) (rate(headrace_rank_wait_seconds_total{{{RANK}}}{RATE}))"
ELAPSED = f"max by ({BY_RANK}) (rate(headrace_rank_elapsed_seconds_total{{{RANK}}}{RATE}))"
RATIO = f"clamp_max(sum by ({BY_RANK}) ({WAITS}) / ({ELAPSED} > 0), 1)"
_WORST = f"{WAITS} and on ({BY_RANK}) topk(1, {RATIO})"
# By how many replicas each is said: for a moment they may differ, and a training has one.
_VERDICTS = f"sum by (namespace, job, verdict) (headrace_job_verdict{{{JOB}}})"

OVERVIEW = Row(
    "Is anyone starving, why, and what to do",
    (
        Panel(
            "Who waits most",
            "The rank that is blocked in next() for the largest share of its time. In all_reduce the others "
            "wait for it inside their "
            f"step and look busy. High: this share of a GPU is lost; from {INPUT_BOUND_AT:.0%} on it is worth a look.",
            "percentunit",
            (Query(f"topk(1, {RATIO})", "{{job}}, rank {{rank}}"),),
            "number",
            width=6,
            height=7,
            most=1,
            warn=INPUT_BOUND_AT / 2,
            alarm=INPUT_BOUND_AT,
            nothing="no rank trains",
        ),
        Panel(
            "Why it waits",
            "The waits of that rank by cause, as shares of its time. They add up to all that it waits. High: "
            "this cause is what to remove.",
            "percentunit",
            (Query(_WORST, "{{cause}}"),),
            "bars",
            width=9,
            height=7,
            most=1,
            warn=INPUT_BOUND_AT / 2,
            alarm=INPUT_BOUND_AT,
            nothing="no rank trains",
        ),
        Panel(
            "What to do first",
            f"What removes the largest of these causes, if the rank waits more than {INPUT_BOUND_AT:.0%} of its time. "
            "High does not apply: this is a sentence.",
            "short",
            (Query(f"topk(1, {WAITS} and on ({BY_RANK}) (topk(1, {RATIO}) > {INPUT_BOUND_AT}))", "{{cause}}"),),
            "name",
            width=9,
            height=7,
            names=tuple(ACTION.items()),
            nothing="nothing: no rank waits long",
        ),
        Panel(
            "Share of time that ranks wait",
            "The ten ranks that wait most. High, all lines: the fleet is too slow for the training. High, one "
            "line: that rank's node or "
            "transport is at fault, and it holds up all others.",
            "percentunit",
            (Query(f"topk(10, {RATIO})", "{{job}}, rank {{rank}}"),),
            most=1,
        ),
        Panel(
            "What ranks wait for",
            "Share of the time of all chosen ranks, by cause. High: that stage limits the training; "
            "docs/metrics.md lists what each cause is.",
            "percentunit",
            (Query(f"sum by (cause) ({WAITS}) / on () group_left () (sum({ELAPSED}) > 0)", "{{cause}}"),),
            "stack",
        ),
        Panel(
            "Verdict",
            "What each training is limited by, from its worst rank's recent time, as most replicas say. High does not apply; "
            "input-bound is the one to act on.",
            "short",
            (Query(f"topk by (namespace, job) (1, {_VERDICTS}) > 0", "{{job}}: {{verdict}}"),),
            "name",
            width=6,
            height=5,
            nothing="no training is open",
        ),
        Panel(
            "Workers: live and wanted",
            "Workers whose heartbeats are in time, and how many would feed all trainings. High `wanted` above "
            "`live`: the fleet should grow.",
            "short",
            (
                Query(f"max(headrace_workers_live{{{FLEET}}})", "live"),
                Query(f"sum(max by (namespace, pool, engine) (headrace_desired_workers{{{FLEET}}}))", "wanted"),
            ),
            "number",
            width=6,
            height=5,
        ),
        Panel(
            "Lanes without a worker",
            "Lanes of trainings that run which no live worker holds. High, or anything but 0 for minutes: ranks stand still.",
            "short",
            (
                Query(
                    f"sum({seen('headrace_lanes_unowned', 'namespace, job')} and on (namespace, job) "
                    f"({seen('headrace_job_ranks_live', 'namespace, job')} > 0))",
                    "lanes",
                ),
            ),
            "number",
            width=6,
            height=5,
            warn=1,
            alarm=1,
            nothing="no rank trains",
        ),
        Panel(
            "Alerts",
            "Headrace's alerts that fire now; docs/runbooks has a page for each. High: many things are wrong, "
            "mostly for one cause.",
            "short",
            (
                Query(
                    f'count by (alertname) (ALERTS{{alertname=~"Headrace.+", alertstate="firing", {FLEET}}})', "{{alertname}}"
                ),
            ),
            "name",
            width=6,
            height=5,
            nothing="none",
        ),
    ),
    closed=False,
)
