"""The shell around the rules of jobs: load records, apply an event, write by compare-and-set, then do the effects.

Any replica can serve any call. What is remembered between calls only makes them cheaper: a rank's next report
is first written on top of its last one, without loading; should anything have changed since, the compare-and-set refuses it,
and the call goes the long way. One event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import structlog

from headrace.coordinator.fleet_ledger import FleetLedger
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.job_tables import (
    decode,
    decode_lanes,
    differences,
    job_table,
    keep_us,
    last_used_us,
    relied_on,
    stamp_of,
    tables_of,
)
from headrace.coordinator.quarantine import Quarantine
from headrace.coordinator.store import Key, Loaded, Store, Stored
from headrace.coordinator.timed_store import TimedStore
from headrace.core.errors import HeadraceError, StoreConflict
from headrace.core.events import (
    Effect,
    Event,
    JobState,
    Join,
    Joined,
    LaneMoved,
    Note,
    Progress,
    RecordBad,
    Refuse,
    Rules,
    Tick,
)
from headrace.core.join import AWAITED_SHOWN
from headrace.core.records import LaneRecord, RankRecord, WorkerRecord
from headrace.core.session_state import NEEDS, apply
from headrace.wire.slot_format import job_slot_bytes

log = structlog.get_logger()

_ATTEMPTS = 20
_MAX_REMEMBERED = 10_000
_NAMED = 20
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an update came to. changed: other parties need to know (more than a rank's own numbers was written)."""

    state: JobState
    effects: Sequence[Effect]
    now_us: int
    changed: bool


