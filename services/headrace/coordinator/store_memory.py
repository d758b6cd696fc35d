"""A store in this process's memory: for tests and simulation. Nothing survives the process, and replicas cannot share it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from headrace.coordinator.store import Key, Loaded, Stored, Table


class MemoryStore:
    """See `store.Store`. clock_us: the store's clock, microseconds; tests pass their own."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._clock_us = clock_us
        self._tables: dict[Table, dict[str, Stored]] = {}
        self._stamps: dict[Table, int] = {}
        self._listeners: dict[asyncio.Queue[str], None] = {}  # in their order: runs of a simulation must be equal

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        """See Store."""
        tables: dict[Table, dict[str, Stored]] = {}
        for table, fields in wanted.items():
            records = self._tables.get(table, {})
            tables[table] = dict(records) if fields is None else {f: records[f] for f in fields if f in records}
        return Loaded(self._clock_us(), tables, {table: self._stamps.get(table, 0) for table in wanted})

    async def commit(self, expected: Mapping[Key, int], writes: Mapping[Key, bytes | None], hint: str = "") -> int:
        """See Store."""
        for key, stamp in expected.items():
            record = self._tables.get(key.table, {}).get(key.field)
            if stamp != (record.stamp if record else 0):
                return 0
        stamp = self._write(writes)
        if hint:
            self._tell(hint)
        return stamp

    async def add_once(self, table: Table, items: Mapping[str, bytes], limit: int) -> int:
        """See Store."""
        records = self._tables.get(table, {})
        new = {field: data for field, data in items.items() if field not in records}
        room = max(0, limit - len(records.keys() - {"beyond"}))
        kept = dict(list(new.items())[:room])
        writes: dict[Key, bytes | None] = {Key(table, field): data for field, data in kept.items()}
        if len(new) > len(kept):
            before = int(records["beyond"].data) if "beyond" in records else 0
            writes[Key(table, "beyond")] = str(before + len(new) - len(kept)).encode()
        self._write(writes)
        return len(new)

    async def hints(self) -> AsyncIterator[str]:
        """See Store."""
        queue: asyncio.Queue[str] = asyncio.Queue(maxsize=1000)
        self._listeners[queue] = None
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.pop(queue, None)

    def forget(self, group: str) -> None:
        """See Store."""

    async def ping(self) -> None:
        """See Store."""

    async def weaknesses(self) -> tuple[str, ...]:
        """See Store; of what is forgotten with the process there is nothing to say."""
        return ()

    async def close(self) -> None:
        """See Store."""

    def snapshot(self) -> tuple[dict[Table, dict[str, Stored]], dict[Table, int]]:
        """A copy of everything, for tests that make the store lose its latest writes."""
        return {table: dict(records) for table, records in self._tables.items()}, dict(self._stamps)

    def restore(self, snapshot: tuple[dict[Table, dict[str, Stored]], dict[Table, int]]) -> None:
        """Go back to a copy, as a store does that lost its latest writes."""
        tables, stamps = snapshot
        self._tables = {table: dict(records) for table, records in tables.items()}
        self._stamps = dict(stamps)

    def _write(self, writes: Mapping[Key, bytes | None]) -> int:
        touched = {key.table for key in writes}
        stamp = max([self._clock_us(), *(self._stamps.get(table, 0) + 1 for table in touched)])
        for key, data in writes.items():
            records = self._tables.setdefault(key.table, {})
            if data is None:
                records.pop(key.field, None)
            else:
                records[key.field] = Stored(stamp, data)
        for table in touched:
            self._stamps[table] = stamp
            if not self._tables[table]:
                del self._tables[table], self._stamps[table]
        return stamp

    def _tell(self, hint: str) -> None:
        for queue in self._listeners:
            if not queue.full():
                queue.put_nowait(hint)
