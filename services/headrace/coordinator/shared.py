"""Work that several ask for at once and that is done once. No I/O of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from headrace.telemetry.tasks import end

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(Generic[K, T]):
    """Runs `work(key)` for whoever asks; those who ask before it has begun share one run, so that each gets a later one.

    turns: held around each run. One event loop. A run belongs to nobody who asked and goes on when all of them are gone: were
    it ended with a caller whose deadline is shorter than the work, and such callers came all the time, none would ever end.
    """

    def __init__(self, work: Callable[[K], Awaitable[T]], turns: asyncio.Lock) -> None:
        self._work = work
        self._turns = turns
        self._asked: dict[K, asyncio.Task[T]] = {}
        self._running: set[asyncio.Task[T]] = set()

    async def run(self, key: K) -> T:
        """What a run gave that began after this call. Raises what it raised, to all who share it."""
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.create_task(self._run(key), name=f"shared {key}")
            self._running.add(asked)
            asked.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(asked)

    async def end(self) -> None:
        """End what runs, for whoever still waits, too."""
        await end(*self._running)

    async def _run(self, key: K) -> T:
        async with self._turns:
            del self._asked[key]  # who asks from here on wants to know what is only now beginning
            return await self._work(key)

    def _ended(self, key: K, run: asyncio.Task[T]) -> None:
        self._running.discard(run)
        if self._asked.get(key) is run:  # ended before its turn
            del self._asked[key]
        if not run.cancelled():
            run.exception()  # seen: there may be nobody left to tell
