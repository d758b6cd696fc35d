"""Work that several ask for at once and that is done once. No I/O of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(Generic[K, T]):
    """Runs `work(key)` for whoever asks; those who ask before it has begun share one run, so that each gets a later one.

    turns: held around each run. One event loop. The first who asks does it: where he is
    cancelled, one of the others does.
    """

    def __init__(self, work: Callable[[K], Awaitable[T]], turns: asyncio.Lock) -> None:
        self._work = work
        self._turns = turns
        self._asked: dict[K, asyncio.Future[list[T]]] = {}

    async def run(self, key: K) -> T:
        """What a run gave that began after this call. Raises what it raised, to all who share it."""
        while (asked := self._asked.get(key)) is not None:
            if outcome := await asyncio.shield(asked):
                return outcome[0]
        asked = self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            async with self._turns:
                del self._asked[key]  # who asks from here on wants to know what is only now beginning
                result = await self._work(key)
        except Exception as error:
            asked.set_exception(error)
            asked.exception()  # seen: there may be nobody to share it with
            raise
        except BaseException:
            if self._asked.get(key) is asked:
                del self._asked[key]
            asked.set_result([])
            raise
        asked.set_result([result])
        return result
