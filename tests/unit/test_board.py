"""What a replica makes of its own absence: passes under a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headrace.coordinator.board import Board
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.job_tables import job_table
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.quarantine import Quarantined
from headrace.coordinator.store import Key
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import StoreUnavailable
from headrace.core.events import Join, Open, Progress, Rules
from headrace.core.job import Endpoint
from headrace.core.records import WorkerRecord
from tests.unit.session_world import SPEC, S

TTL_US = 3 * S


class World(MemoryStore):
    """A store with a clock, and a replica; the session of one rank has its lanes at workers a and b."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now_us)
        self.now_us = 1_700_000_000 * S
        self.own_us = 0
        self.forgotten: list[str] = []
        self.down = False
        self.writes = 0
        self.replica()

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        if self.down:
            raise StoreUnavailable("down")
        return await super().load(wanted)

    async def commit(self, expected, writes, hint=""):  # type: ignore[no-untyped-def]
        if self.down:
            raise StoreUnavailable("down")
        self.writes += 1
        return await super().commit(expected, writes, hint)

    def forget(self, group: str) -> None:
        self.forgotten.append(group)

    def replica(self) -> None:
        """A coordinator that starts."""
        self.ledger = Ledger(self, Rules(), Instruments(CollectorRegistry()), lambda: self.now_us)
        self.board = Board(self.ledger, 0.5, job_keep_days=1, clock_us=lambda: self.own_us)

    async def form(self) -> None:
        await self.ledger.update("job", Open(SPEC, 1))
        await self.beat("ab")
        await self.ledger.update("job", Join(0, 0, 1, "n0", None, "", 0, "n0", 0))
        await self.go(4, "ab")
        assert self.owners() == {"a", "b"}

    async def beat(self, names: str) -> None:
        for name in names:
            record = WorkerRecord(Endpoint(name, f"{name}-1", "n", "g", ""), "fp", SPEC.pipeline.op_names, 0.0, 1, False, 0)
            await self.ledger.fleet.heartbeat(record, TTL_US)

    async def go(self, seconds: float, names: str) -> None:
        """Half-second passes, between the heartbeats of some workers and the rank's reports."""
        for _ in range(int(seconds * 2)):
            self.now_us += S // 2
            await self.beat(names)
            await self.ledger.update("job", Progress(1, 0, "n0", None, 1, 0), rank=0)
            await self.board.refresh()

    def owners(self) -> set[str]:
        job = self.board.job("job")
        assert job is not None
        return {lane.owner for lane in job.lanes.values()}

    def kinds(self) -> list[str]:
        """What was told of workers, oldest first."""
        return [event.kind for event in self.ledger.events.newest()[::-1] if event.kind.startswith("worker_")]

    def moved(self) -> int:
        job = self.board.job("job")
        assert job is not None
        assert job.session is not None
        return job.session.lanes_moved


@pytest.fixture
async def world() -> World:
    made = World()
    await made.form()
    return made


@pytest.mark.parametrize("cause", ["restart", "store", "pause", "clock ahead", "clock back"])
async def test_an_outage_moves_no_lane_of_workers_that_lived_through_it(world: World, cause: str) -> None:
    before = world.moved()
    if cause == "store":
        world.down = True
        for _ in range(120):
            world.now_us += S // 2
            with pytest.raises(StoreUnavailable):
                await world.board.refresh()
        world.down = False
    else:
        world.now_us += {"clock ahead": 3600, "clock back": -3600}.get(cause, 60) * S
    if cause == "restart":
        world.replica()
    await world.board.refresh()  # nobody has had the time to say anything
    world.now_us += S
    await world.board.refresh()
    await world.go(1, "a")
    await world.go(10, "ab")
    assert world.moved() == before
    await world.go(4, "a")  # and now worker b is really dead
    assert world.owners() == {"a"}


@pytest.mark.parametrize("cause", ["restart", "store", "pause"])
async def test_after_an_outage_only_workers_that_died_in_it_are_told_as_silent(world: World, cause: str) -> None:
    """As lanes move: not before all had the time to say that they live. Nor has anybody come who was there before."""
    await world.go(4, "ab")
    before = world.kinds()
    if cause == "store":
        world.down = True
        for _ in range(120):
            world.now_us += S // 2
            await world.board._pass_or_tell()
        world.down = False
    else:
        world.now_us += 60 * S
    if cause == "restart":
        world.replica()
        before = []
    await world.board.refresh()  # nobody has had the time to say anything
    world.now_us += S
    await world.board.refresh()
    await world.go(1, "a")
    await world.go(5, "ab")
    assert world.kinds() == before
    await world.go(4, "a")
    assert world.kinds() == [*before, "worker_silent"]


async def test_workers_that_died_in_an_outage_are_replaced_a_ttl_after_it(world: World) -> None:
    world.now_us += 60 * S
    await world.go(2.5, "a")
    assert world.owners() == {"a", "b"}
    await world.go(1, "a")
    assert world.owners() == {"a"}


async def test_a_clock_that_went_forth_and_back_does_not_blind_for_as_long(world: World) -> None:
    world.now_us += 3600 * S
    await world.board.refresh()
    world.now_us -= 3600 * S
    await world.go(4, "a")
    assert world.owners() == {"a"}


async def test_slow_passes_do_not_make_blind(world: World) -> None:
    class Slow(Board):
        async def _pass_over(self, name):  # type: ignore[no-untyped-def]
            await super()._pass_over(name)
            world.now_us += 2 * S

    world.board = Slow(world.ledger, 0.5)
    await world.board.refresh()
    await world.go(4, "a")
    assert world.owners() == {"a"}


