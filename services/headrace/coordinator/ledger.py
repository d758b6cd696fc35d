"""The shell around the rules: load records, apply an event, write by compare-and-set, then do the effects.

Nothing is remembered between calls but what makes them cheaper, so any replica can serve any call. One event loop.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from headrace.coordinator.instruments import Instruments
from headrace.coordinator.store import Key, Loaded, Store, Table
from headrace.core import records
from headrace.core.errors import StoreConflict, StoreUnavailable
from headrace.core.events import BadSample, Effect, Event, JobState, Join, LaneMoved, Note, RecordBad, Refuse, Rules, Tick
from headrace.core.job import JobSpec
from headrace.core.lease import beat
from headrace.core.records import WorkerRecord
from headrace.core.session_state import NEEDS, apply
from headrace.wire import slot_format

log = structlog.get_logger()

WORKERS = Table("fleet", "workers")
JOBS = Table("fleet", "jobs")
MAX_BAD_SAMPLES = 10_000
_ATTEMPTS = 20
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1

T = TypeVar("T")


def job_table(job: str, kind: str) -> Table:
    """A table of one job: main (job, session), lanes, ranks or bad."""
    return Table(f"job:{job}", kind)


def slot_bytes_of(spec: JobSpec) -> int:
    """Bytes of one slot of a job's slabs."""
    meta = slot_format.max_meta_bytes(spec.batch_size, spec.max_key_bytes, spec.max_label_bytes, spec.label_width)
    return slot_format.slot_bytes(spec.pipeline.pixel_bytes(spec.batch_size), meta)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers' records and all jobs' names at one moment."""

    now_us: int
    workers: Mapping[str, WorkerRecord]
    jobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an update came to. changed: other parties need to know (more than a rank's own numbers was written)."""

    state: JobState
    effects: Sequence[Effect]
    now_us: int
    changed: bool


class Ledger:
    """Reads and writes all records. on_change(job) is called after each write that others need to know of."""

    def __init__(self, store: Store, rules: Rules, instruments: Instruments) -> None:
        self.store = store
        self.rules = rules
        self._instruments = instruments
        self._indexed: set[str] = set()
        self.on_change: Callable[[str], None] = lambda _: None

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def update(
        self, job: str, event: Event, rank: int | None = None, workers: Mapping[str, WorkerRecord] | None = None
    ) -> Outcome:
        """Apply an event to a job. rank: whose record the event needs. workers: loaded already.

        Raises what the rules raise, StoreUnavailable, or StoreConflict where others kept writing first.
        """
        needs = NEEDS[type(event)]
        if "workers" in needs and workers is None:
            workers = (await self.fleet()).workers
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS):
            loaded = await self._timed(self.store.load(_wanted(job, needs, rank)))
            state = _decode(job, loaded, workers or {})
            if isinstance(event, Join | Tick) and state.job is not None:
                event = replace(event, slot_bytes=slot_bytes_of(state.job.spec))
            new, effects = apply(state, event, loaded.now_us, self.rules)
            writes, changed = _writes(state, new)
            if not writes or await self._commit(job, loaded, writes, changed):
                await self._after(new, effects, changed)
                return Outcome(new, effects, loaded.now_us, changed)
            self._instruments.conflict()
            await asyncio.sleep(pause_s * random.random())  # noqa: S311 - spreads retries
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise StoreConflict(f"others kept writing job {job} first, {_ATTEMPTS} times in a row; repeat the call", job=job)

    async def _commit(self, job: str, loaded: Loaded, writes: Mapping[Key, bytes | None], changed: bool) -> bool:
        main = job_table(job, "main")
        guarded = [Key(main, "job"), Key(main, "session"), *writes]
        expected = {key: _stamp(loaded, key) for key in guarded}
        return await self._timed(self.store.commit(expected, writes, job if changed else ""))

    async def _after(self, state: JobState, effects: Sequence[Effect], changed: bool) -> None:
        job = state.name
        if state.job is not None and job not in self._indexed:
            await self._index(job)
        for effect in effects:
            match effect:
                case RecordBad(samples):
                    await self._record_bad(job, samples)
                case LaneMoved(lane, owner, to, token, reason):
                    self._instruments.lane_moved(job, reason)
                    log.info("lane_moved", job=job, lane=lane, worker=to, previous=owner, token=token, reason=reason)
                case Note(event, ids):
                    log.info(event, job=job, **dict(ids))
        if changed:
            self.on_change(job)
        for effect in effects:
            if isinstance(effect, Refuse):
                raise effect.error

    async def _index(self, job: str) -> None:
        """Name the job where ticks look for jobs: lost with the store, it comes back with the first call for the job."""
        fleet = await self.fleet()
        if job not in fleet.jobs:
            await self._timed(self.store.commit({}, {Key(JOBS, job): b"1"}))
        self._indexed.add(job)

    async def _record_bad(self, job: str, samples: Sequence[BadSample]) -> None:
        items = {f"{bad.epoch}:{bad.sample}": json.dumps([bad.key, bad.reason]).encode() for bad in samples}
        await self._timed(self.store.add_once(job_table(job, "bad"), items, MAX_BAD_SAMPLES))

    async def bad_samples(self, job: str) -> tuple[list[BadSample], int]:
        """The bad samples noted for a job, by epoch and id, and how many more were only counted."""
        table = job_table(job, "bad")
        found = dict((await self._timed(self.store.load({table: None}))).tables[table])
        beyond = found.pop("beyond", None)
        samples = []
        for field, record in found.items():
            epoch, _, sample = field.partition(":")
            samples.append(BadSample(int(epoch), int(sample), *json.loads(record.data)))
        return sorted(samples, key=lambda bad: (bad.epoch, bad.sample)), int(beyond.data) if beyond else 0

    # --- fleet --------------------------------------------------------------------------------------------------------

    async def fleet(self) -> Fleet:
        """All workers and the names of all jobs. What the index lost is put back by the next call for the job."""
        loaded = await self._timed(self.store.load({WORKERS: None, JOBS: None}))
        workers = {name: records.worker_from_bytes(record.data) for name, record in loaded.tables[WORKERS].items()}
        jobs = frozenset(loaded.tables[JOBS])
        self._indexed &= jobs
        return Fleet(loaded.now_us, workers, jobs)

    async def heartbeat(self, new: WorkerRecord, ttl_us: int) -> tuple[WorkerRecord | None, WorkerRecord]:
        """Record a worker's sign of life; returns the record before and after. Raises StaleToken for a replaced process."""
        name = new.endpoint.worker
        key = Key(WORKERS, name)
        for _ in range(_ATTEMPTS):
            loaded = await self._timed(self.store.load({WORKERS: [name]}))
            found = loaded.tables[WORKERS].get(name)
            old = records.worker_from_bytes(found.data) if found else None
            record = beat(old, replace(new, alive_until_us=loaded.now_us + ttl_us), loaded.now_us)
            if await self._timed(self.store.commit({key: _stamp(loaded, key)}, {key: records.encode(record)})):
                return (old if old is not None and old.alive(loaded.now_us) else None), record
            self._instruments.conflict()
        raise StoreConflict(f"worker {name}: another process writes the same record; give each worker its own id", worker=name)

    async def forget_workers(self, fleet: Fleet, after_us: int) -> None:
        """Remove the records of workers that have been dead for long."""
        gone = [name for name, worker in fleet.workers.items() if fleet.now_us > worker.alive_until_us + after_us]
        if gone:
            await self._timed(self.store.commit({}, {Key(WORKERS, name): None for name in gone}))

    async def _timed(self, call: Awaitable[T]) -> T:
        begun = time.perf_counter()
        try:
            return await call
        except StoreUnavailable:
            self._instruments.store_failed("unavailable")
            raise
        finally:
            self._instruments.store_took(time.perf_counter() - begun)


