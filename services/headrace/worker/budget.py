"""A bound on the encoded bytes of one job that are read and not yet decoded."""

from __future__ import annotations

import asyncio


class ByteBudget:
    """Counts bytes in flight; event loop thread. Grants requests in their order, one above the limit when nothing is held."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._turn = asyncio.Lock()  # first come, first served: a large request must not wait for ever behind small ones
        self._changed = asyncio.Event()
        self.held_bytes = 0

    async def take(self, count: int) -> None:
        """Wait until `count` more bytes fit; held until `give`. Ends as what holds the others does: reads have a deadline."""
        async with self._turn:
            while self.held_bytes and self.held_bytes + count > self._limit:
                self._changed.clear()
                await self._changed.wait()
            self.held_bytes += count

    def give(self, count: int) -> None:
        """Bytes are decoded, or given up."""
        self.held_bytes -= count
        self._changed.set()
