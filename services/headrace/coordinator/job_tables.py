"""Between a job's tables in the store and the JobState of the rules. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from headrace.coordinator.store import Key, Loaded, Stored, Table
from headrace.core import limits, records
from headrace.core.events import Event, JobState, Join
from headrace.core.join import slowest
from headrace.core.record_check import reads
from headrace.core.records import LaneRecord, WorkerRecord


def job_table(job: str, kind: str) -> Table:
    """A table of one job: main (job, session), lanes, ranks or bad."""
    return Table(f"job:{job}", kind)


def last_used_us(state: JobState) -> int:
    """When a job was opened or healed, or a rank of it was last heard of; 0 where nothing is recorded."""
    begun_us = [state.job.opened_us if state.job else 0, state.session.healed_us if state.session else 0]
    return max([*begun_us, *(record.alive_until_us for record in state.ranks.values())])


def keep_us(state: JobState, most_us: int) -> int:
    """How long after that it is remembered; most_us: any job."""
    own_us = state.job.keep_s * 1_000_000 if state.job else 0
    return min(own_us, most_us) if own_us else most_us


def tables_of(job: str, needs: frozenset[str], rank: int | None) -> dict[Table, Sequence[str] | None]:
    """What to load for an event: see `session_state.NEEDS`. rank: whose record, where one is enough."""
    wanted: dict[Table, Sequence[str] | None] = {job_table(job, "main"): None}
    if "lanes" in needs:
        wanted[job_table(job, "lanes")] = None
    if "ranks" in needs:
        wanted[job_table(job, "ranks")] = None
    elif "rank" in needs:
        wanted[job_table(job, "ranks")] = [str(rank)]
    return wanted


def relied_on(old: JobState, new: JobState, event: Event) -> Iterable[int]:
    """Ranks whose records decided what is written, beside the written ones: a commit that comes in between must not be lost."""
    if new.session is None or (old.session is not None and old.session == new.session):
        return ()
    if old.session is not None and old.session.formed and isinstance(event, Join):
        return (slowest(old),)  # the next attempt may begin from what all have committed
    return new.ranks if new.session.formed and not (old.session and old.session.formed) else ()


def decode(
    job: str, loaded: Loaded, workers: Mapping[str, WorkerRecord], lanes: Mapping[int, LaneRecord] | None = None
) -> JobState:
    """A job's state of what was loaded. lanes: those of its table, where they were read before."""
    main = loaded.tables[job_table(job, "main")]
    ranks = loaded.tables.get(job_table(job, "ranks"), {})
    return JobState(
        name=job,
        job=records.job_from_bytes(main["job"].data) if "job" in main else None,
        session=records.session_from_bytes(main["session"].data) if "session" in main else None,
        lanes=decode_lanes(loaded.tables.get(job_table(job, "lanes"), {})) if lanes is None else lanes,
        ranks={number(field, limits.WORLD): records.rank_from_bytes(record.data) for field, record in ranks.items()},
        workers=workers,
    )


def decode_lanes(table: Mapping[str, Stored]) -> dict[int, LaneRecord]:
    """Lanes by number."""
    return {number(field, limits.LANES): records.lane_from_bytes(record.data) for field, record in table.items()}


@lru_cache(maxsize=16384)
@reads("numbered")
def number(text: str | bytes, bound: int = limits.COUNT_BOUND) -> int:
    """The number that names a record. Raises RecordInvalid for another text."""
    found = int(text) if len(text) <= 20 else bound
    if not 0 <= found < bound:
        raise ValueError(f"{text!r} is no number below {bound}")
    return found


def differences(old: JobState, new: JobState) -> tuple[dict[Key, bytes | None], bool]:
    """Records that differ, and whether anybody but the rank itself needs to know."""
    writes: dict[Key, bytes | None] = {}
    main = job_table(new.name, "main")
    if new.job is not None and new.job is not old.job and new.job != old.job:
        writes[Key(main, "job")] = records.encode(new.job)
    if new.session is not None and new.session is not old.session and new.session != old.session:
        writes[Key(main, "session")] = records.encode(new.session)
    lanes = job_table(new.name, "lanes")
    for number, lane in new.lanes.items():
        if lane is not (known := old.lanes.get(number)) and lane != known:
            writes[Key(lanes, str(number))] = records.encode(lane)
    changed = bool(writes)
    ranks = job_table(new.name, "ranks")
    for number, rank in new.ranks.items():
        before = old.ranks.get(number)
        if rank is not before and rank != before:
            writes[Key(ranks, str(number))] = records.encode(rank)
            changed = (
                changed
                or before is None
                or (rank.attempt, rank.nonce, rank.left) != (before.attempt, before.nonce, before.left)
            )
    return writes, changed


def stamp_of(loaded: Loaded, key: Key) -> int:
    """A record's stamp; 0 where it is absent."""
    record = loaded.tables.get(key.table, {}).get(key.field)
    return record.stamp if record else 0