class Ledger:
    """Reads and writes all records; workers' by `fleet`. on_change(job) is called after each write that others need to know of.

    clock_us: any clock in microseconds that goes at the store's pace; the store's own time is carried on by it between loads.
    """

    def __init__(
        self,
        store: Store,
        rules: Rules,
        instruments: Instruments,
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self.store = TimedStore(store, instruments, clock_us)
        self.rules = rules
        self.fleet = FleetLedger(self.store, rules, instruments)
        self.quarantine = Quarantine(self.store)
        self.events = instruments.events
        self.pass_took = instruments.pass_took
        self._instruments = instruments
        self._last_reports: dict[tuple[str, int], Loaded] = {}
        self._lanes: dict[str, tuple[Mapping[str, Stored], Mapping[int, LaneRecord]]] = {}
        self._missing_in: tuple[JobState | None, tuple[int, ...]] = (None, ())
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
            workers = (await self.fleet.look()).workers
        if isinstance(event, Progress) and (outcome := await self._short_way(job, event)) is not None:
            return outcome
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS):
            loaded = await self.store.load(tables_of(job, needs, rank))
            state = decode(job, loaded, workers or {}, self._lanes_of(job, loaded))
            if isinstance(event, Join | Tick) and state.job is not None:
                event = replace(event, slot_bytes=job_slot_bytes(state.job.spec))
            new, effects = apply(state, event, loaded.now_us, self.rules)
            writes, changed = differences(state, new)
            stamp = await self._commit(job, loaded, writes, changed, relied_on(state, new, event)) if writes else 0
            if stamp or not writes:
                if isinstance(event, Progress) and not changed:
                    self._remember(loaded, writes, stamp, event.rank)
                await self._after(new, effects, changed)
                return Outcome(new, effects, loaded.now_us, changed)
            self._instruments.conflict()
            await asyncio.sleep(pause_s * random.random())  # noqa: S311 - spreads retries
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise StoreConflict(f"others kept writing job {job} first, {_ATTEMPTS} times in a row; repeat the call", job=job)

    def _lanes_of(self, job: str, loaded: Loaded) -> Mapping[int, LaneRecord] | None:
        """A tick looks at thousands of lanes each second, which hardly ever change: the store then gives the same table."""
        table = loaded.tables.get(job_table(job, "lanes"))
        if table is None:
            return None
        known, lanes = self._lanes.get(job, (None, None))
        if known is not table or lanes is None:
            if len(self._lanes) >= _MAX_REMEMBERED:
                self._lanes.clear()
            lanes = decode_lanes(table)
            self._lanes[job] = table, lanes
        return lanes

    async def claim(self, job: str, event: Join, snapshot: JobState | None) -> Joined | None:
        """The answer to a claim, where it can be had without reading all ranks; None where not: it then goes the long way.

        A thousand ranks that join would each read the others, at each poll. So what the snapshot says of a claim that is
        recorded is told as it is (not older than half a claim's life, for then it must be renewed); and a claim is recorded or
        renewed by this rank's own record, the others' being those of the snapshot. What changes more than that record is not
        decided here.
        """
        if snapshot is None or snapshot.job is None or snapshot.session is None:
            return None
        event = replace(event, slot_bytes=job_slot_bytes(snapshot.job.spec))
        missing = self._missing(snapshot)
        try:
            if _holds_claim(snapshot, event):
                alone = replace(snapshot, ranks={event.rank: snapshot.ranks[event.rank]})
                new, effects = apply(alone, event, self.store.now_us(), self.rules)
                if new is alone and (joined := _joined(effects, missing)) is not None:
                    return joined
            loaded = await self.store.load(tables_of(job, frozenset({"rank"}), event.rank))
            state = decode(job, loaded, {})
            if not _holds_claim(state, event):  # its first claim: whether it begins an attempt depends on the others
                others = {rank: record for rank, record in snapshot.ranks.items() if rank != event.rank}
                state = replace(state, ranks={**others, **state.ranks})
            new, effects = apply(state, event, loaded.now_us, self.rules)
        except HeadraceError:
            return None
        joined = _joined(effects, tuple(rank for rank in missing if rank != event.rank))
        if joined is None or new.session is not state.session or new.job is not state.job:
            return None
        writes, changed = differences(state, new)
        if writes and not await self._commit(job, loaded, writes, changed):
            self._instruments.conflict()
            return None
        if changed:
            self.on_change(job)
        return joined

    def _missing(self, snapshot: JobState) -> tuple[int, ...]:
        """Ranks that have not come, by a snapshot with a session; worked out once for all who ask."""
        known, missing = self._missing_in
        if known is not snapshot:
            assert snapshot.session is not None
            now_us, attempt, ranks = self.store.now_us(), snapshot.session.attempt, snapshot.ranks
            gaps = (r for r in range(snapshot.session.world) if not _lives(ranks.get(r), attempt, now_us))
            missing = tuple(islice(gaps, AWAITED_SHOWN))
            self._missing_in = snapshot, missing
        return missing

    async def _short_way(self, job: str, event: Progress) -> Outcome | None:
        """Write a report on top of the last one; None where that cannot be done, for whatever reason."""
        known = self._last_reports.pop((job, event.rank), None)
        if known is None:
            return None
        state = decode(job, known, {})
        now_us = self.store.now_us()
        try:
            new, effects = apply(state, event, now_us, self.rules)
        except HeadraceError:
            return None  # what is remembered may be wrong: judged by what the store says
        writes, changed = differences(state, new)
        if changed or not writes:
            return None
        stamp = await self._commit(job, known, writes, changed)
        if not stamp:
            self._instruments.conflict()
            return None
        self._remember(known, writes, stamp, event.rank)
        await self._after(new, effects, changed)
        return Outcome(new, effects, now_us, changed)

    def _remember(self, loaded: Loaded, writes: Mapping[Key, bytes | None], stamp: int, rank: int) -> None:
        tables = {table: dict(found) for table, found in loaded.tables.items()}
        for key, data in writes.items():
            if data is not None:
                tables[key.table][key.field] = Stored(stamp, data)
        job = next(iter(tables)).group.removeprefix("job:")
        if len(self._last_reports) >= _MAX_REMEMBERED:
            self._last_reports.clear()
        self._last_reports[job, rank] = Loaded(loaded.now_us, tables, loaded.stamps)

    async def _commit(
        self, job: str, loaded: Loaded, writes: Mapping[Key, bytes | None], changed: bool, ranks: Iterable[int] = ()
    ) -> int:
        main, claims = job_table(job, "main"), job_table(job, "ranks")
        guarded = [Key(main, "job"), Key(main, "session"), *writes, *(Key(claims, str(rank)) for rank in ranks)]
        expected = {key: stamp_of(loaded, key) for key in guarded}
        return await self.store.commit(expected, writes, job if changed else "")

    async def _after(self, state: JobState, effects: Sequence[Effect], changed: bool) -> None:
        job = state.name
        if state.job is not None:
            await self.fleet.name_job(job)
        moves: dict[tuple[str, str, str], list[LaneMoved]] = {}
        for effect in effects:
            match effect:
                case RecordBad(samples):
                    self.events.bad_samples(job, samples)
                    await self.quarantine.record(job, samples)
                case LaneMoved(_, owner, to, _, reason):
                    moves.setdefault((owner, to, reason), []).append(effect)
                case Note(event, ids):
                    self.events.noted(job, effect)
                    log.info(event, job=job, **dict(ids))
        self._tell_moves(job, moves)
        if changed:
            self.on_change(job)
        for effect in effects:
            if isinstance(effect, Refuse):
                raise effect.error

    def _tell_moves(self, job: str, moves: Mapping[tuple[str, str, str], Sequence[LaneMoved]]) -> None:
        """A dead worker's lanes may be hundreds in each of a hundred jobs: one line for those that went the same way."""
        for (owner, to, reason), some in moves.items():
            self._instruments.lanes_moved(job, reason, len(some))
            self.events.lanes_moved(job, some)
            lanes = [moved.lane for moved in some[:_NAMED]]
            newest = max(moved.token for moved in some)
            ids = {"worker": to, "previous": owner, "count": len(some), "lanes": lanes, "newest_token": newest}
            log.info("lanes_moved", job=job, **ids, reason=reason)

    async def forget_job(self, job: str, most_us: int) -> bool:
        """Remove a job that nobody used for as long as it is to be kept, and all that was noted of it; True if it is gone."""
        loaded = await self.store.load(dict.fromkeys(job_table(job, kind) for kind in ("main", "lanes", "ranks", "bad")))
        state = decode(job, loaded, {})
        if last_used_us(state) + keep_us(state, most_us) > loaded.now_us:
            return False
        keys = [Key(table, field) for table, found in loaded.tables.items() for field in found]
        named = [Key(job_table(job, "main"), field) for field in ("job", "session")]
        guarded = {key: stamp_of(loaded, key) for key in (*named, *keys) if key.table.kind != "bad"}
        if not await self.store.commit(guarded, dict.fromkeys(keys), job):
            return False
        self.forget(job)
        # Should somebody open it again right now, it is named anew by the next call for it.
        await self.fleet.unname_job(job)
        log.info("job_forgotten", job=job)
        return True

    def forget(self, job: str) -> None:
        """Let go of what is remembered of a job that is no more, whoever removed it."""
        self._lanes.pop(job, None)
        for key in [key for key in self._last_reports if key[0] == job]:
            del self._last_reports[key]
        self.store.forget(f"job:{job}")

    async def end(self) -> None:
        """End looks at the fleet that nobody waits for any more."""
        await self.fleet.end()


def _lives(record: RankRecord | None, attempt: int, now_us: int) -> bool:
    return record is not None and record.attempt == attempt and record.alive(now_us)


def _holds_claim(state: JobState, event: Join) -> bool:
    holder = state.ranks.get(event.rank)
    if state.job is None or state.session is None or holder is None or holder.left:
        return False
    newest = state.session.attempt
    return holder.attempt == newest and event.attempt in (0, newest) and holder.nonce == event.nonce


def _joined(effects: Sequence[Effect], missing: tuple[int, ...]) -> Joined | None:
    """The answer; None where there is a refusal beside it, or where nobody is missing: then all records decide."""
    joined = next((effect for effect in effects if isinstance(effect, Joined)), None)
    if joined is None or any(isinstance(effect, Refuse) for effect in effects):
        return None
    if joined.session is not None:
        return joined
    return replace(joined, awaited=missing) if missing else None
