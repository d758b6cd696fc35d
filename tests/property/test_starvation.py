"""The parts of a wait: never negative, every cause named, sum equal to the wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.batch import MILESTONES
from headrace.core.starvation import CAUSE_BEFORE, CAUSES, LINE, ClockOffset, split_wait, starvation_ratio

TIMES = st.floats(min_value=0, max_value=1e6, allow_nan=False)
ANY_MILESTONES = st.dictionaries(st.sampled_from(LINE), TIMES)


def test_every_milestone_has_a_cause_and_every_cause_a_milestone() -> None:
    assert tuple(CAUSE_BEFORE) == LINE
    assert LINE[: len(MILESTONES)] == MILESTONES
    assert set(CAUSE_BEFORE.values()) == set(CAUSES)


@given(TIMES, TIMES, ANY_MILESTONES)
def test_parts_are_not_negative_and_add_up(start_s: float, end_s: float, milestones: dict[str, float]) -> None:
    parts = split_wait(start_s, end_s, milestones)
    assert tuple(parts) == CAUSES
    assert all(part >= 0 for part in parts.values())
    assert math.isclose(math.fsum(parts.values()), max(0.0, end_s - start_s), rel_tol=1e-12, abs_tol=1e-9)


@given(st.lists(st.integers(0, 1000), min_size=len(LINE), max_size=len(LINE)), st.integers(0, 1000), st.integers(0, 1000))
def test_ordered_milestones_give_their_differences(times: list[int], start: int, length: int) -> None:
    """Against a count of single seconds: second t belongs to the first milestone that is later than t."""
    times.sort()
    milestones = {name: float(moment) for name, moment in zip(LINE, times, strict=True)}
    expected = dict.fromkeys(CAUSES, 0)
    for second in range(start, start + length):
        name = next((name for name in LINE if milestones[name] > second), "handed_over")
        expected[CAUSE_BEFORE[name]] += 1
    assert split_wait(start, start + length, milestones) == expected


@given(st.lists(TIMES, min_size=len(LINE), max_size=len(LINE)), st.lists(TIMES, min_size=3, max_size=3))
def test_an_interval_cut_in_two_has_the_same_parts(times: list[float], interval: list[float]) -> None:
    """A wait that a deadline interrupted and that was taken up again is explained as one."""
    milestones = dict(zip(LINE, sorted(times), strict=True))
    start_s, cut_s, end_s = sorted(interval)
    whole = split_wait(start_s, end_s, milestones)
    halves = [split_wait(start_s, cut_s, milestones), split_wait(cut_s, end_s, milestones)]
    for cause in CAUSES:
        assert math.isclose(whole[cause], halves[0][cause] + halves[1][cause], abs_tol=1e-6)


def test_a_batch_that_lay_ready_costs_only_the_copy() -> None:
    parts = split_wait(100.0, 100.5, {name: 50.0 + place for place, name in enumerate(MILESTONES)} | {"received": 60.0})
    assert parts == dict.fromkeys(CAUSES, 0.0) | {"copy": 0.5}


def test_a_lane_without_a_worker_is_lane_wait() -> None:
    parts = split_wait(10.0, 20.0, {"leased": 18.0, "slot_free": 12.0, "started": 18.0, "read": 20.0})
    assert parts == dict.fromkeys(CAUSES, 0.0) | {"lane_wait": 8.0, "read": 2.0}


@given(st.lists(st.tuples(TIMES, st.floats(0, 10)), min_size=1, max_size=20), st.floats(-1e5, 1e5))
def test_the_offset_never_puts_a_batch_published_after_it_was_received(
    batches: list[tuple[float, float]], skew_s: float
) -> None:
    clock = ClockOffset()
    for published_s, transfer_s in batches:
        received_s = published_s + transfer_s
        times = {"published": published_s + skew_s, "started": published_s + skew_s - 1}
        clock.note(times, received_s)
        shifted = clock.shift(times, received_s)
        assert shifted["published"] <= received_s + 1e-6
        assert math.isclose(shifted["published"] - shifted["started"], 1, abs_tol=1e-6)


@given(
    st.floats(-1e5, 1e5),
    st.floats(0.001, 5),
    st.lists(st.floats(0.0001, 0.5), min_size=2, max_size=1200),
    st.floats(-1e-5, 1e-5),
)
def test_a_transfer_that_is_always_slow_stays_transfer(
    skew_s: float, transfer_s: float, ups: list[float], drift: float
) -> None:
    """Two clocks that differ and drift: what is found besides the transfer is the fastest of the small messages, no more."""
    clock, quickest = ClockOffset(), min(ups[-500:])
    for n, up_s in enumerate(ups):
        released_s = 100.0 + n
        slot_free, published = released_s + up_s, released_s + up_s + 0.3
        received_s = published + transfer_s
        theirs = {"slot_free": slot_free, "published": published}
        theirs = {name: moment * (1 + drift) + skew_s for name, moment in theirs.items()}
        clock.note(theirs, received_s, released_s)
    shifted = clock.shift(theirs, received_s)
    assert transfer_s - 0.02 <= received_s - shifted["published"] <= transfer_s + quickest + 0.02
    assert shifted["published"] - shifted["slot_free"] == pytest.approx(0.3, abs=1e-3)


def test_nothing_is_known_of_a_clock_that_nothing_was_heard_of() -> None:
    assert ClockOffset().shift({"started": 1.0}, 9.0) == {}


def test_ratio() -> None:
    assert starvation_ratio(1, 4) == 0.25
    assert starvation_ratio(1, 0) == 0
    assert starvation_ratio(5, 4) == 1
