"""The worker's scheduler: decides which batch is made next, and sees it through.

It listens to ports (connected ranks) and to leases. What may be made is what a connected rank wants (its credit window)
in a lane that this worker holds. Within a job the lowest (epoch, batch) goes first, so that the batch that some rank
waits for is never behind one that none waits for yet; between jobs the one that has had the least engine time goes
first, so that an evaluation and a training share the worker.

Everything here runs on the event loop thread but the engine, which runs on `executor`, as many batches at a time as it says
(GPUs overlap them; the cpu engine begins with a second one while threads would idle). Batches in flight are bounded in number
(reads run ahead of the engine), their memory by the ports' slots.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from headrace.core.errors import GpuLost, HeadraceError, Ids, SessionSuperseded, SessionUnknown, WorldMismatch, from_code
from headrace.core.job import JobSpec
from headrace.core.session_plan import Position
from headrace.worker.budget import ByteBudget
from headrace.worker.make_batch import Made, Order, Workshop, make_batch
from headrace.worker.pixel_places import PixelPlaces
from headrace.worker.ports import OutPort, Room
from headrace.worker.stats import WorkerStats
from headrace.worker.turns import EngineTurns
from headrace.worker.work import Sessions, SessionWork

log = structlog.get_logger()

# How long a HELLO waits for a session that this worker has not heard of yet; heartbeats come more often than that.
ADMIT_DEADLINE_S = 2.0
# Reads of a batch that take so long count as lagging: far above what an object store needs, far below the reads' deadline.
READ_LAG_S = 15.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on work in flight; see worker.settings. batches_at_once, engine_memory: the engine's."""

    batches_in_flight: int = 3
    read_ahead_bytes: int = 1 << 30
    read_deadline_s: float = 120.0
    batches_at_once: int = 1
    engine_memory: frozenset[str] = frozenset({"host"})


@dataclass(eq=False)
class _PortState:
    """A connected rank. opened_s: since when. free_since: index -> when its slot became free. building: indexes in flight."""

    port: OutPort
    opened_s: float
    free_since: dict[int, float] = field(default_factory=dict)
    building: dict[int, Order] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Candidate:
    order: tuple[int, int]  # (epoch, batch)
    state: _PortState
    index: int
    position: Position
    work: SessionWork


