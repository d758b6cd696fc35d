"""How many batches are in the engine at once: as many as it says, fewer while its GPU has no memory for them.

Event loop thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Batches made without trouble before one more is let in again: memory is short for minutes, not for a moment.
GROW_AFTER = 200


class EngineTurns:
    """A semaphore, first come first served, that can shrink. limit: how many are let in now, 1..most."""

    def __init__(self, most: int) -> None:
        self.most = self.limit = max(1, most)
        self.in_use = 0
        self._smooth = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[int]:
        """Wait for a turn and hold it; gives how many are in the engine now, this one included."""
        await self._take()
        try:
            yield self.in_use
        finally:
            self.in_use -= 1
            self._admit()

    async def _take(self) -> None:
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(asked)
        self._admit()
        try:
            await asked
        except asyncio.CancelledError:
            if asked.done() and not asked.cancelled():  # it had just been given
                self.in_use -= 1
                self._admit()
            raise

    def shrink(self) -> None:
        """Call within a turn that found no memory: as many as are in now are too many. Those that are in stay."""
        self._smooth = 0
        self.limit = max(1, min(self.limit, self.in_use - 1))

    def went_well(self) -> None:
        """Count a batch that found its memory; after many of them one more is let in."""
        self._smooth += 1
        if self._smooth >= GROW_AFTER and self.limit < self.most:
            self.limit += 1
            self._smooth = 0
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_use < self.limit:
            asked = self._waiting.popleft()
            if not asked.done():
                self.in_use += 1
                asked.set_result(None)
