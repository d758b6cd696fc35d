"""The records of all workers, and the names of all jobs: read as one, written by heartbeats. One event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from headrace.coordinator.instruments import Instruments
from headrace.coordinator.shared import Shared
from headrace.coordinator.store import Key, Stored, Table
from headrace.coordinator.timed_store import TimedStore
from headrace.core import records
from headrace.core.errors import RecordInvalid, StoreConflict
from headrace.core.events import Rules
from headrace.core.fleet import Roster
from headrace.core.job import NAME_PATTERN
from headrace.core.lease import beat
from headrace.core.records import WorkerRecord, not_from_the_future

log = structlog.get_logger()

WORKERS = Table("fleet", "workers")
JOBS = Table("fleet", "jobs")
_ATTEMPTS = 20
_WORKERS_A_TURN = 500
_MAX_REMEMBERED = 10_000
_MENDED_A_LOOK = 100
_FORGOTTEN_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers' records and all jobs' names at one moment."""

    now_us: int
    workers: Mapping[str, WorkerRecord]
    jobs: frozenset[str]


class FleetLedger:
    """See the module. A worker's next sign of life is written on top of its last one, without loading, where that can be."""

    def __init__(self, store: TimedStore, rules: Rules, instruments: Instruments) -> None:
        self._store = store
        self._rules = rules
        self._instruments = instruments
        self._last_beats: dict[str, Stored] = {}
        self._unreadable: dict[str, int] = {}
        self._named: set[str] = set()
        self._looks: Shared[None, Fleet] = Shared(lambda _: self._load(), asyncio.Lock())

    async def end(self) -> None:
        """End looks that nobody waits for any more."""
        await self._looks.end()

    async def look(self) -> Fleet:
        """All workers and the names of all jobs. What the index lost is put back by the next call for the job.

        Those who ask at once share one answer: a thousand ranks that join would each read ten thousand workers.
        """
        return await self._looks.run(None)

    async def _load(self) -> Fleet:
        loaded = await self._store.load({WORKERS: None, JOBS: None})
        workers, mended = dict[str, WorkerRecord](), dict[str, int]()
        for count, (name, record) in enumerate(loaded.tables[WORKERS].items()):
            if count % _WORKERS_A_TURN == _WORKERS_A_TURN - 1:
                await asyncio.sleep(0)  # calls are answered meanwhile: a heartbeat waits for a second at most
            if (worker := self._worker(name, record)) is not None:
                workers[name] = not_from_the_future(worker, loaded.now_us, self._rules.worker_ttl_us)
                if workers[name] is not worker:
                    mended[name] = record.stamp
        # The store's clock was put back. A heartbeat that came since goes before: who lives needs no mending, and everybody
        # waits for this, so that it is done bit by bit.
        for name, stamp in islice(mended.items(), _MENDED_A_LOOK):
            key = Key(WORKERS, name)
            await self._store.commit({key: stamp}, {key: records.encode(workers[name])})
        jobs = frozenset(name for name in loaded.tables[JOBS] if NAME_PATTERN.fullmatch(name))
        self._named &= jobs
        return Fleet(loaded.now_us, Roster(workers), jobs)

    async def name_job(self, job: str) -> None:
        """Name the job where ticks look for jobs: lost with the store, it comes back with the first call for the job."""
        if job in self._named:
            return
        if job not in (await self.look()).jobs:
            await self._store.commit({}, {Key(JOBS, job): b"1"})
        self._named.add(job)

    async def unname_job(self, job: str) -> None:
        """Have no tick look at a job any more."""
        await self._store.commit({}, {Key(JOBS, job): None})

    def _worker(self, name: str, record: Stored | None) -> WorkerRecord | None:
        """A worker's record; None, told once, where another version wrote what this one cannot read."""
        try:
            return records.worker_from_bytes(record.data) if record else None
        except RecordInvalid as error:
            if record and self._unreadable.get(name) != record.stamp:
                if len(self._unreadable) >= _MAX_REMEMBERED:
                    self._unreadable.clear()
                self._unreadable[name] = record.stamp
                log.warning("worker_record_unreadable", worker=name, error=str(error))
            return None

    async def heartbeat(self, new: WorkerRecord, ttl_us: int) -> tuple[WorkerRecord | None, WorkerRecord]:
        """Record a worker's sign of life; returns the record before and after. Raises StaleToken for a replaced process."""
        name = new.endpoint.worker
        key = Key(WORKERS, name)
        found = self._last_beats.pop(name, None)
        now_us = self._store.now_us()
        for _ in range(_ATTEMPTS):
            if found is None:
                loaded = await self._store.load({WORKERS: [name]})
                found, now_us = loaded.tables[WORKERS].get(name), loaded.now_us
            old = self._worker(name, found)
            record = beat(old, replace(new, alive_until_us=now_us + ttl_us), now_us)
            data = records.encode(record)
            if stamp := await self._store.commit({key: found.stamp if found else 0}, {key: data}):
                if len(self._last_beats) >= _MAX_REMEMBERED:
                    self._last_beats.clear()
                self._last_beats[name] = Stored(stamp, data)
                return (old if old is not None and old.alive(now_us) else None), record
            self._instruments.conflict()
            found = None
        raise StoreConflict(f"worker {name}: another process writes the same record; give each worker its own id", worker=name)

    async def forget(self, fleet: Fleet, after_us: int) -> None:
        """Remove the records of workers that have been dead for long."""
        names = (name for name, worker in fleet.workers.items() if fleet.now_us > worker.alive_until_us + after_us)
        if not (gone := list(islice(names, _FORGOTTEN_AT_ONCE))):
            return
        # One may have come back since the fleet was read.
        found = (await self._store.load({WORKERS: gone})).tables[WORKERS]
        dead = {
            Key(WORKERS, name): record.stamp
            for name, record in found.items()
            if self._worker(name, record) == fleet.workers[name]
        }
        if dead:
            await self._store.commit(dead, dict.fromkeys(dead))
