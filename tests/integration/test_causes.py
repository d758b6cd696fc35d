"""A delay in each stage of a real fleet is told under that stage's cause, and the job's verdict names whom to look at."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.causes import Case, Found, Phase, cases, make_dataset, run_case
from headrace.testing.cluster import Cluster

LEAST = 0.9  # of the injected wait, in its own cause
SLOW = 24  # delayed reads of the many-ranks case: so many that the coordinator has a recent time to judge

pytestmark = pytest.mark.timeout(300)

ONE, _, MANY, CROWDED, _ = cases(steps=2)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data") / "set")


def told(found: list[Found]) -> str:
    return "\n".join(
        f"{each.phase.stage}: {each.share:.0%} of {each.injected_s:.2f} s in {each.cause}; {each.explained:.0%} of "
        f"{each.waited_s:.2f} s explained: {each.causes}; others {each.others_s}"
        for each in found
    )


def check(found: list[Found]) -> None:
    print(told(found))
    for each in found:
        assert each.injected_s > each.phase.seconds / 2, f"the delay was not felt:\n{told([each])}"
        assert each.share >= LEAST, told([each])
        assert 0.9 < each.explained <= 1.001, f"there is a remainder:\n{told([each])}"


def test_a_delay_in_each_stage_is_found_in_its_cause(manifest: Path, tmp_path: Path) -> None:
    check(run_case(ONE, manifest, tmp_path))


def test_also_with_many_ranks_and_workers_whose_clock_is_another_and_the_verdict_names_the_rank(
    manifest: Path, tmp_path: Path
) -> None:
    """Rank 0 alone is made slow, by its reads at first: the others wait for it in the step, and are told of nothing else."""
    case = replace(MANY, phases=tuple(replace(p, steps=SLOW, calm=8) if p.stage == "read" else p for p in MANY.phases))
    views = list(looks_at_the_end_of(case, "read"))
    check(run_case(case, manifest, tmp_path, on_step=views[0].look))
    job, metrics = views[0].job, views[0].metrics
    assert (job["verdict"], job["worst_rank"], job["cause"]) == ("input-bound", 0, "read"), job["why"]
    assert job["why"].endswith("the other 3 wait for it in the step, where it looks like work")
    assert [rank["verdict"] == "input-bound" for rank in job["ranks"]] == [True, False, False, False]
    assert 'headrace_job_verdict{job="causes",verdict="input-bound"} 1.0' in metrics
    assert 'headrace_job_verdict{job="causes",verdict="compute-bound"} 0.0' in metrics
    assert 'headrace_job_worst_rank{job="causes"} 0.0' in metrics


def test_ranks_that_share_too_few_workers_are_told_that_these_are_busy_and_how_many_it_takes(
    manifest: Path, tmp_path: Path
) -> None:
    (views,) = looks_at_the_end_of(CROWDED, "decode")
    (found,) = run_case(CROWDED, manifest, tmp_path, on_step=views.look)
    check([found])
    assert max(found.causes, key=lambda cause: found.causes[cause]) == "worker_busy"
    (pool,) = views.scaling
    assert pool["workers_live"] == 1
    assert 1 < pool["workers_desired"] <= pool["workers_most"] == 12
    assert pool["samples_wanted_per_s"] > pool["samples_per_s"] > 0
    assert pool["jobs"] == ["causes"]


class Views:
    """What the coordinator says at one moment of a run; the ranks do nothing until it has measured them for long enough."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.job: dict[str, Any] = {}
        self.scaling: list[dict[str, Any]] = []
        self.metrics = ""

    def look(self, index: int, cluster: Cluster) -> None:
        if index == self._index:
            self.scaling = json.loads(get(cluster, "/api/scaling"))
            end_s = time.monotonic() + 20
            while self.job.get("verdict", "unknown") == "unknown" and time.monotonic() < end_s:
                self.job = json.loads(get(cluster, "/api/jobs/causes"))
                time.sleep(0.2)
            self.metrics = get(cluster, "/metrics")


def looks_at_the_end_of(case: Case, stage: str) -> Iterator[Views]:
    for phase, _, until, _ in case.spans():
        if phase.stage == stage:
            yield Views(until)


def get(cluster: Cluster, path: str) -> str:
    with urllib.request.urlopen(f"http://{cluster.coordinators[0].admin_address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_what_counts_as_injected() -> None:
    """The measure itself: without it the tests above could pass on anything."""
    wrong = Found(ONE, Phase("decode", 0.5), 2.0, 2.0, 0.1, {}, {})
    assert wrong.share < LEAST
    assert Found(ONE, Phase("decode", 0.5), 2.0, 2.0, 2.1, {"decode": 1.0}, {}).explained == 0.5
