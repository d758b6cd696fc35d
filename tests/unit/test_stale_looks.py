"""What a replica decides from what it read a moment ago, while the store stalls, loses all, or everybody wants something."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.coordinator.board import Board
from headrace.coordinator.fleet_ledger import JOBS, WORKERS
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.shared import Shared
from headrace.coordinator.store import Loaded
from headrace.core.events import Join, Open, Progress, Rules, Tick
from headrace.telemetry.tasks import end
from tests.unit.session_world import SPEC, S
from tests.unit.test_board import World, idle


class Stalling(World):
    """Each load of a job's lanes takes `stall_us` of the store's time, in which it hears nobody."""

    stall_us = 0

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        if any(table.kind == "lanes" for table in wanted):
            self.now_us += self.stall_us
            self.stall_us = 0
        return await super().load(wanted)  # type: ignore[no-untyped-call]


async def formed() -> Stalling:
    world = Stalling()
    await world.form()
    return world


async def test_a_store_that_stalls_between_the_fleet_and_a_job_takes_no_lane_from_a_worker_whose_life_ran_out_meanwhile() -> (
    None
):
    world = await formed()
    before = world.moved()
    await world.beat("b")
    world.now_us += S // 2
    await world.beat("a")  # half a second later: when b's life has run out, a's has not
    world.stall_us = 27 * S // 10
    await world.board.refresh()
    assert world.moved() == before
    assert world.owners() == {"a", "b"}


@pytest.mark.parametrize("stall_s", [1.0, 2.0, 2.9])
async def test_after_a_stall_in_the_middle_of_a_pass_workers_have_the_time_to_say_that_they_live(stall_s: float) -> None:
    """The next pass begins at once: counted between passes alone, there was no gap."""
    world = await formed()
    before = world.moved()
    world.stall_us = int(stall_s * S)
    await world.board.refresh()
    await world.beat("a")
    for _ in range(6):  # b's calls were answered too late, so that it tries again only now
        await world.board.refresh()
        world.now_us += S // 4
        await world.beat("a")
    await world.board.refresh()
    await world.go(10, "ab")
    assert world.moved() == before
    await world.go(4, "a")  # and now worker b is really dead
    assert world.owners() == {"a"}


async def test_work_is_done_although_nobody_who_asks_for_it_waits_long_enough() -> None:
    """Heartbeats are given up after a second; a look at a large fleet may take longer, and is wanted by others too."""
    begun, done = Counter[int](), Counter[int]()
    steps = 50

    async def work(key: int) -> int:
        begun[key] += 1
        for _ in range(steps):
            await asyncio.sleep(0)
        done[key] += 1
        return done[key]

    shared = Shared(work, asyncio.Lock())

    async def impatient() -> None:
        asking = asyncio.create_task(shared.run(1))
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        asking.cancel()

    patient = asyncio.create_task(shared.run(1))
    for _ in range(20):
        await impatient()
    await asyncio.wait_for(patient, 10)
    for _ in range(20):
        await impatient()
    assert done[1] >= 5, f"{begun[1]} were begun"


# --- passes that are wanted all the time ---------------------------------------------------------------------------------


class Looked(Board):
    """Notes what each pass looks at; `at_pass` is called when it has begun."""

    def __init__(self, world: World) -> None:
        super().__init__(world.ledger, 0.05)
        self.passes: list[tuple[str | None, list[str]]] = []
        self.at_pass: Callable[[str | None], None] = lambda _: None
        self.passed = asyncio.Event()

    async def _pass(self, job: str | None) -> None:
        self.passes.append((job, []))
        await super()._pass(job)
        self.at_pass(job)
        self.passed.set()

    async def _pass_over(self, name: str) -> None:
        self.passes[-1][1].append(name)
        await super()._pass_over(name)

    def whole(self) -> list[list[str]]:
        """What each pass over all jobs looked at."""
        return [names for job, names in self.passes if job is None]


async def running(board: Looked, until: Callable[[], bool]) -> None:
    task = asyncio.create_task(board.run())
    try:
        async with asyncio.timeout(20):
            while not until():
                board.passed.clear()
                await board.passed.wait()
    finally:
        await end(task)


async def test_jobs_that_change_all_the_time_do_not_keep_others_from_being_looked_at() -> None:
    """As in a large fleet, where a pass takes long and a thousand ranks join other jobs."""
    world = await formed()
    board = Looked(world)

    def again(_: str | None) -> None:
        time.sleep(0.01)
        board.wake("busy")
        board.wake("other")

    board.at_pass = again
    await running(board, lambda: len(board.whole()) >= 5)
    assert all("job" in names for names in board.whole())
    assert sum(job is not None for job, _ in board.passes) >= 2


async def test_a_job_that_comes_into_use_while_a_pass_takes_long_is_looked_at_by_the_next() -> None:
    """A hint that comes meanwhile is no part of that pass, which has left the job out: it was idle."""
    world = await formed()
    world.now_us += 3600 * S
    await idle(world, 20)
    board = Looked(world)

    def slow(_: str | None) -> None:
        time.sleep(0.06)  # longer than a tick
        if len(board.passes) == 3:
            board.wake("job")

    board.at_pass = slow
    await running(board, lambda: len(board.passes) >= 5)
    assert [names for _, names in board.passes[:4]] == [["job"], [], [], ["job"]]


# --- what is remembered --------------------------------------------------------------------------------------------------


async def test_nothing_is_remembered_of_a_job_that_another_replica_forgot() -> None:
    world = await formed()
    other = Ledger(world, Rules(), Instruments(CollectorRegistry()), lambda: world.now_us)
    for number in range(5):
        name = f"job-{number}"
        await world.ledger.update(name, Open(replace(SPEC, name=name), 1))
        joined = await world.ledger.update(name, Join(0, 0, 1, "n0", None, "", 0, "n0", 0))
        for consumed in range(2):
            await world.ledger.update(name, Progress(1, 0, "n0", None, consumed, 0, elapsed_s=consumed), rank=0)
        assert joined.state.session is not None
        await world.board.refresh()
        change = world.board.next_change(name)
        world.now_us += 3600 * S
        assert await other.forget_job(name, S)
        await world.board.refresh()
        assert change.is_set()
        world.board.next_change(name)  # a watcher that is about to be told
        del change
    await world.board.refresh("job-that-nobody-opened")
    gc.collect()
    board, ledger = world.board, world.ledger
    for owner in (board, ledger, ledger.fleet, board.recent, board._tables, board._holdings):
        held = {name: value for name, value in vars(owner).items() if "job-" in repr(value)}
        assert not held, f"{type(owner).__name__} remembers {held}"


async def test_a_clock_that_is_put_back_makes_no_look_at_the_fleet_take_thousands_of_writes() -> None:
    """All who ask for the fleet wait for it; workers that live write their own records anew within a second."""
    world = await formed()
    names = [f"dead{number}" for number in range(500)]
    await world.beat(names)  # type: ignore[arg-type]
    world.now_us -= 3600 * S
    for _ in range(10):
        before = world.writes
        fleet = await world.ledger.fleet.look()
        assert world.writes - before <= 150
        world.now_us += 4 * S
    assert not [name for name in names if fleet.workers[name].alive(world.now_us)]


# --- times and records of a moment ago ------------------------------------------------------------------------------------


class Late(World):
    """The answer to each load of a job comes `late_us` after it was made."""

    late_us = 0

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        loaded = await super().load(wanted)  # type: ignore[no-untyped-call]
        if any(table.kind == "lanes" for table in wanted):
            self.now_us += self.late_us
            self.late_us = 0
        return loaded


async def test_an_answer_that_comes_late_shortens_nobodys_life() -> None:
    """The store's time in it is that of when it was made: heartbeats that are written by it would end two seconds early."""
    world = Late()
    await world.form()
    await world.board.refresh()
    world.late_us = 2 * S
    await world.ledger.update("job", Tick(0), workers={})
    await world.beat("a")
    fleet = await world.ledger.fleet.look()
    assert fleet.workers["a"].alive_until_us >= world.now_us + 29 * S // 10


