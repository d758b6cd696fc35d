"""What the coordinator makes of the ranks' numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.instruments import dropped
from headrace.coordinator.recent import Recent, grown, waits_so_far
from headrace.core.events import JobState
from headrace.core.job import StreamState
from headrace.core.records import JobRecord, LaneRecord, LaneTrouble, RankRecord, SessionRecord
from headrace.core.session_plan import SessionPlan
from headrace.core.starvation import CAUSES
from tests.unit.session_world import SPEC

RANK = RankRecord(1, "n", 0)
causes = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**6))


@given(st.lists(causes, max_size=8))
def test_wait_counters_never_go_back_and_add_up(steps: list[dict[str, int]]) -> None:
    before: dict[str, float] = {}
    total = 0.0
    for waits in steps:
        total += 1 + sum(waits.values())  # totals grow; how they are split changes as it likes
        whole = sum(waits.values())
        truth = {cause: seconds * total / whole for cause, seconds in waits.items()} if whole else {"a": total}
        after = grown(before, truth)
        assert all(after.get(cause, 0.0) >= seconds for cause, seconds in before.items())
        assert math.isclose(sum(after.values()), total, rel_tol=1e-9)
        before = after


def test_wait_counters_come_back_to_the_truth() -> None:
    running = grown({"read": 1.0}, {"read": 1.0, "transfer": 10.0})
    ended = grown(running, {"read": 9.0, "transfer": 2.0})
    assert ended == {"read": 1.0, "transfer": 10.0}
    assert grown(ended, {"read": 20.0, "transfer": 11.0}) == {"read": 20.0, "transfer": 11.0}


@pytest.mark.parametrize(
    ("troubles", "cause"),
    [
        ((), "worker_busy"),
        ((LaneTrouble(0, "a", 1, 3.0, connected=True),), "worker_busy"),
        ((LaneTrouble(0, "a", 1, 3.0, connected=False),), "lane_wait"),
        ((LaneTrouble(0, "", 0, 3.0, connected=False),), "lane_wait"),
    ],
)
def test_a_wait_that_goes_on_has_the_cause_that_it_looks_like(troubles: tuple[LaneTrouble, ...], cause: str) -> None:
    record = replace(RANK, wait_s=2.0, waits=(("read", 1.5), ("copy", 0.5)), waiting_s=7.0, troubles=troubles)
    waits = waits_so_far(record)
    assert waits == {"read": 1.5, "copy": 0.5, cause: 7.0}


def test_a_rank_that_waits_while_a_lane_is_nobodys_waits_for_that_lane() -> None:
    """It has no worker to complain of; all other lanes go on."""
    recent, record = Recent(), replace(RANK, wait_s=2.0, waits=(("read", 2.0),), waiting_s=7.0)

    def state(owner: str, waiting_s: float) -> JobState:
        members = {0: replace(record, waiting_s=waiting_s)}
        lanes = {0: LaneRecord("w0", "i", 1, 1), 1: LaneRecord(owner, "i" if owner else "", 1, 1)}
        return JobState("job", session=SessionRecord(1, 1, 1, 3, 2, StreamState()), ranks=members, lanes=lanes)

    for owner, waiting_s, cause in (
        ("w0", 7.0, "worker_busy"),
        ("", 7.0, "lane_wait"),
        ("w0", 7.0, "worker_busy"),
        ("", 0.0, ""),
    ):
        recent.note_lanes(state(owner, waiting_s))
        waits = recent.wait("job", 0, replace(record, waiting_s=waiting_s)).waits
        assert waits == {"read": 2.0, **({cause: waiting_s} if cause else {})}


def test_a_rank_that_starves_completely_is_seen_to() -> None:
    recent = Recent()
    for second in range(20):
        record = replace(RANK, elapsed_s=100.0 + second, wait_s=1.0, waits=(("read", 1.0),), waiting_s=float(second))
        recent.note("job", 0, record)
    assert recent.ratio("job", 0, record) == 1.0
    assert recent.waits("job", 0, record) == {"read": 1.0, "worker_busy": 19.0}


def reported(recent: Recent, seconds: range, share: float, cause: str, *, before: RankRecord = RANK) -> RankRecord:
    """A rank that waits that share of each second, told every second."""
    waits = dict(before.waits)
    record = before
    for _ in seconds:
        waits[cause] = waits.get(cause, 0.0) + share
        record = replace(
            record, elapsed_s=record.elapsed_s + 1, wait_s=record.wait_s + share, waits=tuple(waits.items()), consumed=1
        )
        recent.note("job", 0, record)
    return record


def test_the_recent_time_forgets_what_was_before() -> None:
    recent = Recent()
    record = reported(recent, range(100), 0.5, "read")
    assert recent.wait("job", 0, record).ratio == pytest.approx(0.5)
    record = reported(recent, range(15), 0.9, "decode", before=record)
    wait = recent.wait("job", 0, record)
    assert 0.6 < wait.ratio < 0.8
    assert wait.older == pytest.approx(0.5, abs=0.05)
    assert wait.newer == pytest.approx(0.9, abs=0.05)
    record = reported(recent, range(60), 0.01, "decode", before=record)
    wait = recent.wait("job", 0, record)
    assert wait.ratio == pytest.approx(0.01)
    assert wait.waits["read"] == 0
    assert wait.measured_s == 29


def test_the_wait_for_the_first_batch_is_no_starvation_once_it_is_there() -> None:
    recent = Recent()
    for second in range(1, 20):
        record = replace(RANK, elapsed_s=float(second), waiting_s=float(second))
        recent.note("job", 0, record)
    assert recent.wait("job", 0, record).ratio == 1.0
    first = replace(RANK, elapsed_s=20.0, wait_s=19.5, waits=(("lane_wait", 19.5),), consumed=1)
    recent.note("job", 0, first)
    assert recent.wait("job", 0, first).measured_s == 0
    assert recent.ratio("job", 0, first) == 0
    record = reported(recent, range(10), 0.2, "read", before=first)
    wait = recent.wait("job", 0, record)
    assert wait.ratio == pytest.approx(0.2)
    assert wait.waits["lane_wait"] == 0
    assert sum(recent.waits("job", 0, record).values()) == pytest.approx(21.5), "the totals forget nothing"


@pytest.mark.parametrize("first", [0, 1, 7, 60, 61, 62])
@pytest.mark.parametrize(("tail", "epochs"), [("drop", 0), ("drop", 4), ("pad", 0)])
def test_dropped_samples_are_those_of_epochs_that_are_over(first: int, tail: Any, epochs: int) -> None:
    spec = replace(SPEC, tail=tail)
    formed = SessionRecord(1, 3, epochs, 3, 12, StreamState(), formed=True, epoch=1, first=first)
    plan = SessionPlan(formed.session(JobRecord(spec, 0)))
    for index in range(0, 70 if epochs else 200):
        ranks = {rank: replace(RANK, consumed=index + rank % 2) for rank in range(3)}
        state = JobState("job", JobRecord(spec, 0), formed, ranks=ranks)
        at = plan.locate(0, index)
        over = range(1, epochs if at is None else at.epoch)
        whole = 0 if tail == "pad" else 4000 - 62 // 3 * 3 * 64
        assert dropped(state) == (whole, sum(plan.dropped_in(epoch) for epoch in over))
    assert dropped(replace(state, ranks={}))[1] == sum(plan.dropped_in(e) for e in range(1, plan.epoch))


@given(st.lists(st.tuples(st.floats(0.1, 30), st.floats(0, 1), st.sampled_from(CAUSES)), min_size=1, max_size=60))
def test_shares_by_cause_add_up_to_the_ratio(steps: list[tuple[float, float, str]]) -> None:
    recent, record, waits = Recent(), replace(RANK, consumed=1), dict[str, float]()
    recent.note("job", 0, record)
    for number, (elapsed_s, share, cause) in enumerate(steps):
        waits[cause] = waits.get(cause, 0.0) + elapsed_s * share
        record = replace(
            record,
            elapsed_s=record.elapsed_s + elapsed_s,
            wait_s=sum(waits.values()),
            waits=tuple(waits.items()),
            consumed=number + 2,
        )
        recent.note("job", 0, record)
        shares = recent.shares("job", 0, record)
        assert min(shares.values(), default=0.0) >= 0
        assert math.isclose(sum(shares.values()), recent.ratio("job", 0, record), abs_tol=1e-6)
