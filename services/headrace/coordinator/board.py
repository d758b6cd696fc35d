"""What this replica knows of all jobs: one snapshot a job, shared by all its watchers, and the ticks that keep it current.

A pass loads the fleet and then each job in one round trip, ticks it, and wakes watchers where something changed. Passes
come every `tick_s`, at once after this replica's own writes, and on hints of other replicas. One event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from weakref import WeakValueDictionary

import structlog

from headrace.coordinator.fleet_ledger import Fleet
from headrace.coordinator.holdings import Holdings, Leases
from headrace.coordinator.job_tables import keep_us, last_used_us
from headrace.coordinator.lane_tables import LaneTables, seen_by_watchers
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.recent import Recent
from headrace.coordinator.scaling import Scaling
from headrace.coordinator.shared import Shared
from headrace.coordinator.sight import Sight
from headrace.core.errors import HeadraceError, StoreUnavailable
from headrace.core.events import JobState, Tick
from headrace.core.records import WorkerRecord
from headrace.core.tick import active
from headrace.telemetry.tasks import end
from headrace.wire.gen import coordinator_service_pb2 as pb

log = structlog.get_logger()

# Jobs that nobody uses are looked at once in so many passes; whoever begins to use one says so by a hint.
_IDLE_PASSES = 10
_BAD_PASSES = 10
# As many as keep the store busy: what they work at between its answers is done at one go, and heartbeats wait for it.
_JOBS_AT_ONCE = 4
# A store that fails a request only after so long hangs; one that fails it at once may do well with the others.
_HANGS_S = 1.0
_HINT_PAUSE_S = 1.0
# A flood of hints must not become a flood of passes.
_LEAST_PAUSE_S = 0.02
_FORGET_WORKERS_US = 600_000_000
_FORGET_PASSES = 100
# A store's clock that is wrong for some minutes must not make jobs look old: they have to for so long of our own clock.
_FORGET_AFTER_US = 3_600_000_000
_DAY_US = 86_400_000_000
_WEAKNESS_US = 60_000_000


class Board:
    """See the module. `run` must run; all else may be called at any time on the same loop.

    clock_us: this process's own clock in microseconds, which nobody sets.
    """

    def __init__(
        self,
        ledger: Ledger,
        tick_s: float,
        job_keep_days: int = 90,
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        scaling_interval_s: float = 30.0,
    ) -> None:
        self._ledger = ledger
        self._tick_s = tick_s
        self._keep_us = job_keep_days * _DAY_US
        self._clock_us = clock_us
        self._old_since_us: dict[str, int] = {}
        self.sight = Sight(ledger.rules.worker_ttl_us, tick_s, clock_us, lambda: ledger.store.answered_us)
        self._jobs: dict[str, JobState] = {}
        self._fleet = Fleet(0, {}, frozenset())
        self._wake = asyncio.Event()
        self._woken: dict[str, None] = {}  # in the order in which they were woken
        self._changed: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()  # those that somebody waits for
        self._shared: Shared[str | None, None] = Shared(self._pass, asyncio.Lock())
        self._holdings = Holdings()
        self._tables = LaneTables()
        self._seen: dict[str, object] = {}
        self._passes = 0
        self._failing_since_us: int | None = None
        self._strained = False
        self.store_error = ""  # what the last pass failed with
        self.store_weaknesses: tuple[str, ...] | None = None  # see Store.weaknesses; None: to be asked
        self._asked_us = 0
        self.loaded = False
        self.recent = Recent()
        self.scaling = Scaling(scaling_interval_s)
        self.bad_reasons: dict[str, Counter[str]] = {}
        self._bad_due: set[str] = set()  # jobs whose list is to be read by the next pass over them
        self._bad_unread: set[str] = set()  # jobs whose list could not be read
        ledger.on_change = self.wake

    # --- reading ------------------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """The store's clock, as last seen and carried on by ours."""
        return self._ledger.store.now_us()

    def seen_us(self) -> int:
        """The store's clock at the last pass that read it and was not blind. What is shown is judged by this: by a clock that
        runs on beside a snapshot that stands still, while the store is away, everybody would look dead."""
        return self.sight.seen_us

    def store_ahead_s(self) -> float:
        """The store's clock less this process's; 0 before it was read."""
        return self.now_us() / 1e6 - time.time() if self.loaded else 0.0

    def jobs(self) -> Iterator[JobState]:
        """All jobs, by name."""
        return iter([self._jobs[name] for name in sorted(self._jobs)])

    def job(self, name: str) -> JobState | None:
        """One job's newest snapshot."""
        return self._jobs.get(name)

    def workers(self) -> list[WorkerRecord]:
        """All workers that are remembered, by name."""
        return [self._fleet.workers[name] for name in sorted(self._fleet.workers)]

    def live_workers(self) -> list[WorkerRecord]:
        """Workers whose heartbeats were in time at the last pass."""
        return [worker for worker in self.workers() if worker.alive(self.sight.seen_us)]

    def lane_table(self, job: JobState) -> pb.WatchSessionResponse:
        """A job's lane table, the same message for all its watchers: not to be written to."""
        return self._tables.of(job, self.now_us())

    def held_by(self, worker: str, incarnation: str) -> list[tuple[JobState, Leases]]:
        """What a worker holds of formed sessions: (job, its lanes and their tokens)."""
        held = [(self._jobs[name], leases) for name, leases in self._holdings.of(worker, incarnation)]
        return [(job, leases) for job, leases in held if job.job and job.session and job.session.formed]

    def next_change(self, name: str) -> asyncio.Event:
        """Is set by the next pass that changes what watchers of a job are told. Ask for it before looking at the job."""
        return self._changed.setdefault(name, asyncio.Event())

    # --- passes -------------------------------------------------------------------------------------------------------

    def wake(self, job: str) -> None:
        """Have a pass look at a job soon."""
        self._woken[job] = None
        self._wake.set()

    async def refresh(self, job: str | None = None) -> None:
        """Make a pass now: over one job, or over all. Raises StoreUnavailable.

        Who asks while one is asked for that has not begun shares it: a thousand workers that come back at once, each of
        whom wants a look at the whole fleet, would otherwise wait for a thousand of them.
        """
        await self._shared.run(job)

    async def _pass(self, job: str | None) -> None:
        begun_s, woken = time.perf_counter(), set(self._woken)
        self._fleet = await self._ledger.fleet.look()
        self.sight.look(self._fleet.now_us, self._ledger.store.longest_stall_us())
        self._tell_strain()
        self._ledger.events.workers_seen(self._fleet.workers, self._fleet.now_us, self.sight.blind)
        names = self._take_due(woken) if job is None else [job]
        if job is None and self._passes % _BAD_PASSES == 0:
            self._bad_due = set(names)
        gate, away = asyncio.Semaphore(_JOBS_AT_ONCE), list[StoreUnavailable]()

        async def look(name: str) -> None:
            async with gate:
                if away:  # each of the others would wait for it as long; what woke them is kept
                    self._woken.setdefault(name, None)
                    raise away[0]
                asked_s = time.monotonic()
                try:
                    await self._pass_over(name)
                except StoreUnavailable as error:
                    if time.monotonic() - asked_s >= _HANGS_S:
                        away.append(error)
                    raise

        results = await asyncio.gather(*(look(name) for name in names), return_exceptions=True)
        _tell_failures(dict(zip(names, results, strict=True)))
        if job is None:
            self._end_pass()
            if self._passes % _FORGET_PASSES == 0 and not self.sight.blind:
                await self._forget()
        self.sight.looked(self.now_us())
        self._ledger.pass_took(time.perf_counter() - begun_s)

    def _tell_strain(self) -> None:
        if self._strained == self.sight.strained:
            return
        self._strained = self.sight.strained
        if self._strained:
            note = "fewer are asked for, and none counts as dead for want of them; add a coordinator or lengthen heartbeat_s"
            self._ledger.events.add("overloaded", f"heartbeats are answered too late: {note}", level="warning")
            log.warning("overloaded", what="heartbeats are answered later than workers wait", note=note)
        else:
            self._ledger.events.add("overload_over", "heartbeats have been answered in time for a while")
            log.info("overload_over")

    async def _forget(self) -> None:
        await self._ledger.fleet.forget(self._fleet, _FORGET_WORKERS_US)
        found = [name for name in sorted(self._fleet.jobs) if name not in self._jobs or self._is_old(self._jobs[name])]
        now_us = self._clock_us()
        self._old_since_us = {name: self._old_since_us.get(name, now_us) for name in found}
        old = [name for name, since_us in self._old_since_us.items() if now_us - since_us >= _FORGET_AFTER_US]
        results = await asyncio.gather(*(self._ledger.forget_job(name, self._keep_us) for name in old), return_exceptions=True)
        _tell_failures(dict(zip(old, results, strict=True)))

    def _is_old(self, job: JobState) -> bool:
        return last_used_us(job) + keep_us(job, self._keep_us) < self._fleet.now_us

    async def run(self) -> None:
        """Make passes for ever; a store that is away is waited for, and told once."""
        hints = asyncio.create_task(self._listen(), name="hints")
        feeling = asyncio.create_task(self.sight.feel(), name="feel-the-loop")
        try:
            while True:
                begun = time.monotonic()
                await self._pass_or_tell()
                # Where that takes longer than a tick, calls and the jobs that were woken have as much time as it, up to a tick.
                ended = time.monotonic()
                due = max(begun + self._tick_s, ended + min(ended - begun, self._tick_s))
                while time.monotonic() < due:
                    await asyncio.sleep(_LEAST_PAUSE_S)
                    # Only the waiting is cut short, never a request to the store.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(due - time.monotonic()):
                            await self._wake.wait()
                    self._wake.clear()
                    # Not longer: some may change all the time, and the others must not wait for them.
                    while self._woken and time.monotonic() < due:
                        job = next(iter(self._woken))
                        del self._woken[job]
                        await self._pass_or_tell(job)
        finally:
            await end(hints, feeling)

    async def _pass_or_tell(self, job: str | None = None) -> None:
        try:
            await self.refresh(job)
            if self._ledger.store.refuses:  # full, a replica, or short of replicas: it can be read, and nothing can be changed
                await self._ledger.store.ping()
        except HeadraceError as error:
            self.store_error = error.message
            if self._failing_since_us is None:
                self._failing_since_us = self._clock_us()
                self._ledger.events.add("store_lost", error.message, level="warning")
                log.warning("store_lost", error=str(error), note="tried again at every tick; leases are kept")
        else:
            self.store_error = ""
            if self._failing_since_us is not None:
                self._ledger.events.add("store_found", f"the store answers again, after {self.failing_s:.0f} s")
                log.info("store_found", after_s=round(self.failing_s, 1))
                self._failing_since_us, self.store_weaknesses = None, None  # it may be another one
            await self._ask_weaknesses()

    async def _ask_weaknesses(self) -> None:
        """At first and after an outage; while there are some, now and then, since somebody may mend them."""
        before, now_us = self.store_weaknesses, self._clock_us()
        if before is None or (before and now_us >= self._asked_us + _WEAKNESS_US):
            self._asked_us = now_us
            self.store_weaknesses = await self._ledger.store.weaknesses()
            for weakness in set(self.store_weaknesses).difference(before or ()):
                self._ledger.events.add("store_unfit", f"the store {weakness}", level="warning")
                log.warning("store_unfit", what=f"the store {weakness}")

    @property
    def healthy(self) -> bool:
        """True once all jobs were read, and while the store answers."""
        return self.loaded and self._failing_since_us is None

    @property
    def failing_s(self) -> float:
        """How long passes have been failing; 0 while they don't."""
        return (self._clock_us() - self._failing_since_us) / 1e6 if self._failing_since_us is not None else 0.0

    def _take_due(self, before: set[str]) -> list[str]:
        """What a pass over all looks at, with those that were woken. before: woken when it began: no hint of no job is kept."""
        woken = self._woken.keys() & self._fleet.jobs
        for name in woken | before:
            self._woken.pop(name, None)
        return sorted(self._due() | woken)

    def _due(self) -> set[str]:
        if self._passes % _IDLE_PASSES == 0:
            return set(self._fleet.jobs)
        return {name for name in self._fleet.jobs if name not in self._jobs or self._in_use(self._jobs[name])}

    def _in_use(self, job: JobState) -> bool:
        if job.session is None:
            return False
        return any(lane.owner for lane in job.lanes.values()) or active(
            job.session, job.ranks, self.now_us(), self._ledger.rules
        )

    async def _pass_over(self, name: str) -> None:
        tick = Tick(0, blind=self.sight.blind, heard_us=self._fleet.now_us)
        outcome = await self._ledger.update(name, tick, workers=self._fleet.workers)
        before, state = self._jobs.get(name), outcome.state
        self._ledger.events.job_changed(before, state)
        if state.job is None and state.session is None:
            self._drop(name)
            return
        self._jobs[name] = state
        self._holdings.note(name, state.lanes)
        # At once: were anything between to fail, the next pass would see no difference any more.
        seen = seen_by_watchers(state)
        if self._seen.get(name) != seen:
            self._seen[name] = seen
            self._tables.drop(name)
            self._changed.pop(name, asyncio.Event()).set()
        self.recent.note_lanes(state)
        for rank, record in state.members.items():
            self.recent.note(name, rank, record)
        if state.session is not None and (name not in self.bad_reasons or name in self._bad_due):
            self._bad_due.discard(name)
            await self._count_bad(name)

    async def _count_bad(self, name: str) -> None:
        """For metrics alone: a list that cannot be read is told once, and keeps nothing else of the job from going on."""
        try:
            self.bad_reasons[name] = (await self._ledger.quarantine.of(name)).by_reason()
            self._bad_unread.discard(name)
        except HeadraceError as error:
            self.bad_reasons.setdefault(name, Counter())
            if name not in self._bad_unread:
                self._bad_unread.add(name)
                log.warning("bad_samples_unread", job=name, error=str(error), note="counted as they were; tried again")

    def _end_pass(self) -> None:
        self._passes += 1
        self.loaded = True
        for name in self._jobs.keys() - self._fleet.jobs:
            self._drop(name)
        self.recent.keep({(job.name, rank, r.nonce) for job in self._jobs.values() for rank, r in job.members.items()})
        if not self.sight.blind:  # or the fleet would be told to shrink, since nobody seems to train
            self.scaling.look(self._jobs.values(), self._fleet.workers, self._fleet.now_us, self._ledger.rules)

    def _drop(self, name: str) -> None:
        self._jobs.pop(name, None)
        self._woken.pop(name, None)  # were it opened again just now, it would be looked at as a new one
        self._tables.drop(name)
        self._seen.pop(name, None)
        self._holdings.drop(name)
        self._changed.pop(name, asyncio.Event()).set()
        self.bad_reasons.pop(name, None)
        self._bad_due.discard(name)
        self._bad_unread.discard(name)
        self._ledger.forget(name)

    async def end(self) -> None:
        """End the passes and looks at the fleet that go on for nobody any more; before the store is closed."""
        await self._shared.end()
        await self._ledger.end()

    async def _listen(self) -> None:
        while True:
            try:
                async for job in self._ledger.store.hints():
                    self.wake(job)
            except StoreUnavailable:
                pass  # told by the passes, which need the same store
            await asyncio.sleep(_HINT_PAUSE_S)


def _tell_failures(results: Mapping[str, object]) -> None:
    """One job that cannot be ticked must not stop the others. Raises StoreUnavailable if that is why."""
    for job, result in results.items():
        if isinstance(result, StoreUnavailable):
            raise result
        if isinstance(result, HeadraceError):
            log.warning("tick_failed", job=job, error=str(result))
        elif isinstance(result, BaseException):
            log.error("tick_failed", job=job, exc_info=result)
