"""Reports, healing and ticks: state, event, expected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import (
    HeadraceError,
    JobMismatch,
    RankClaimed,
    SessionSuperseded,
    SessionUnknown,
    StateInvalid,
    WorldMismatch,
)
from headrace.core.events import (
    Adopt,
    BadSample,
    JobState,
    LaneMoved,
    Leave,
    Observe,
    Progress,
    RecordBad,
    Rules,
    Tick,
)
from headrace.core.job import Endpoint
from headrace.core.records import LaneRecord
from tests.unit.session_world import NOW, S, World, moves_of, served

# --- progress --------------------------------------------------------------------------------------------------------


def test_cursors_only_grow_and_overtaken_reports_change_nothing() -> None:
    world = World()
    world.open()
    world.form()
    world.report(0, 10, committed=8)
    world.report(0, 6, committed=4)
    record = world.state.ranks[0]
    assert (record.consumed, record.committed, record.elapsed_s) == (10, 8, 10)


def test_reports_of_strangers_are_refused() -> None:
    world = World()
    world.open()
    world.form()
    cases: list[tuple[type[HeadraceError], dict[str, object]]] = [
        (RankClaimed, {"nonce": "other"}),
        (SessionUnknown, {"attempt": 2}),
        (WorldMismatch, {"rank": 2}),
        (StateInvalid, {"committed": 9}),
    ]
    for cls, change in cases:
        with pytest.raises(cls):
            world.report(**{"rank": 0, "consumed": 5, **change})  # type: ignore[arg-type]
    assert world.state.ranks[0].consumed == 0


def test_bad_samples_are_passed_on() -> None:
    world = World()
    world.open()
    world.form()
    bad = (BadSample(0, 7, "k", "corrupt"),)
    assert RecordBad(bad) in world.do(Progress(1, 0, "n0", None, 1, 0, bad=bad))


def test_leaving_twice_or_late_is_no_error() -> None:
    world = World()
    world.open()
    world.form()
    last = Progress(1, 0, "n0", None, 9, 9)
    world.do(Leave(1, 0, "n0", last))
    after = world.state
    assert after.ranks[0].committed == 9
    world.wait(1)
    world.do(Leave(1, 0, "n0", None))
    assert world.state == after
    world.join(0, attempt=2, nonce="x")
    world.do(Leave(1, 0, "n0", None))


def test_a_goodbye_whose_commit_comes_too_late_is_told() -> None:
    """A job started anew beside itself: its ranks leave with a last checkpoint while the next attempt begins."""
    world = World()
    world.open()
    world.form()
    world.do(Progress(1, 1, "n1", None, 4, 3))
    world.join(0, attempt=2, nonce="x")
    world.do(Leave(1, 1, "n1", Progress(1, 1, "n1", None, 5, 3)))  # nothing that is not recorded
    before = world.state
    for rank, last in ((1, Progress(1, 1, "n1", None, 5, 5)), (0, Progress(1, 0, "n0", None, 5, 5))):
        with pytest.raises(SessionSuperseded, match="attempt 2 of job job has begun"):
            world.do(Leave(1, rank, f"n{rank}", last))
    assert world.state == before


# --- healing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["report", "watch", "heartbeat"])
def test_a_lost_session_is_rebuilt_from_whoever_knows_it(event: str) -> None:
    world = World()
    world.open()
    session = world.form(attempt=4)
    world.state = JobState("job", workers=world.state.workers)
    if event == "report":
        world.report(1, 12, committed=11, attempt=4, known=session)
        assert world.state.ranks[1].committed == 11
    elif event == "watch":
        world.do(Observe(4, 1, "n1", session))
    else:
        world.do(Adopt("w", "w-1", 4, ((3, NOW),), session))
        assert world.state.lanes[3] == LaneRecord("w", "w-1", NOW, NOW)
    assert world.state.session is not None
    assert world.state.job is not None
    assert world.state.session.session(world.state.job) == session


def test_a_store_that_only_knows_an_older_attempt_is_healed_and_a_newer_one_is_not_turned_back() -> None:
    world = World()
    world.open()
    old = world.form(attempt=1)
    before = world.state
    new = world.form(attempt=2, suffix="b")
    after = world.state
    world.state = before
    world.report(0, 3, attempt=2, nonce="n0b", known=new)
    assert world.state.session is not None
    assert world.state.session.attempt == 2
    world.state = after
    with pytest.raises(SessionSuperseded):
        world.report(0, 3, attempt=1, known=old)


def test_a_session_that_could_not_be_is_refused() -> None:
    world = World()
    world.open()
    session = world.form(attempt=4)
    world.state = JobState("job")
    with pytest.raises(StateInvalid, match="3 lanes"):
        world.do(Observe(4, 1, "n1", replace(session, lanes=3)))
    assert world.state.session is None


def test_a_session_of_another_plan_does_not_heal() -> None:
    world = World()
    world.open()
    session = world.form(attempt=4)
    other = World()
    other.open(seed=9)
    with pytest.raises(JobMismatch):
        other.do(Observe(4, 1, "n1", session))


def test_only_newer_and_possible_tokens_are_adopted() -> None:
    world = World()
    world.open()
    world.form()
    world.add("a")
    world.tick()
    token = world.state.lanes[0].token
    held = ((0, token - 1), (1, token), (2, token + 5), (12, token + 5), (3, NOW * 2))
    world.do(Adopt("b", "b-1", 1, held, None))
    assert world.owners() == ["a", "a", "b", *["a"] * 9]


# --- tick ------------------------------------------------------------------------------------------------------------


def test_lanes_are_leased_once_formed_and_a_second_tick_changes_nothing() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.tick()
    assert world.owners() == [""] * 12
    world.form()
    world.tick()
    assert sorted(world.owners()) == ["a"] * 6 + ["b"] * 6
    assert {lane.token for lane in world.state.lanes.values()} == {NOW}
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 0
    before = world.state
    world.wait(1)
    assert world.tick() == []
    assert world.state is before


def test_lanes_of_each_rank_are_spread_over_the_workers() -> None:
    world = World()
    world.open()
    world.add("a", endpoint=Endpoint("a", "a-1", "elsewhere", "a:1", ""))
    world.add("b", endpoint=Endpoint("b", "b-1", "elsewhere", "b:1", ""))
    world.form()
    world.tick()
    for rank in range(2):
        assert sorted(world.owners()[rank::2]) == ["a"] * 3 + ["b"] * 3


def test_the_fingerprint_is_pinned_by_the_fastest_and_others_get_nothing() -> None:
    world = World()
    world.open()
    world.add("a", fingerprint="slow", samples_per_s=10.0)
    world.add("b", fingerprint="fast", samples_per_s=90.0)
    assert world.form().job.fingerprint == "fast"
    world.tick()
    assert set(world.owners()) == {"b"}


def test_lanes_of_a_dead_worker_move_with_higher_tokens() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    lost = [n for n, owner in enumerate(world.owners()) if owner == "a"]
    world.wait(4)
    world.add("b")
    world.report(0, 1)
    moves = [effect for effect in world.tick() if isinstance(effect, LaneMoved)]
    assert [move.lane for move in moves] == lost
    assert {(move.owner, move.to, move.reason) for move in moves} == {("a", "b", "lost")}
    assert all(world.state.lanes[n].token == world.now_us for n in lost)
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 6


def test_a_restarted_worker_gets_new_tokens() -> None:
    world = World()
    world.open()
    world.add("a")
    world.form()
    world.tick()
    world.wait(1)
    world.add("a", endpoint=Endpoint("a", "a-2", "n0", "a:2", ""))
    world.tick()
    assert {(lane.incarnation, lane.token) for lane in world.state.lanes.values()} == {("a-2", world.now_us)}


def test_tokens_grow_although_the_clock_went_back() -> None:
    world = World()
    world.open()
    world.form()
    world.state = replace(world.state, lanes={0: LaneRecord("", "", NOW + 50)})
    world.add("a")
    world.tick()
    assert world.state.lanes[0].token == NOW + 51


@pytest.mark.parametrize(("change", "reason"), [({"draining": True}, "drained"), ({"unable": ("job",)}, "unable")])
def test_a_worker_that_wants_no_lanes_loses_them_at_once_but_not_to_nobody(change: dict[str, object], reason: str) -> None:
    world = served("a", "b")
    mine = [n for n, owner in enumerate(world.owners()) if owner == "a"]
    world.add("a", **change)
    assert [(move.lane, move.reason) for move in moves_of(world)] == [(lane, reason) for lane in mine]
    assert set(world.owners()) == {"b"}
    world.add("b", **change)
    moves_of(world)
    assert set(world.owners()) <= {"a", "b"}
    assert moves_of(world) == []


def test_a_worker_unable_to_open_other_jobs_keeps_its_lanes() -> None:
    world = served("a", "b")
    world.add("a", unable=("other",))
    assert moves_of(world) == []


def test_a_lagging_lane_moves_once_and_then_rests_twice_as_long_each_time() -> None:
    world = served("a", "b")
    lane = world.owners().index("a")
    waited = []
    for _ in range(8):
        owner = world.owners()[lane]
        begun_us = world.now_us
        while world.now_us < begun_us + 1000 * S:
            world.wait(1)
            for name in "ab":
                world.add(name, lagging=(("job", lane, 9.0),) if name == owner else ())
            world.report(0, 1)
            if moves := moves_of(world):
                assert [(move.lane, move.owner, move.reason) for move in moves] == [(lane, owner, "lagged")]
                break
        waited.append((world.now_us - begun_us) // S)
    assert waited == [5, 10, 20, 40, 80, 160, 160, 160]


@pytest.mark.parametrize(("behind_s", "moved"), [(4.9, 0), (5.0, 1)])
def test_one_setting_says_when_a_lane_lags(behind_s: float, moved: int) -> None:
    world = served("a", "b")
    world.wait(6)
    world.add("a", lagging=(("job", world.owners().index("a"), behind_s),))
    world.add("b")
    assert len(moves_of(world)) == moved


# --- clocks and outages ----------------------------------------------------------------------------------------------


def test_after_a_time_in_which_nothing_could_be_heard_silence_is_no_death() -> None:
    world = served("a", "b")
    before = world.state
    world.wait(120)
    assert world.do(Tick(1000, blind=True)) == []
    world.add("a")
    world.report(0, 1)
    assert moves_of(world, blind=True) == []
    assert world.state.lanes == before.lanes
    world.add("b", endpoint=Endpoint("b", "b-2", "n0", "b:2", ""))  # it ended, and says so
    assert {move.reason for move in moves_of(world, blind=True)} == {"lost"}
    world.wait(2)
    world.add("b", alive_until_us=0)
    assert set(world.owners()) == {"a", "b"}
    moves_of(world)
    assert set(world.owners()) == {"a"}


def test_a_clock_that_is_put_back_keeps_no_dead_rank_alive() -> None:
    world = served("a")
    world.wait(-3600)
    world.tick()
    world.add("a")
    world.wait(4)
    world.report(0, 1)
    world.wait(2)
    with pytest.raises(RankClaimed):
        world.join(0, nonce="x")
    assert world.join(1, nonce="x").attempt == 2


def test_after_a_clock_was_put_back_lagging_lanes_move_but_not_with_every_tick() -> None:
    world = served("a", "b")
    world.wait(-3600)
    lane = world.owners().index("a")
    moved = []
    for _ in range(9):
        world.wait(0.5)
        for name in "ab":
            world.add(name, lagging=(("job", lane, 9.0),) if name == world.owners()[lane] else ())
        world.report(0, 1)
        moved += moves_of(world)
    assert len(moved) == 1


def test_where_all_lag_nothing_moves() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    world.wait(6)
    for name in "ab":
        world.add(name, lagging=(("job", world.owners().index(name), 9.0),))
    assert world.tick() == []


def test_without_workers_lanes_stay_with_their_owner_who_may_come_back() -> None:
    world = served("a")
    before = world.state.lanes
    world.wait(4)
    world.report(0, 1)
    assert world.tick() == []
    assert world.state.lanes is before
    world.add("a")
    assert world.tick() == []
    world.wait(4)
    world.add("b")
    world.report(0, 1)
    assert {(move.to, move.reason) for move in moves_of(world)} == {("b", "lost")}


@pytest.mark.parametrize("how", ["silent", "left"])
def test_lanes_are_released_when_the_ranks_are_gone(how: str) -> None:
    world = World()
    world.open()
    world.form()
    world.add("a")
    world.tick()
    if how == "left":
        for rank in range(2):
            world.do(Leave(1, rank, f"n{rank}", None))
    else:
        world.wait(66)
        world.add("a")
    world.tick()
    assert world.owners() == [""] * 12
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 0


def test_the_window_grows_with_the_workers_and_never_shrinks() -> None:
    world = World()
    world.open()
    assert world.form().window == 3
    for i in range(5):
        world.add(f"w{i}")
    world.tick()
    assert world.state.session is not None
    assert world.state.session.window == 5
    world.state = replace(world.state, workers={})
    world.tick()
    assert world.state.session is not None
    assert world.state.session.window == 5


@pytest.mark.parametrize(("most", "window"), [(10_000, 5), (4_000, 4), (10, 2)])
def test_the_window_is_bounded_by_bytes(most: int, window: int) -> None:
    world = World(rules=Rules(max_rank_bytes=most))
    world.open()
    for i in range(5):
        world.add(f"w{i}")
    assert world.form().window == window
