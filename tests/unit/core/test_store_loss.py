"""A store that came back empty: what peers tell it ends with them, and the engine stays the one that it was."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from headrace.coordinator.job_tables import last_used_us
from headrace.core.events import Adopt, Event, JobState, Note, Observe, Progress, Tick
from headrace.core.job import Session, StreamState
from headrace.core.records import LaneRecord, SessionRecord, encode, session_from_bytes
from headrace.core.tick import active
from tests.unit.session_world import NOW, RULES, S, World, served

IDLE_S, TTL_S = RULES.idle_us / S, RULES.worker_ttl_us / S


def emptied(world: World) -> tuple[Session, Adopt]:
    """The store loses everything; returns the session as its workers know it, and what worker a tells of it."""
    assert world.state.session is not None and world.state.job is not None
    known = world.state.session.session(world.state.job)
    held = tuple((number, lane.token) for number, lane in world.state.lanes.items() if lane.owner == "a")
    world.state = JobState("job")
    return known, Adopt("a", "a-1", known.attempt, held, known)


def holds(world: World) -> Adopt:
    """What worker a holds by its newest heartbeat, and tells with its next one."""
    assert world.state.session is not None and world.state.job is not None
    held = tuple((number, lane.token) for number, lane in world.state.lanes.items() if lane.owner == "a")
    return Adopt("a", "a-1", world.state.session.attempt, held, world.state.session.session(world.state.job))


# --- sessions that only workers tell of -------------------------------------------------------------------------------


def test_a_session_that_a_worker_alone_tells_of_ends_and_stays_ended() -> None:
    world = served("a")
    _, told = emptied(world)
    held_s, second = 0, 0
    while second < 4 * IDLE_S:
        world.add("a")
        if told.tokens:
            world.do(told)
        world.tick()
        told = holds(world)
        held_s = second if told.tokens else held_s
        world.wait(1)
        second += 1
    assert held_s == IDLE_S - 1
    assert not told.tokens and world.owners() == [""] * 12
    assert world.state.session is not None
    assert not active(world.state.session, world.state.ranks, world.now_us, RULES), "no worker is wanted for it"


def test_it_is_remembered_as_long_as_if_it_had_just_been_used() -> None:
    """Forgotten while workers still hold its lanes, it would be told and healed again, for another minute each time."""
    world = served("a")
    _, told = emptied(world)
    world.wait(9)
    world.do(told)
    assert last_used_us(world.state) == world.now_us


def test_what_a_worker_tells_that_was_cut_off_meanwhile_is_released_too() -> None:
    world = served("a", "b")
    tokens = {number: lane.token for number, lane in world.state.lanes.items()}
    known, told = emptied(world)
    world.do(told)
    world.wait(2 * IDLE_S)
    others = tuple((number, token) for number, token in tokens.items() if number not in dict(told.tokens))
    world.do(Adopt("b", "b-1", 1, others, known))
    world.add("b")
    assert world.owners().count("b") == 6
    world.tick()
    assert world.owners() == [""] * 12


@pytest.mark.parametrize("after_s", [0.5, IDLE_S - 1, IDLE_S + 30, 3600])
def test_a_training_whose_store_was_emptied_goes_on_whenever_its_ranks_are_heard(after_s: float) -> None:
    world = served("a")
    known, told = emptied(world)
    world.do(told)
    world.add("a")
    world.tick()
    kept = dict(world.state.lanes)
    world.wait(after_s)
    world.add("a")
    world.tick()
    assert world.state.lanes == kept or after_s >= IDLE_S, "nothing is taken from it in the meantime"
    world.report(0, 7, committed=5, known=known)
    world.report(1, 7, committed=5, known=known)
    world.tick()
    assert world.owners() == ["a"] * 12
    assert all(lane.token >= kept[number].token for number, lane in world.state.lanes.items())
    assert [record.committed for record in world.state.ranks.values()] == [5, 5]
    assert world.state.session is not None and world.state.job is not None
    assert world.state.session.session(world.state.job) == known
    for _ in range(200):  # and does not end a minute after it was healed
        world.wait(1)
        world.add("a")
        world.report(0, 8, known=known)
        world.tick()
    assert world.owners() == ["a"] * 12


@pytest.mark.parametrize("set_s", [-3600.0, -1.0, 3600.0])
def test_a_clock_that_is_set_keeps_no_such_session(set_s: float) -> None:
    world = served("a")
    _, told = emptied(world)
    world.do(told)
    world.wait(set_s)
    for _ in range(int(IDLE_S) + 2):
        world.wait(1)
        world.add("a")
        world.tick()
    assert world.owners() == [""] * 12


def test_a_pass_that_could_hear_nobody_ends_none() -> None:
    world = served("a")
    _, told = emptied(world)
    world.do(told)
    world.wait(2 * IDLE_S)
    before = world.state
    world.do(Tick(1000, blind=True))
    assert world.state == before
    world.tick()
    assert world.owners() == [""] * 12


def test_records_of_versions_that_do_not_note_it_are_read_and_the_other_way_round() -> None:
    record = SessionRecord(1, 1, 0, 3, 1, StreamState(), formed=True, healed_us=NOW)
    assert session_from_bytes(encode(record)) == record
    old = {name: value for name, value in json.loads(encode(record)).items() if name != "healed_us"}
    assert session_from_bytes(json.dumps(old).encode()) == replace(record, healed_us=0)


# --- one engine a job -------------------------------------------------------------------------------------------------


def bound_to_slow() -> tuple[World, Session, Session, Adopt]:
    """Ranks joined before there was a worker; worker a came and its engine was chosen. Then the store loses everything.

    Returns also the session as ranks without a batch know it, as ranks with one and workers do, and what a tells.
    """
    world = World()
    world.open()
    unbound = world.form()
    world.add("a", fingerprint="slow")
    world.tick()
    assert not unbound.job.fingerprint and world.owners() == ["a"] * 12
    known, told = emptied(world)
    assert known.job.fingerprint == "slow"
    return world, unbound, known, told


def fleet(world: World) -> None:
    """Both engines are there now, and the other one is faster."""
    world.add("a", fingerprint="slow", samples_per_s=10.0)
    for name in "xyz":
        world.add(name, fingerprint="fast", samples_per_s=900.0)


ORDERS = list(itertools.permutations(["unbound report", "unbound watch", "bound report", "heartbeat"]))


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
@pytest.mark.parametrize("apart_s", [0.1, 0.9])
def test_whoever_tells_of_a_session_first_its_engine_stays(order: tuple[str, ...], apart_s: float) -> None:
    world, unbound, known, told = bound_to_slow()
    events: dict[str, Event] = {
        "unbound report": Progress(1, 0, "n0", unbound, 0, 0),
        "unbound watch": Observe(1, 0, "n0", unbound),
        "bound report": Progress(1, 1, "n1", known, 9, 0),
        "heartbeat": told,
    }
    for name in order:
        world.do(events[name])
        fleet(world)
        world.tick()
        assert set(world.owners()) <= {"", "a"}, f"after {name}"
        world.wait(apart_s)
    for _ in range(10):
        world.wait(1)
        fleet(world)
        world.report(0, 1, known=unbound)
        world.tick()
    assert world.state.job is not None and world.state.job.spec.fingerprint == "slow"
    assert world.owners() == ["a"] * 12


@pytest.mark.parametrize("teller", ["bound report", "heartbeat"])
def test_also_where_the_job_was_opened_again_before_anybody_told(teller: str) -> None:
    world, _, known, told = bound_to_slow()
    world.open()
    assert world.state.job is not None and not world.state.job.spec.fingerprint
    effects = world.do(told if teller == "heartbeat" else Progress(1, 1, "n1", known, 9, 0))
    assert Note("fingerprint_pinned", (("fingerprint", "slow"),)) in effects
    fleet(world)
    world.tick()
    assert set(world.owners()) == {"a"}


def test_where_nobody_knows_of_an_engine_one_is_chosen_a_workers_life_later() -> None:
    """Its ranks joined before there was a worker, and got no batch before the store was emptied."""
    world, unbound, _, _ = bound_to_slow()
    world.report(0, 0, known=unbound)
    fleet(world)
    assert world.tick() == []
    world.wait(TTL_S)
    fleet(world)
    world.tick()
    assert world.state.job is not None and world.state.job.spec.fingerprint == "fast"
    assert set(world.owners()) == {"x", "y", "z"}


def test_an_engine_that_is_chosen_is_changed_by_nobodys_word() -> None:
    world = served("a")
    assert world.state.session is not None and world.state.job is not None
    known = world.state.session.session(world.state.job)
    before = world.state.job
    for told in ("", "other"):
        other = replace(known, job=known.job.with_fingerprint(told))
        world.report(0, 1, known=other)
        world.do(Adopt("b", "b-1", 1, ((0, LaneRecord().token + 1),), other))
        assert world.state.job is before


def test_a_session_of_another_plan_binds_nothing() -> None:
    world = World()
    world.open()
    known = world.form()
    other = replace(known, job=replace(known.job, seed=9, fingerprint="other"))
    world.report(0, 1, known=other)
    assert world.state.job is not None and world.state.job.spec.fingerprint == ""
