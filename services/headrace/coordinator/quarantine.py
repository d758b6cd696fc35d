"""The list of a job's bad samples in the store: any replica writes and serves it, and it is bounded.

One record a sample, whatever the number of epochs (core.quarantine). Written apart from the rules, by compare-and-set on
the records concerned alone: ranks meet different samples, and a report must not wait for another's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.coordinator.job_tables import job_table, number
from headrace.coordinator.store import Key, Store, Stored
from headrace.core.errors import StoreConflict
from headrace.core.events import BadSample
from headrace.core.quarantine import BadRecord, decode

# Some 2 MB of keys: who has more bad samples needs no list of them.
MAX_BAD_SAMPLES = 10_000
BEYOND = "beyond"
_ATTEMPTS = 20
_PAUSE_S = 0.005
_NAMED = 20

log = structlog.get_logger()

Timed = Callable[[Awaitable[Any]], Awaitable[Any]]


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
    """See the module. timed: measures a request to the store."""

    def __init__(self, store: Store, timed: Timed) -> None:
        self._store = store
        self._timed = timed

    async def record(self, job: str, samples: Sequence[BadSample]) -> None:
        """Note samples that were met, each once an epoch whoever says so and how often. Raises StoreConflict."""
        table = job_table(job, "bad")
        left: dict[int, list[BadSample]] = {}
        for bad in samples:
            left.setdefault(bad.sample, []).append(bad)
        offered: set[int] = set()
        for _ in range(_ATTEMPTS):
            loaded = (await self._timed(self._store.load({table: [str(sample) for sample in left]}))).tables[table]
            # What was offered and is not there found no room: it was counted.
            new, known = [], dict[int, tuple[Stored, BadRecord]]()
            for sample in left:
                if (found := loaded.get(str(sample))) is not None:
                    known[sample] = found, decode(sample, found.data)
                elif sample not in offered:
                    new.append(sample)
            writes = {}
            for sample, (found, record) in known.items():
                if (data := _met(record, left[sample]).encode()) != found.data:
                    writes[Key(table, str(sample))] = found.stamp, data
            if not writes and not new:
                return
            expected = {key: stamp for key, (stamp, _) in writes.items()}
            written = not writes or await self._timed(
                self._store.commit(expected, {key: data for key, (_, data) in writes.items()})
            )
            if new:
                items = {str(s): _met(BadRecord(s, left[s][0].key, left[s][0].reason), left[s]).encode() for s in new}
                await self._timed(self._store.add_once(table, items, MAX_BAD_SAMPLES))
                _tell(job, [left[sample][0] for sample in new])
                offered.update(new)
            elif written:
                return
            # Another replica may have been first with a new one: looked at once more.
            left = {s: met for s, met in left.items() if s in new or (not written and s in known)}
            if not written:
                await asyncio.sleep(_PAUSE_S)
        raise StoreConflict(f"others kept noting the same bad samples of job {job} first; repeat the call", job=job)

    async def of(self, job: str) -> Quarantined:
        """A job's list."""
        table = job_table(job, "bad")
        found = (await self._timed(self._store.load({table: None}))).tables[table]
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
