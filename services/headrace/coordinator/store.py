"""What the coordinator asks of a store: records with stamps, loaded in one round trip, written by compare-and-set.

A table is a hash of small records; all tables of one group (one job, or the fleet) can be loaded and written atomically.
A stamp is given to every record when it is written: above all earlier stamps of its table and at least the store's time in
microseconds, so that a store that lost its last second never gives one twice, and equal stamps mean equal records.
A table without records leaves nothing behind, not even its stamp.
Implementations: `store_memory` (one process, for tests) and `store_redis`; tests/contract/test_store.py holds them to this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Table(NamedTuple):
    """One hash of records. group: what is loaded and written together (a Redis Cluster hash tag). kind: which of its tables."""

    group: str
    kind: str


class Key(NamedTuple):
    """One record. field: never empty, never `#`."""

    table: Table
    field: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was loaded."""

    stamp: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    """A consistent view. now_us: the store's clock. stamps: newest stamp of each table; tables: the records asked for."""

    now_us: int
    tables: Mapping[Table, Mapping[str, Stored]]
    stamps: Mapping[Table, int]


class Store(Protocol):
    """All methods run on the event loop and raise StoreUnavailable (retriable) where the store cannot be reached or refuses."""

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        """Read whole tables (None) or some fields of them, all of one group, at one moment. Missing records are left out."""
        ...

    async def commit(self, expected: Mapping[Key, int], writes: Mapping[Key, bytes | None], hint: str = "") -> int:
        """Write all (None deletes) if every expected record still has its stamp (0: is absent); else write nothing.

        Returns the stamp of what was written, or 0. All keys are of one group. hint: told to `hints` of every replica.
        """
        ...

    async def add_once(self, table: Table, items: Mapping[str, bytes], limit: int) -> int:
        """Add the records that are not there yet, up to `limit` in the table; returns how many were new (kept or not).

        What finds no room is only counted, in the field `beyond` (a decimal number).
        """
        ...

    def hints(self) -> AsyncIterator[str]:
        """Hints of all replicas as they come; some may be lost. Raises StoreUnavailable when the connection ends."""
        ...

    def forget(self, group: str) -> None:
        """Let go of what this process remembers of a group that is no longer asked for."""
        ...

    async def ping(self) -> None:
        """Return once the store answered and can be written to."""
        ...

    async def weaknesses(self) -> tuple[str, ...]:
        """What in its settings may lose records, each as a sentence's end with what to do; none where it does not tell."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