class Producer:
    """See the module. Implements worker.ports.PortListener."""

    def __init__(self, worker: str, fingerprint: str, sessions: Sessions, stats: WorkerStats, limits: Limits) -> None:
        self._worker = worker
        self._fingerprint = fingerprint
        self._sessions = sessions
        self._stats = stats
        self._limits = limits
        self._ports: dict[OutPort, _PortState] = {}
        self._tasks: dict[asyncio.Task[None], SessionWork] = {}
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(limits.batches_at_once, thread_name_prefix="headrace-engine")
        self._budgets: dict[str, ByteBudget] = {}
        stats.occupancy(self._slots, self._begun)
        stats.read_ahead(lambda: sum(budget.held_bytes for budget in list(self._budgets.values())))
        turns = EngineTurns(limits.batches_at_once)
        self._places = PixelPlaces(limits.engine_memory)
        self._shop = Workshop(self._executor, turns, limits.read_deadline_s, stats.gpu_memory_full, self._places)
        self._used_s: dict[str, float] = {}
        self._draining = False
        self._lost: GpuLost | None = None

    # --- worker.ports.PortListener -----------------------------------------------------------------------------------

    async def admit(self, job: str, attempt: int, rank: int, nonce: str) -> Room:
        """See PortListener."""
        work = self._sessions.by_key.get((job, attempt)) or await self._sessions.wait_for((job, attempt), ADMIT_DEADLINE_S)
        newest = self._sessions.newest_attempt(job)
        if newest > attempt:
            raise SessionSuperseded(
                f"attempt {attempt} of job {job!r} was superseded by {newest}", job=job, attempt=attempt, newest=newest
            )
        if work is None:
            if (job, attempt) in self._sessions.broken:
                raise self._sessions.broken[job, attempt]
            raise SessionUnknown(
                f"worker {self._worker} serves no lane of job {job!r} attempt {attempt} yet: retry", job=job, attempt=attempt
            )
        if rank >= work.session.world:
            raise WorldMismatch(
                f"rank {rank} is outside world size {work.session.world}", job=job, rank=rank, world=work.session.world
            )
        return Room(work.slot_bytes, work.session.window, work.pixel_bytes)

    def opened(self, port: OutPort) -> None:
        """See PortListener."""
        now = time.monotonic()
        state = self._ports[port] = _PortState(port, now)
        self._note_window(state, now)
        self._stats.connected(port.transport, 1, port.slab_bytes)
        self._wake.set()

    def advanced(self, port: OutPort) -> None:
        """See PortListener."""
        state = self._ports.get(port)
        if state is not None:
            self._note_window(state, time.monotonic())
        self._wake.set()

    def closed(self, port: OutPort) -> None:
        """See PortListener."""
        if self._ports.pop(port, None) is not None:
            self._stats.connected(port.transport, -1, -port.slab_bytes)

    # --- leases ------------------------------------------------------------------------------------------------------

    def leases_changed(self) -> None:
        """Tell the scheduler that sessions or leases are others now."""
        self._wake.set()

    def grant_windows(self) -> None:
        """Ranks that were connected before this worker heard that their session's window grew connect anew."""
        for port in list(self._ports):
            if work := self._sessions.by_key.get((port.job, port.attempt)):
                port.grant(work.session.window)

    def end_session(self, session: tuple[str, int], reason: str) -> None:
        """Close the connections of its ranks; what is being made for them is thrown away."""
        for port in list(self._ports):
            if (port.job, port.attempt) == session:
                port.close(reason)

    def serves(self, session: tuple[str, int]) -> bool:
        """True while a rank of that session is connected."""
        return any((port.job, port.attempt) == session for port in self._ports)

    def jobs_in_flight(self) -> list[JobSpec]:
        """The jobs whose batches are being made."""
        return [work.session.job for work in self._tasks.values()]

    def lagging(self, behind_s: float) -> list[tuple[str, int, float]]:
        """(job, lane, seconds) where a rank's very next batch has been wanted from here for longer, and is not being made.

        One that has its bytes is not lagging, however long the engine takes: taking its lane away would throw the work away.
        One whose reads take long is: another worker may reach the data better.
        """
        now = time.monotonic()
        found: dict[tuple[str, int], float] = {}
        for state in self._ports.values():
            index = state.port.next_index
            work = self._sessions.by_key.get((state.port.job, state.port.attempt))
            position = work.locate(state.port.rank, index) if work else None
            if work is None or position is None or position.lane not in work.leases or not state.port.wants(index):
                continue
            order = state.building.get(index)
            if order is not None and (order.read_s is not None or now - order.started_s < READ_LAG_S):
                continue
            behind = now - max(state.free_since.get(index, now), work.leases[position.lane].since_s)
            if behind > behind_s:
                key = (state.port.job, position.lane)
                found[key] = max(found.get(key, 0.0), behind)
        return [(job, lane, behind) for (job, lane), behind in found.items()]

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start batches until `drain`; ends when it is cancelled or drained. Raises GpuLost: the process is to end then."""
        while not self._draining:
            await self._wake.wait()
            self._wake.clear()
            if self._lost is not None:
                raise self._lost
            while not self._draining and self._start_next():
                pass

    async def finish(self, deadline_s: float) -> int:
        """Start nothing new and wait for what is in flight, at most `deadline_s`; returns how many batches are still."""
        self._draining = True
        self._wake.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=deadline_s)
        return len(self._tasks)

    async def drain(self, deadline_s: float) -> bool:
        """As `finish`, and give up what is left then. False if the engine may still be at it: its threads cannot be ended."""
        await self.finish(deadline_s)
        left = list(self._tasks)
        for task in left:
            log.warning("batch_abandoned", task=task.get_name(), reason="the worker leaves")
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5)
        return not left

    def close(self) -> None:
        """Free the engine's threads; call after `drain`. Waits for what the engine works at."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._places.close()

    def _start_next(self) -> bool:
        busy = Counter(work.session.job.name for work in self._tasks.values())
        room = len(self._tasks) < self._limits.batches_in_flight
        if not room and all(busy[port.job] for port in self._ports):
            return False
        for candidate in self._candidates():
            # A job with nothing in flight may begin one batch beyond the limit: reads of another that hang must not starve it.
            if not room and busy[candidate.work.session.job.name]:
                continue
            slot = candidate.state.port.acquire(candidate.index)
            if slot is None:
                continue
            self._start(candidate, slot)
            return True
        return False

    def _candidates(self) -> list[_Candidate]:
        """What may be made now, in the order in which it should be."""
        by_job: dict[str, list[_Candidate]] = {}
        for state in self._ports.values():
            port = state.port
            work = self._sessions.by_key.get((port.job, port.attempt))
            if work is None or port.closed:
                continue
            for index in state.free_since:
                if index in state.building or not port.wants(index):
                    continue
                position = work.locate(port.rank, index)
                if position is not None and position.lane in work.leases:
                    found = _Candidate((position.epoch, position.batch), state, index, position, work)
                    by_job.setdefault(port.job, []).append(found)
        self._level(set(by_job))
        ordered: list[_Candidate] = []
        for job in sorted(by_job, key=lambda name: self._used_s[name]):
            ordered.extend(sorted(by_job[job], key=lambda candidate: candidate.order))
        return ordered

    @staticmethod
    def _note_window(state: _PortState, now: float) -> None:
        """Keep, for each index of the window, since when its slot is free."""
        first = state.port.next_index
        window = range(first, first + state.port.window)
        for index in [index for index in state.free_since if index < first]:
            del state.free_since[index]
        for index in window:
            state.free_since.setdefault(index, now)

    def _level(self, active: set[str]) -> None:
        """A job that comes (back) starts level with the one that has had least: idle time earns no claim."""
        known = [self._used_s[job] for job in active if job in self._used_s]
        floor = min(known, default=0.0)
        for job in active:
            self._used_s.setdefault(job, floor)
        for job in [job for job in self._used_s if job not in active and not any(port.job == job for port in self._ports)]:
            del self._used_s[job]

    def _start(self, candidate: _Candidate, slot: memoryview) -> None:
        lease = candidate.work.leases[candidate.position.lane]
        now = time.monotonic()
        order = Order(
            work=candidate.work,
            rank=candidate.state.port.rank,
            index=candidate.index,
            position=candidate.position,
            token=lease.token,
            slot=slot,
            worker=self._worker,
            fingerprint=self._fingerprint,
            # To a rank that is not connected a lease is of no use: both have to be there.
            leased_s=max(lease.since_s, candidate.state.opened_s),
            slot_free_s=candidate.state.free_since[candidate.index],
            started_s=now,
            device=candidate.state.port.device_place(candidate.index),
        )
        candidate.state.building[candidate.index] = order
        candidate.state.port.started(candidate.index, lease.token)
        task = asyncio.create_task(
            self._make(candidate, order), name=f"batch-{candidate.position.epoch}-{candidate.position.batch}"
        )
        self._tasks[task] = candidate.work
        task.add_done_callback(self._finished)

    async def _make(self, candidate: _Candidate, order: Order) -> None:
        port, index = candidate.state.port, candidate.index
        job = candidate.work.session.job
        try:
            made = await make_batch(order, self._shop, self._budget(job.name))
        except GpuLost as error:
            # No batch's fault: the lane's next owner makes it, and this process can make nothing more.
            self._stats.failed(job.name, error.code)
            port.abandon(index)
            if self._lost is None:
                log.error("gpu_lost", error=error.message, note="the worker hands its lanes back and ends")
                self._lost = error
            self._wake.set()
            return
        except HeadraceError as error:
            told = _with_place(error, order)
            log.error("batch_failed", index=index, error=told.message, code=told.code, **told.ids)
            self._stats.failed(job.name, error.code)
            port.abandon(index)
            if not port.closed:
                port.fail(index, told)
            return
        except Exception as error:
            # A bug of ours or of a library: the rank must not wait for a batch that would fail again for ever.
            port.abandon(index)
            if not port.closed:
                port.fail(index, HeadraceError(f"worker {self._worker} failed inside: {error!r}; see its log", job=job.name))
            raise
        except asyncio.CancelledError:
            port.abandon(index)
            raise
        finally:
            del candidate.state.building[index]
        self._used_s[job.name] = self._used_s.get(job.name, 0.0) + made.busy_s
        self._publish(candidate, order, made)

    def _budget(self, job: str) -> ByteBudget:
        """Each job has its own: reads of one that hang must not hold up the others'."""
        for name in [name for name, budget in self._budgets.items() if name != job and not budget.held_bytes]:
            if not any(port.job == name for port in self._ports):
                del self._budgets[name]
        return self._budgets.setdefault(job, ByteBudget(self._limits.read_ahead_bytes))

    def _publish(self, candidate: _Candidate, order: Order, made: Made) -> None:
        port = candidate.state.port
        self._stats.made(candidate.work.session.job.name, candidate.work.session.job.batch_size, port.transport, made)
        lease = candidate.work.leases.get(order.position.lane)
        if port.closed or lease is None or lease.token != order.token:
            # The lane has moved on: its new owner makes this batch, and the rank would refuse our token.
            port.abandon(order.index)
            self._stats.outrun(candidate.work.session.job.name)
            return
        port.publish(order.index, order.token, made.total_bytes)
        self._stats.published(time.monotonic() - made.augmented_s)

    def _slots(self) -> Counter[tuple[str, str, str]]:
        """Slots by (job, transport, state); any thread."""
        found = Counter[tuple[str, str, str]]()
        for port in list(self._ports):
            for state, count in port.slot_states()._asdict().items():
                found[port.job, port.transport, state] += count
        return found

    def _begun(self) -> Counter[str]:
        """Batches in flight by state; any thread."""
        orders = [order for state in list(self._ports.values()) for order in list(state.building.values())]
        return Counter("reading" if order.read_s is None else "engine" for order in orders)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("producer_bug", task=task.get_name(), exc_info=task.exception())


def _with_place(error: HeadraceError, order: Order) -> HeadraceError:
    """The same error with the batch that it keeps from coming among its ids."""
    place: Ids = {
        "job": order.work.session.job.name,
        "rank": order.rank,
        "epoch": order.position.epoch,
        "batch": order.position.batch,
        "worker": order.worker,
    }
    return from_code(error.code, error.message, {**place, **error.ids})
