"""The list of a job's bad samples in the store: any replica writes and serves it, and it is bounded.

One record a sample, whatever the number of epochs (core.quarantine). Written apart from the rules, by compare-and-set on
the records concerned alone: ranks meet different samples, and a report must not wait for another's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from headrace.coordinator.job_tables import job_table, number
from headrace.coordinator.store import Key, Store, Stored, Table
from headrace.core import limits
from headrace.core.errors import StoreConflict
from headrace.core.events import BadSample
from headrace.core.quarantine import BadRecord, decode

# Some 2 MB of keys: who has more bad samples needs no list of them.
MAX_BAD_SAMPLES = limits.BAD_SAMPLES_A_JOB
BEYOND = "beyond"
_ATTEMPTS = 20
_PAUSE_S = 0.005
_NAMED = 20

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The list as it is now. samples: by id. beyond: times that a sample was met for which the list had no room."""

    samples: tuple[BadRecord, ...]
    beyond: int

    @property
    def total(self) -> int:
        """Times that a bad sample was met, each sample once an epoch."""
        return self.beyond + sum(record.count for record in self.samples)

    def by_reason(self) -> Counter[str]:
        """The same by reason; `beyond` for those that were only counted."""
        counts = Counter[str]()
        for record in self.samples:
            counts[record.reason] += record.count
        if self.beyond:
            counts[BEYOND] += self.beyond
        return counts


class Quarantine:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, job: str, samples: Sequence[BadSample]) -> None:
        """Note samples that were met, each once an epoch whoever says so and how often. Raises StoreConflict."""
        table = job_table(job, "bad")
        left: dict[int, list[BadSample]] = {}
        for bad in samples:
            left.setdefault(bad.sample, []).append(bad)
        offered: set[int] = set()
        for _ in range(_ATTEMPTS):
            loaded = (await self._store.load({table: [str(sample) for sample in left]})).tables[table]
            known = {sample: found for sample in left if (found := loaded.get(str(sample))) is not None}
            # What was offered and is not there found no room: it was counted.
            new = {sample: met for sample, met in left.items() if sample not in known and sample not in offered}
            merged = await self._merge(table, known, left)
            alone = not new or await self._add(job, table, new)
            offered |= new.keys()
            # Another replica may have been first: looked at once more.
            left = {s: met for s, met in left.items() if (s in known and not merged) or (s in new and not alone)}
            if not left:
                return
            await asyncio.sleep(_PAUSE_S)
        raise StoreConflict(f"others kept noting the same bad samples of job {job} first; repeat the call", job=job)

    async def _add(self, job: str, table: Table, new: Mapping[int, Sequence[BadSample]]) -> bool:
        """Put new samples on the list, as far as there is room; True if nobody else had put any of them there meanwhile."""
        items = {str(s): _met(BadRecord(s, met[0].key, met[0].reason), met).encode() for s, met in new.items()}
        added = await self._store.add_once(table, items, MAX_BAD_SAMPLES)
        _tell(job, [met[0] for met in new.values()])
        return added == len(items)

    async def _merge(self, table: Table, known: Mapping[int, Stored], met: Mapping[int, Sequence[BadSample]]) -> bool:
        """Note the epochs on records that are there; False if one of them was written by somebody else meanwhile."""
        expected, writes = dict[Key, int](), dict[Key, bytes | None]()
        for sample, found in known.items():
            if (data := _met(decode(sample, found.data), met[sample]).encode()) != found.data:
                key = Key(table, str(sample))
                expected[key], writes[key] = found.stamp, data
        return not writes or bool(await self._store.commit(expected, writes))

    async def of(self, job: str) -> Quarantined:
        """A job's list."""
        table = job_table(job, "bad")
        found = (await self._store.load({table: None})).tables[table]
        beyond = found.get(BEYOND)
        samples = [decode(number(field), record.data) for field, record in found.items() if field != BEYOND]
        return Quarantined(tuple(sorted(samples, key=lambda bad: bad.sample)), number(beyond.data) if beyond else 0)


def _tell(job: str, new: Sequence[BadSample]) -> None:
    """One line for the samples of a report that are met for the first time; the list has those that it does not name."""
    reasons = Counter(bad.reason for bad in new).most_common()
    log.warning(
        "bad_samples",
        job=job,
        new=len(new),
        reasons=" ".join(f"{reason}={count}" for reason, count in reasons),
        keys=[bad.key for bad in new[:_NAMED]],
    )


def _met(record: BadRecord, met: Sequence[BadSample]) -> BadRecord:
    for bad in met:
        record = record.met(bad.epoch)
    return record
