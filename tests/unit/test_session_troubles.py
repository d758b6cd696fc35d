"""Lanes that a rank cannot get: state, event, expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.events import (
    LaneMoved,
    Progress,
)
from headrace.core.job import Endpoint
from headrace.core.records import LaneRecord, LaneTrouble
from tests.unit.session_world import S, World, moves_of, served

# --- progress --------------------------------------------------------------------------------------------------------
# --- what ranks complain of ------------------------------------------------------------------------------------------


def complain(
    world: World, rank: int, lane: int, worker: str, *, waited_s: float = 9.0, token: int = 0, connected: bool = False
) -> None:
    """A report of a rank that waits for a lane; its workers beat."""
    for name in world.state.workers:
        world.add(name)
    trouble = LaneTrouble(lane, worker, token, waited_s, connected)
    world.do(Progress(1, rank, f"n{rank}", None, 1, 0, elapsed_s=world.now_us / S - 1e9, troubles=(trouble,)))


def test_lanes_leave_a_worker_that_their_rank_cannot_use_and_other_ranks_keep_it() -> None:
    world = served("a", "b")
    lane = next(n for n, owner in enumerate(world.owners()) if owner == "a" and n % 2 == 0)
    before = world.owners()
    world.wait(6)
    complain(world, 0, lane, "a")
    assert {(move.to, move.reason) for move in moves_of(world)} == {("b", "unreached")}
    assert world.owners()[0::2] == ["b"] * 6
    assert world.owners()[1::2] == before[1::2]
    for _ in range(280):  # it stays so, though worker a has fewer lanes than its share
        world.wait(1)
        complain(world, 1, 1, world.owners()[1], waited_s=0.0)
        assert moves_of(world) == []
    world.add("c")
    world.wait(60)
    complain(world, 1, 1, world.owners()[1], waited_s=0.0)
    assert moves_of(world)  # a barred worker gets another chance in the end


@pytest.mark.parametrize(
    "case",
    [{"connected": True}, {"waited_s": 4.0}, {"worker": "b"}, {"early": True}, {"gone": True}],
    ids=lambda case: next(iter(case)),
)
def test_troubles_that_say_nothing_of_the_owner_move_nothing(case: dict[str, Any]) -> None:
    world = served("a", "b")
    lane = world.owners().index("a")
    world.wait(1 if case.pop("early", False) else 6)
    gone = case.pop("gone", False)
    complain(world, lane % 2, lane, **{"worker": "a", **case})
    if gone:
        world.wait(6)
        world.add("a")
        world.add("b")
        world.report((lane + 1) % 2, 1)
    assert moves_of(world) == []


def test_a_rank_that_can_use_nobody_tries_them_in_turn_ever_more_slowly() -> None:
    world = served("a", "b", size=1)
    begun_us, seen = world.now_us, []
    for _ in range(400):
        world.wait(1)
        complain(world, 0, 0, world.owners()[0])
        seen += [(move.to, (world.now_us - begun_us) // S) for move in moves_of(world) if move.lane == 0]
    assert seen == [("b", 5), ("a", 15), ("b", 35), ("a", 75), ("b", 155), ("a", 315)]


def test_bars_last_longer_each_time_and_are_forgotten_in_the_end() -> None:
    world = served("a", "b", size=1)
    noted = []
    for _ in range(2000):
        world.wait(1)
        world.state = replace(world.state, lanes={0: replace(world.state.lanes[0], owner="a", incarnation="a-1", leased_us=0)})
        complain(world, 0, 0, "a")
        world.tick()
        assert world.state.session is not None
        for _, _, since_us, times in world.state.session.barred:
            if (since_us, times) not in noted:
                noted.append((since_us, times))
    first_us = noted[0][0]
    assert [((since_us - first_us) // S, times) for since_us, times in noted] == [
        (0, 1), (30, 2), (90, 3), (210, 4), (450, 5), (750, 6), (1050, 7), (1350, 8), (1650, 9), (1950, 10),
    ]  # fmt: skip
    for _ in range(601):
        world.wait(1)
        world.add("a")
        world.add("b")
        world.report(0, 1)
        world.tick()
    assert world.state.session is not None
    assert world.state.session.barred == ()


def test_a_rank_that_reaches_nobody_is_cut_off_itself_and_others_are_tried_only_after_a_while() -> None:
    world = served("a", "b", "c", size=4)
    owners = world.owners()
    assert {owners[n] for n in range(0, 12, 4)} == {"a", "b", "c"}
    world.wait(6)

    def all_missed(waited_s: float) -> list[LaneMoved]:
        for name in "abc":
            world.add(name)
        missed = tuple(LaneTrouble(n, owners[n], 0, waited_s, connected=False) for n in range(0, 12, 4))
        world.do(Progress(1, 0, "n0", None, 1, 0, elapsed_s=world.now_us / S - 1e9, troubles=missed))
        return moves_of(world)

    before = world.state.lanes
    for waited_s in (10.0, 29.0):
        assert all_missed(waited_s) == []
    assert world.state.lanes is before
    assert world.state.session is not None
    assert world.state.session.barred == ()
    world.add("d")
    assert {move.reason for move in all_missed(30.0)} == {"unreached"}
    assert {world.owners()[n] for n in range(0, 12, 4)} == {"d"}


def test_a_trouble_that_nobody_can_mend_is_noted_as_seldom_as_it_lasts() -> None:
    world = served("a", size=1)
    world.wait(6)
    complain(world, 0, 0, "a")
    world.tick()
    noted = []
    for second in range(100):
        world.wait(1)
        complain(world, 0, 0, "a")
        before = world.state
        assert world.tick() == []
        if world.state is not before:
            noted.append(second)
    assert noted == [29, 89]
    world.add("b")
    world.tick()
    assert set(world.owners()) == {"b"}  # whoever comes is tried


def test_a_lane_of_nobody_bars_nobody() -> None:
    world = served("a", size=1)
    world.state = replace(world.state, lanes={0: LaneRecord()}, workers={})
    complain(world, 0, 0, "")
    world.tick()
    assert world.state.session is not None
    assert world.state.session.barred == ()


def test_a_restarted_worker_is_not_barred() -> None:
    world = served("a", "b", size=1)
    world.wait(6)
    complain(world, 0, world.owners().index("a"), "a")
    moves_of(world)
    assert set(world.owners()) == {"b"}
    world.add("a", endpoint=Endpoint("a", "a-2", "n0", "a:2", ""))
    moves_of(world)
    assert world.owners().count("a") == 6


def test_a_lane_whose_token_the_store_lost_is_leased_above_what_its_rank_knows() -> None:
    world = served("a")
    token = world.state.lanes[3].token + 7
    complain(world, 1, 3, "a", waited_s=0.0, token=token, connected=True)
    world.tick()
    assert (world.state.lanes[3].owner, world.state.lanes[3].token) == ("a", token + 1)
    before = world.state
    assert world.tick() == []  # the report is still there, and is answered
    assert world.state is before
    complain(world, 1, 3, "a", waited_s=0.0, token=world.now_us * 2, connected=True)  # no store issued that
    assert world.tick() == []
