"""The store of a run: one memory store with its own clock, that forgets and restarts, behind a network for each replica."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.coordinator.store import Key, Loaded, Table
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import StoreUnavailable
from headrace.testing.simulation.loop import Host
from headrace.testing.simulation.network import Network
from headrace.testing.simulation.trace import Trace, Violation

T = TypeVar("T")
Writes = Mapping[Key, bytes | None]
_NOBODY = contextvars.Context()
EPOCH_US = 1_700_000_000_000_000
DEADLINE_S = 2.0
# How old the newest copy may be that a store which lost its last second comes back with.
COPIES = 5
COPY_EVERY_S = 0.25


class SimulatedStore(MemoryStore):
    """clock_s: how far its clock is ahead. wait_s: mean of what a request waits for before it is done.

    on_write: called with what is about to be written.
    """

    def __init__(self, host: Host, trace: Trace, on_write: Callable[[SimulatedStore, Writes], None]) -> None:
        super().__init__(self.now_us)
        self.host = host
        self.clock_s = 0.0
        self.wait_s = 0.0
        self.up = True
        self.forgot = 0  # times that it lost something
        self.emptied = False
        self._trace = trace
        self._on_write = on_write
        self._copies: deque[Any] = deque(maxlen=COPIES)

    def now_us(self) -> int:
        """The store's clock."""
        return EPOCH_US + int((self.host.loop.time() + self.clock_s) * 1e6)

    async def keep_copies(self) -> None:
        """Remember the last second, as a disk does that is written to once in a while."""
        while True:
            self._copies.append(self.snapshot())
            await asyncio.sleep(COPY_EVERY_S)

    def lose_last_second(self) -> None:
        """Go back to what was on disk."""
        self.forgot += 1
        if self._copies:
            self.restore(self._copies[0])
        self._copies.clear()

    def lose_all(self) -> None:
        """Come back empty."""
        self.forgot += 1
        self.emptied = True
        self.restore(({}, {}))
        self._copies.clear()

    def records(self, table: Table) -> int:
        """How many records a table has."""
        return len(self._tables.get(table, {}))

    def tables(self) -> list[Table]:
        """All tables with records."""
        return list(self._tables)

    def _write(self, writes: Writes) -> int:
        with contextlib.suppress(Violation):  # noted: the run ends with this step
            self._on_write(self, writes)
        return super()._write(writes)


class StoreClient:
    """One replica's connection to it; implements coordinator.store.Store."""

    def __init__(self, store: SimulatedStore, network: Network, host: Host) -> None:
        self._store = store
        self._network = network
        self._host = host

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        """See Store."""
        return await self._request(lambda: self._store.load(wanted))

    async def commit(self, expected: Mapping[Key, int], writes: Writes, hint: str = "") -> int:
        """See Store."""
        expected, writes = dict(expected), dict(writes)
        return await self._request(lambda: self._store.commit(expected, writes, hint), again=bool(expected))

    async def add_once(self, table: Table, items: Mapping[str, bytes], limit: int) -> int:
        """See Store."""
        return await self._request(lambda: self._store.add_once(table, items, limit))

    async def hints(self) -> AsyncIterator[str]:
        """See Store."""
        told = self._store.hints()
        try:
            async for hint in told:
                way_s = self._network.way_s(self._store.host.name, self._host.name)
                if way_s is None:
                    continue
                await asyncio.sleep(way_s)
                yield hint
        finally:
            await told.aclose()  # type: ignore[attr-defined]

    def forget(self, group: str) -> None:
        """See Store."""

    async def ping(self) -> None:
        """See Store."""

    async def weaknesses(self) -> tuple[str, ...]:
        """See Store."""
        return ()

    async def close(self) -> None:
        """See Store."""

    async def _request(self, ask: Callable[[], Awaitable[T]], again: bool = False) -> T:
        loop = self._network.loop
        answer: asyncio.Future[T] = loop.create_future()
        there_s = self._network.way_s(self._host.name, self._store.host.name, self._store.wait_s)
        if there_s is not None:
            loop.call_later(there_s, self._apply, ask, answer, context=_NOBODY)
            if again and self._network.repeats():
                loop.call_later(there_s + self._network.delay_s(), self._apply, ask, None, context=_NOBODY)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await answer
        except TimeoutError:
            raise StoreUnavailable("the simulated store did not answer; is it up?") from None

    def _apply(self, ask: Callable[[], Awaitable[T]], answer: asyncio.Future[T] | None) -> None:
        store = self._store
        error: StoreUnavailable | None = None
        result: Any = None
        if store.up:
            result = _at_once(ask())
        else:
            error = StoreUnavailable("the simulated store refuses connections; is it up?")
        back_s = self._network.way_s(store.host.name, self._host.name)
        if back_s is not None and answer is not None:
            self._network.loop.call_later(back_s, _settle, answer, result, error, context=_NOBODY)


def _at_once(work: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the memory store waited")


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
