"""A bound on encoded bytes that are read and not yet decoded."""

from __future__ import annotations

import asyncio


class ByteBudget:
    """Counts bytes in flight; event loop thread. A request above the whole limit is granted when nothing else is held."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._changed = asyncio.Condition()
        self.held_bytes = 0

    async def take(self, count: int) -> None:
        """Wait until `count` more bytes fit; they are held until `give`. The caller's read deadline bounds the wait."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.held_bytes == 0 or self.held_bytes + count <= self._limit)
            self.held_bytes += count

    async def give(self, count: int) -> None:
        """Bytes are decoded, or given up."""
        async with self._changed:
            self.held_bytes -= count
            self._changed.notify_all()
