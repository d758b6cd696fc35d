"""The store as one replica sees it: what its calls take, how long it was silent, and what its clock says between them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from headrace.coordinator.instruments import Instruments
from headrace.coordinator.store import Key, Loaded, Store, Table
from headrace.core.errors import StoreUnavailable

T = TypeVar("T")


class TimedStore:
    """A Store around a Store. One event loop.

    clock_us: any clock in microseconds that goes at the store's pace; the store's own time is carried on by it between loads.
    answered_us: when it answered last, by that clock. refuses: a write has failed since the last ping.
    """

    def __init__(self, store: Store, instruments: Instruments, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._instruments = instruments
        self._clock_us = clock_us
        self._offset_us = 0
        self.answered_us = 0
        self._stall_us = 0
        self.refuses = False

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        """See Store.load."""
        asked_us = self._clock_us()
        loaded = await self._timed(self._store.load(wanted))
        # The store read its clock in between. Nearer than the quickest answer tells it, nothing is known; a slow one that was
        # taken at its word would end early all lives that are written until the next.
        least_us, most_us = loaded.now_us - self._clock_us(), loaded.now_us - asked_us
        self._offset_us = min(max(self._offset_us, least_us), most_us)
        return loaded

    async def commit(self, expected: Mapping[Key, int], writes: Mapping[Key, bytes | None], hint: str = "") -> int:
        """See Store.commit."""
        return await self._written(self._store.commit(expected, writes, hint))

    async def add_once(self, table: Table, items: Mapping[str, bytes], limit: int) -> int:
        """See Store.add_once."""
        return await self._written(self._store.add_once(table, items, limit))

    def hints(self) -> AsyncIterator[str]:
        """See Store.hints."""
        return self._store.hints()

    def forget(self, group: str) -> None:
        """See Store.forget."""
        self._store.forget(group)

    async def ping(self) -> None:
        """See Store.ping."""
        await self._store.ping()
        self.refuses = False

    async def weaknesses(self) -> tuple[str, ...]:
        """See Store.weaknesses."""
        return await self._store.weaknesses()

    async def close(self) -> None:
        """See Store.close."""
        await self._store.close()

    def now_us(self) -> int:
        """The store's clock, as of the last load and carried on by ours."""
        return self._clock_us() + self._offset_us

    def longest_stall_us(self) -> int:
        """How long the store was asked and answered nothing, at most, since this was called last; by our own clock.

        As it seems from here: a pause of this process looks the same. A call that takes long by itself is no stall.
        """
        stall_us, self._stall_us = self._stall_us, 0
        return stall_us

    async def _written(self, call: Awaitable[T]) -> T:
        try:
            return await self._timed(call)
        except StoreUnavailable:
            self.refuses = True  # until a ping is through: a store that is full takes some writes, as deletions
            raise

    async def _timed(self, call: Awaitable[T]) -> T:
        begun, begun_us = time.perf_counter(), self._clock_us()
        try:
            answer = await call
            now_us = self._clock_us()
            self._stall_us = max(self._stall_us, now_us - max(begun_us, self.answered_us))
            self.answered_us = now_us
            return answer
        except StoreUnavailable:
            self._instruments.store_failed("unavailable")
            raise
        finally:
            self._instruments.store_took(time.perf_counter() - begun)
