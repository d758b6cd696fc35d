"""What a replica remembers of what happened: bounded, joined where one cause has many effects, silent about what is not new."""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.recent_events import MOST, TOGETHER_S, RecentEvents
from headrace.core.events import BadSample, LaneMoved, Note
from headrace.core.records import SessionRecord
from tests.unit.session_world import NOW, S, World


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def told(events: RecentEvents) -> list[tuple[str, str, int]]:
    return [(event.kind, event.text, event.count) for event in events.newest()]


def test_a_flood_of_one_kind_pushes_nothing_else_out() -> None:
    clock = Clock()
    events = RecentEvents(clock)
    events.add("store_lost", "no store", level="warning")
    for lane in range(10 * MOST):
        events.lanes_moved("job", [LaneMoved(lane, "a", "b", 1, "lost")])
        if lane % 2:
            events.bad_samples("job", (BadSample(0, lane, "k", "corrupt"),))
    assert set(told(events)) == {
        ("lanes_moved", f"lane {10 * MOST - 1} moved from a to b: lost", 10 * MOST),
        ("bad_sample", f"sample {10 * MOST - 1} (k) could not be used: corrupt", 5 * MOST),
        ("store_lost", "no store", 1),
    }


def test_the_same_later_is_told_again_and_the_list_is_bounded() -> None:
    clock = Clock()
    events = RecentEvents(clock)
    for _ in range(3 * MOST):
        events.add("x", "again")
        clock.now_s += TOGETHER_S
    assert len(events.newest()) == MOST
    assert all(event.count == 1 for event in events.newest())
    times = [event.at_s for event in events.newest()]
    assert times == sorted(times, reverse=True)


def test_moves_that_nobody_asked_for_and_fences_are_warnings() -> None:
    events = RecentEvents(Clock())
    events.lanes_moved("job", [LaneMoved(1, "a", "b", 1, "rebalanced")])
    events.lanes_moved("job", [LaneMoved(2, "a", "b", 1, "lagged"), LaneMoved(5, "a", "b", 2, "lagged")])
    events.noted("job", Note("lease_renewed", (("lane", 4), ("worker", "a"), ("token", 9), ("known", 8))))
    events.noted("job", Note("something_newer", (("what", 3),)))
    events.noted("job", Note("fingerprint_pinned", (("fingerprint", "cpu-1;long"),)))
    assert {(event.level, event.text) for event in events.newest()} == {
        ("info", "lane 1 moved from a to b: rebalanced"),
        ("warning", "lane 2 and 1 more moved from a to b: lagged"),
        ("warning", "lane 4 fenced with a new token: a rank knew one that the store had lost"),
        ("info", "what=3"),
        ("info", "bound to engine cpu-1"),
    }


def test_notes_of_the_rules_have_the_ids_that_their_sentences_name() -> None:
    world = World()
    events = RecentEvents(Clock())
    world.open()
    seen = list(world.effects)
    world.add("a")
    world.form()
    seen += world.effects
    seen += world.tick()
    for effect in seen:
        if isinstance(effect, Note):
            events.noted("job", effect)
    assert {"job_opened", "session_formed"} <= {event.kind for event in events.newest()}


def test_workers_that_come_go_silent_drain_and_come_back_are_told_once() -> None:
    events = RecentEvents(Clock())
    world = World()
    world.add("a")
    workers = dict(world.state.workers)
    events.workers_seen(workers, NOW)
    assert told(events) == [], "who is there at the first look has not just come"
    world.add("b")
    workers = dict(world.state.workers)
    events.workers_seen(workers, NOW)
    events.workers_seen(workers, NOW)
    assert told(events) == [("worker_joined", "b serves, on n0", 1)]
    workers["a"] = replace(workers["a"], draining=True)
    events.workers_seen(workers, NOW)
    events.workers_seen(workers, NOW + 4 * S)
    kinds = {event.kind: event.level for event in events.newest()}
    assert kinds == {"worker_joined": "info", "worker_draining": "info", "worker_left": "info", "worker_silent": "warning"}
    endpoint = replace(workers["b"].endpoint, incarnation="b-2")
    workers["b"] = replace(workers["b"], endpoint=endpoint, alive_until_us=NOW + 9 * S)
    events.workers_seen(workers, NOW + 4 * S)
    assert ("worker_joined", "b serves, on n0", 2) in told(events)


def test_bars_are_told_whichever_replica_wrote_them() -> None:
    events = RecentEvents(Clock())
    world = World()
    world.open()
    world.add("a")
    world.form()
    before = world.state
    assert isinstance(before.session, SessionRecord)
    after = replace(before, session=replace(before.session, barred=(("a-1", 1, NOW, 2),)))
    events.job_changed(None, after)
    events.job_changed(before, before)
    assert told(events) == []
    events.job_changed(before, after)
    events.job_changed(after, after)
    assert told(events) == [
        ("worker_barred", "a gets no lanes of rank group 1 for a while: a rank could not use it (time 2)", 1)
    ]
