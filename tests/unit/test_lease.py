"""Who gets which lane."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import StaleToken
from headrace.core.fleet import Fleet, speeds
from headrace.core.job import Endpoint
from headrace.core.lease import beat, deal, quotas
from headrace.core.records import WorkerRecord

weights = st.dictionaries(st.sampled_from("abcdefghij"), st.floats(0.01, 1e5), min_size=1)


def worker(name: str, incarnation: str = "1", speed: float = 0.0, threads: int = 1, until_us: int = 100) -> WorkerRecord:
    return WorkerRecord(Endpoint(name, incarnation, "n", "g", ""), "fp", (), speed, threads, False, until_us)


def fleet(**speed: float) -> Fleet:
    return Fleet(speed, dict.fromkeys(speed, "n"))


@given(st.integers(1, 6144), weights)
def test_quotas_add_up_and_starve_nobody_while_there_are_enough(lanes: int, speed: dict[str, float]) -> None:
    got = quotas(lanes, speed)
    assert sum(got.values()) == lanes
    assert min(got.values()) >= (1 if lanes >= len(speed) else 0)


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        ({"a": 1, "b": 1}, [6, 6]),
        ({"a": 3, "b": 1}, [9, 3]),
        ({"a": 1000, "b": 1}, [11, 1]),
        ({"a": 2, "b": 1, "c": 1}, [6, 3, 3]),
    ],
)
def test_quotas_follow_speed(speed: dict[str, float], expected: list[int]) -> None:
    assert list(quotas(12, speed).values()) == expected


def test_unmeasured_workers_count_by_threads_at_the_others_pace() -> None:
    assert speeds([worker("a", speed=100, threads=2), worker("b", threads=4), worker("c", threads=1)]) == {
        "a": 100,
        "b": 200,
        "c": 50,
    }
    assert speeds([worker("a", threads=2), worker("b", threads=1)]) == {"a": 2, "b": 1}


@given(
    st.sampled_from([1, 3, 6, 12, 48]), weights, st.lists(st.sampled_from(["", *"abcdefghij"]), max_size=48), st.integers(1, 12)
)
def test_dealing_gives_every_lane_and_dealing_again_moves_nothing(
    lanes: int, speed: dict[str, float], owners: list[str], groups: int
) -> None:
    able = Fleet(speed, {})
    dealt = deal(dict(enumerate(owners[:lanes])), lanes, able, groups)
    assert set(dealt) == set(range(lanes))
    assert set(dealt.values()) <= set(speed)
    assert deal(dealt, lanes, able, groups) == dealt
    if lanes >= len(speed):
        assert set(dealt.values()) == set(speed)


def test_a_newcomer_costs_only_the_moves_that_it_takes() -> None:
    before = deal({}, 12, fleet(a=1, b=1, c=1))
    after = deal(before, 12, fleet(a=1, b=1, c=1, d=1))
    assert sum(before[n] != after[n] for n in range(12)) == 3
    assert Counter(after.values()) == {"a": 3, "b": 3, "c": 3, "d": 3}


def test_what_a_newcomer_takes_lies_between_what_the_other_keeps() -> None:
    after = deal(deal({}, 12, fleet(a=1), 2), 12, fleet(a=1, b=1), 2)
    for group in range(2):
        assert [after[n] for n in range(group, 12, 2)] == ["a", "b"] * 3


def test_speeds_that_wobble_move_nothing_and_a_real_change_does() -> None:
    before = deal({}, 12, fleet(a=100, b=100))
    assert deal(before, 12, fleet(a=125, b=90)) == before
    assert Counter(deal(before, 12, fleet(a=300, b=100)).values()) == {"a": 9, "b": 3}


def test_lanes_go_first_to_the_rank_s_node() -> None:
    able = Fleet({"a": 1, "b": 1}, {"a": "n0", "b": "n1"})
    dealt = deal({}, 12, able, 2, {0: "n1", 1: "n0"})
    assert [dealt[n] for n in range(12)] == ["b", "a"] * 6


def test_nobody_is_left_without_lanes_for_the_sake_of_nodes() -> None:
    able = Fleet({"a": 1, "b": 1}, {"a": "n0", "b": "far"})
    assert Counter(deal({}, 12, able, 1, {0: "n0"}).values()) == {"a": 6, "b": 6}


def test_a_worker_that_took_over_an_id_keeps_it() -> None:
    first, second = worker("a", "1"), worker("a", "2")
    now = beat(beat(None, first, 0), second, 1)
    assert now.replaced == ("1",)
    with pytest.raises(StaleToken):
        beat(now, first, 2)
    assert beat(now, first, 200).endpoint.incarnation == "1"  # the other one is dead
    assert beat(now, second, 2).replaced == ("1",)


pairs = st.frozensets(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 5)), max_size=20)


@given(st.sampled_from([6, 12, 48]), weights, st.lists(st.sampled_from(["", *"abcdefghij"]), max_size=48), pairs)
def test_nobody_gets_lanes_that_it_is_barred_from_while_another_is_not(
    lanes: int, speed: dict[str, float], owners: list[str], barred: frozenset[tuple[str, int]]
) -> None:
    able = Fleet(speed, {}, barred=barred)
    dealt = deal(dict(enumerate(owners[:lanes])), lanes, able, 6)
    for lane, owner in dealt.items():
        assert owner in speed
        if (owner, lane % 6) in barred:
            assert all((name, lane % 6) in barred for name in speed)
    assert deal(dealt, lanes, able, 6) == dealt


@given(weights, st.lists(st.sampled_from(["", *"abcdefghij"]), min_size=12, max_size=12), st.frozensets(st.sampled_from("xyz")))
def test_silent_workers_keep_what_they_have_and_get_nothing(
    speed: dict[str, float], owners: list[str], silent: frozenset[str]
) -> None:
    before = {i: "x" if i % 5 == 0 else owner for i, owner in enumerate(owners)}
    after = deal(before, 12, Fleet(speed, {}, silent=silent))
    for lane in range(12):
        assert (after[lane] == "x") == (before[lane] == "x" and "x" in silent)
        assert after[lane] in {"x", *speed}


def test_lanes_that_nobody_can_take_stay_where_they_are() -> None:
    assert deal({0: "a", 2: "b"}, 3, Fleet({}, {})) == {0: "a", 1: "", 2: "b"}


def test_relief_gives_no_lane_to_who_is_barred_from_it() -> None:
    before = {lane: "ab"[lane % 2] for lane in range(12)}
    lagging = frozenset({("a", 0)})
    able = Fleet({"a": 1, "b": 1}, {}, lagging=lagging, barred=frozenset({("b", 0)}))
    assert deal(before, 12, able, 2) == before
    assert deal(before, 12, replace(able, barred=frozenset()), 2) == {**before, 0: "b"}


def test_one_barred_pair_keeps_lanes_from_nobody() -> None:
    before = {lane: "a" if lane % 4 == 0 or lane in (1, 2, 3) else "b" for lane in range(12)}
    barred = frozenset({("a", 0)})
    able = replace(fleet(a=1, b=1), barred=barred)
    two = deal(before, 12, able, 4)
    assert Counter(two.values()) == {"a": 6, "b": 6}
    four = deal(two, 12, replace(fleet(a=1, b=1, c=1, d=1), barred=barred), 4)
    assert Counter(four.values()) == dict.fromkeys("abcd", 3)
    assert sum(two[n] != four[n] for n in range(12)) == 6
    assert "a" not in [four[n] for n in range(0, 12, 4)]


def test_speeds_that_wobble_move_nothing_where_somebody_is_barred_either() -> None:
    barred = frozenset({("a", 0)})
    before = deal({}, 12, replace(fleet(a=100, b=100), barred=barred), 4)
    assert deal(before, 12, replace(fleet(a=125, b=90), barred=barred), 4) == before
    after = deal(before, 12, replace(fleet(a=300, b=100), barred=barred), 4)
    assert Counter(after.values()) == {"a": 9, "b": 3}


@given(st.sampled_from([12, 48]), weights, st.lists(st.sampled_from(["", *"abcdefghij"]), max_size=48), st.integers(0, 5))
def test_nobody_is_idle_because_somebody_is_barred(lanes: int, speed: dict[str, float], owners: list[str], group: int) -> None:
    able = Fleet(speed, {}, barred=frozenset({(min(speed), group)}))
    dealt = deal(dict(enumerate(owners[:lanes])), lanes, able, 6)
    assert set(dealt.values()) == set(speed)