def _wanted(job: str, needs: frozenset[str], rank: int | None) -> dict[Table, Sequence[str] | None]:
    wanted: dict[Table, Sequence[str] | None] = {job_table(job, "main"): None}
    if "lanes" in needs:
        wanted[job_table(job, "lanes")] = None
    if "ranks" in needs:
        wanted[job_table(job, "ranks")] = None
    elif "rank" in needs:
        wanted[job_table(job, "ranks")] = [str(rank)]
    return wanted


def _decode(job: str, loaded: Loaded, workers: Mapping[str, WorkerRecord]) -> JobState:
    main = loaded.tables[job_table(job, "main")]
    lanes = loaded.tables.get(job_table(job, "lanes"), {})
    ranks = loaded.tables.get(job_table(job, "ranks"), {})
    return JobState(
        name=job,
        job=records.job_from_bytes(main["job"].data) if "job" in main else None,
        session=records.session_from_bytes(main["session"].data) if "session" in main else None,
        lanes={int(field): records.lane_from_bytes(record.data) for field, record in lanes.items()},
        ranks={int(field): records.rank_from_bytes(record.data) for field, record in ranks.items()},
        workers=workers,
    )


def _writes(old: JobState, new: JobState) -> tuple[dict[Key, bytes | None], bool]:
    """Records that differ, and whether anybody but the rank itself needs to know."""
    writes: dict[Key, bytes | None] = {}
    main = job_table(new.name, "main")
    if new.job is not None and new.job != old.job:
        writes[Key(main, "job")] = records.encode(new.job)
    if new.session is not None and new.session != old.session:
        writes[Key(main, "session")] = records.encode(new.session)
    lanes = job_table(new.name, "lanes")
    for number, lane in new.lanes.items():
        if lane != old.lanes.get(number):
            writes[Key(lanes, str(number))] = records.encode(lane)
    changed = bool(writes)
    ranks = job_table(new.name, "ranks")
    for number, rank in new.ranks.items():
        before = old.ranks.get(number)
        if rank != before:
            writes[Key(ranks, str(number))] = records.encode(rank)
            changed = (
                changed
                or before is None
                or (rank.attempt, rank.nonce, rank.left) != (before.attempt, before.nonce, before.left)
            )
    return writes, changed


def _stamp(loaded: Loaded, key: Key) -> int:
    record = loaded.tables.get(key.table, {}).get(key.field)
    return record.stamp if record else 0