@given(st.lists(st.tuples(st.integers(0, 3 * S), st.integers(0, 3 * S), st.sampled_from([0, 0, 0, -3600 * S, 3600 * S]))))
def test_the_stores_time_is_known_as_well_as_the_quickest_answer_tells_it(calls: list[tuple[int, int, int]]) -> None:
    """There and back take any time; the store's clock is set now and then. Each answer's time lies between its two ends."""

    async def known() -> None:
        world = Late()
        ahead_us = 0

        async def load(wanted: object) -> Loaded:
            world.now_us += there_us
            loaded = Loaded(world.now_us + ahead_us, {table: {} for table in (WORKERS, JOBS)}, {})
            world.now_us += back_us
            return loaded

        world.load = load  # type: ignore[method-assign]
        least_us = 3 * S
        for there_us, back_us, jump_us in calls:
            ahead_us += jump_us
            least_us = there_us + back_us if jump_us else min(least_us, there_us + back_us)
            await world.ledger.fleet.look()
            off_us = abs(world.ledger.store.now_us() - world.now_us - ahead_us)
            assert off_us <= max(least_us, there_us + back_us if jump_us else 0)

    asyncio.run(known())


async def test_a_worker_that_comes_back_is_not_forgotten_for_having_been_away() -> None:
    world = await formed()
    await world.beat("cd")
    world.now_us += 700 * S
    fleet = await world.ledger.fleet.look()
    await world.beat("c")
    await world.ledger.fleet.forget(fleet, 600 * S)
    assert "d" not in (await world.ledger.fleet.look()).workers
    assert "c" in (await world.ledger.fleet.look()).workers


async def test_hints_of_jobs_that_are_not_there_are_not_kept() -> None:
    world = await formed()
    for number in range(100):
        world.board.wake(f"nothing-{number}")
    await world.board.refresh()
    assert not world.board._woken