async def test_a_pass_over_what_did_not_change_writes_nothing(world: World) -> None:
    before = world.writes
    for _ in range(5):
        world.now_us += S // 10
        await world.board.refresh()
    assert world.writes == before


async def test_old_jobs_are_forgotten_by_all_replicas(world: World) -> None:
    other = Board(Ledger(world, Rules(), Instruments(CollectorRegistry()), lambda: world.now_us), 0.5)
    await other.refresh()
    assert [job.name for job in other.jobs()] == ["job"]
    for _ in range(600):
        world.now_us += 1000 * S
        await world.board.refresh()
        if world.board.job("job") is None:
            break
    # Passes so far from each other are all blind, and a replica that is blind forgets nothing.
    assert world.board.job("job") is not None
    await idle(world, 220)
    assert world.board.job("job") is not None  # old, but nobody knows for how long
    world.own_us += 3600 * S
    assert world.forgotten == []
    await idle(world, 220)
    assert world.board.job("job") is None
    assert "job:job" in world.forgotten
    await other.refresh()
    assert list(other.jobs()) == []


async def test_a_job_of_short_use_is_forgotten_within_hours(world: World) -> None:
    """As that of `headrace diagnose`; the one beside it stays."""
    await world.ledger.update("short", Open(replace(SPEC, name="short"), 1, keep_s=600))
    await world.board.refresh()
    for _ in range(2):
        await idle(world, 220)
        assert world.board.job("short") is not None
        world.now_us += 400 * S
        world.own_us += 400 * S
    await idle(world, 220)  # old from here on
    world.own_us += 3600 * S
    await idle(world, 220)
    assert [job.name for job in world.board.jobs()] == ["job"]


async def idle(world: World, passes: int) -> None:
    for _ in range(passes):
        world.now_us += S // 2
        await world.board.refresh()


async def test_a_clock_that_is_ahead_for_a_while_makes_no_job_old(world: World) -> None:
    for _ in range(3):
        world.now_us += 90 * 86_400 * S
        await idle(world, 220)
        world.now_us -= 90 * 86_400 * S + 110 * S
        world.own_us += 3600 * S
        await idle(world, 220)
    assert world.board.job("job") is not None


async def test_what_is_remembered_of_a_job_goes_when_a_hint_says_that_it_is_gone(world: World) -> None:
    await world.commit({}, dict.fromkeys(Key(job_table("job", "main"), field) for field in ("job", "session")))
    await world.board.refresh("job")
    assert world.board.job("job") is None
    assert world.forgotten == ["job:job"]


async def test_a_list_of_bad_samples_is_read_once_in_ten_seconds_however_often_its_job_is_looked_at(world: World) -> None:
    """Each write of a rank's makes a pass over its job; the list may have ten thousand entries."""
    read = list[str]()
    of = world.ledger.quarantine.of

    async def counted(job: str) -> Quarantined:
        read.append(job)
        return await of(job)

    world.ledger.quarantine.of = counted  # type: ignore[method-assign]
    for seconds in range(1, 41):
        world.now_us += S
        await world.board.refresh()
        for _ in range(20):  # woken
            await world.board.refresh("job")
        assert seconds // 10 <= len(read) <= seconds // 10 + 1
    assert set(read) == {"job"}


@pytest.mark.parametrize("fault", ["store", "record", "count"])
async def test_watchers_hear_of_a_move_whatever_is_wrong_with_the_list_of_bad_samples(world: World, fault: str) -> None:
    """The store fails just then, one record is damaged, or the count of those that found no room."""

    async def fail(_: str) -> None:
        raise StoreUnavailable("down for a moment")

    world.board.bad_reasons.clear()
    if fault == "store":
        world.ledger.quarantine.of = fail  # type: ignore[method-assign]
    else:
        await world.commit({}, {Key(job_table("job", "bad"), "7" if fault == "record" else "beyond"): b"garbage"})
    change = world.board.next_change("job")
    with capture_logs() as logs:
        await world.go(8, "a")
    assert world.owners() == {"a"}
    assert change.is_set()
    assert not [line for line in logs if line["event"] in ("tick_failed", "store_lost")]
    told = [line["job"] for line in logs if line["event"] == "bad_samples_unread"]
    assert told == ["job"], "told once"


async def test_a_worker_that_dies_before_a_replica_may_judge_by_silence_is_told_as_silent_after(world: World) -> None:
    world.now_us += 60 * S
    world.replica()
    await world.go(2, "ab")
    assert world.board.sight.blind
    assert world.kinds() == []
    await world.go(6, "a")
    assert world.kinds() == ["worker_silent"]


async def test_a_store_that_may_lose_records_is_told_once_and_asked_again_after_it_was_away() -> None:
    world, asked = World(), 0
    weak: tuple[str, ...] = ("keeps no append-only file",)

    async def weaknesses() -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return weak

    world.weaknesses = weaknesses  # type: ignore[method-assign]
    with capture_logs() as logs:
        for _ in range(3):
            await world.board._pass_or_tell()
        assert asked == 1 and world.board.store_weaknesses == weak
        world.down = True
        await world.board._pass_or_tell()
        world.down, weak = False, ()
        for _ in range(3):
            await world.board._pass_or_tell()
    assert asked == 2 and world.board.store_weaknesses == ()
    world.board.store_weaknesses, weak = ("keeps no append-only file",), ()
    world.own_us += 61 * S
    await world.board._pass_or_tell()
    assert world.board.store_weaknesses == (), "it was mended meanwhile"
    assert [line["what"] for line in logs if line["event"] == "store_unfit"] == ["the store keeps no append-only file"]
