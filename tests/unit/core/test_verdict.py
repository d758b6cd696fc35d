"""What is said of a job from its ranks' waits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.starvation import CAUSES
from headrace.core.verdict import (
    ACTION,
    BALANCED,
    COMPUTE_BOUND,
    INPUT_BOUND,
    LEAVE_ALONE,
    MEANING,
    UNKNOWN,
    RankWait,
    judge,
    trend_of,
    verdict_of,
)


def rank(number: int, ratio: float, measured_s: float = 30.0, older: float = -1.0, **waits: float) -> RankWait:
    return RankWait(number, ratio, ratio if older < 0 else older, ratio, measured_s, waits)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0, COMPUTE_BOUND), (0.02, COMPUTE_BOUND), (0.021, BALANCED), (0.099, BALANCED), (0.1, INPUT_BOUND), (1, INPUT_BOUND)],
)
def test_thresholds(ratio: float, verdict: str) -> None:
    assert verdict_of(ratio) == verdict


@pytest.mark.parametrize(
    ("older", "newer", "trend"), [(0.2, 0.26, "rising"), (0.26, 0.2, "falling"), (0.2, 0.24, "flat"), (0, 1, "rising")]
)
def test_trend(older: float, newer: float, trend: str) -> None:
    assert trend_of(older, newer) == trend


def test_every_cause_has_a_meaning_and_a_first_action() -> None:
    assert tuple(MEANING) == tuple(ACTION) == CAUSES


def test_the_job_is_judged_by_its_worst_rank_for_which_the_others_wait_in_the_step() -> None:
    job = judge([rank(n, 0.62 if n == 3 else 0.001, read=9.0, copy=1.0) for n in range(8)])
    assert (job.verdict, job.worst_rank, job.cause) == (INPUT_BOUND, 3, "read")
    assert job.why == (
        "rank 3 starves: it waits 62% of its time, 90% of that since reads of the shards were slow; "
        "the other 7 wait for it in the step, where it looks like work"
    )
    assert job.action == ACTION["read"]
    assert [found.rank for found in job.ranks] == [3, 0, 1, 2, 4, 5, 6, 7]
    assert [found.verdict for found in job.ranks[1:]] == [COMPUTE_BOUND] * 7


def test_some_starve_or_all_do() -> None:
    assert judge([rank(0, 0.5, read=1), rank(1, 0.3, read=1), rank(2, 0.0)]).why.endswith(
        "; so do 1 more; the other waits for it in the step, where it looks like work"
    )
    assert judge([rank(0, 0.5, read=1), rank(1, 0.3, read=1)]).why.endswith("; all 2 ranks starve")
    assert judge([rank(0, 0.5, read=1)]).why.endswith("slow")


def test_a_compute_bound_job_is_told_to_leave_its_loader_alone() -> None:
    job = judge([rank(0, 0.01, read=0.3), rank(1, 0.0)])
    assert (job.verdict, job.action, job.cause) == (COMPUTE_BOUND, LEAVE_ALONE, "")
    assert job.why == "rank 0 waits most, 1.0% of its time: input is not what holds the training up"


def test_nothing_is_said_before_there_is_something_to_say() -> None:
    assert judge([]).verdict == UNKNOWN
    young = judge([rank(0, 1.0, measured_s=2.0, read=2.0)])
    assert (young.verdict, young.worst_rank, young.cause) == (UNKNOWN, -1, "")
    assert judge([rank(0, 1.0, measured_s=2.0), rank(1, 0.05, copy=1)]).verdict == BALANCED, "the others count meanwhile"


def test_causes_that_a_newer_rank_may_send_are_passed_over() -> None:
    assert judge([rank(0, 0.5, read=1.0, sunspots=9.0)]).cause == "read"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 2**32))
def test_the_worst_rank_is_first_whatever_the_order(ratios: list[float], seed: int) -> None:
    job = judge([rank(n, ratio, decode=ratio) for n, ratio in enumerate(ratios)])
    assert math.isclose(job.ratio, max(ratios))
    assert job.worst_rank == ratios.index(max(ratios))
    assert job.verdict == verdict_of(max(ratios))
    assert [found.ratio for found in job.ranks] == sorted(ratios, reverse=True)
