"""A coordinator replica in the simulation: the real service, ledger and board, over the simulated store."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from headrace.coordinator.access import Access
from headrace.coordinator.board import Board
from headrace.coordinator.grpc_api import CoordinatorService
from headrace.coordinator.heartbeats import HeartbeatRules
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.telemetry.seldom import Seldom
from headrace.testing.simulation.loop import Host
from headrace.testing.simulation.network import Aborted, CallContext, Network, rpc_error
from headrace.testing.simulation.scenario import Facts, Scenario
from headrace.testing.simulation.store import SimulatedStore, StoreClient

# One set of counters for all runs of a process: making them takes longer than a short run.
INSTRUMENTS = Instruments(CollectorRegistry())


class Replica:
    """One run of a replica's process."""

    def __init__(
        self, host: Host, store: SimulatedStore, network: Network, scenario: Scenario, facts: dict[str, Facts]
    ) -> None:
        self.host = host
        self._network = network
        instruments = copy.copy(INSTRUMENTS)
        instruments.seldom = Seldom()  # what a run logs must not depend on those before
        ledger = Ledger(StoreClient(store, network, host), scenario.rules, instruments, self._clock_us)
        self.ledger = ledger
        self.board = Board(ledger, scenario.every_s, 90, self._clock_us)

        async def read(address: str) -> Any:
            return facts[address]

        beats = HeartbeatRules(scenario.every_s, scenario.rules.worker_ttl_us / 1e6)
        self.service = CoordinatorService(ledger, self.board, Manifests(read, 10.0), beats, instruments, access=Access())
        host.start(self.board.run(), "passes")

    def _clock_us(self) -> int:
        return int((self.host.loop.time() + self.host.clock_s + 20_000.0) * 1e6)

    def unary(self, method: str, request: Any) -> Callable[[], Awaitable[Any]]:
        """The work of one call; the request crosses the wire as bytes."""
        data = request.SerializeToString()
        kind = type(request)
        return lambda: getattr(self.service, method)(kind.FromString(data), CallContext())

    async def watch(self, caller: Host, request: Any, deadline_s: float) -> AsyncIterator[Any]:
        """The stream of lane tables as the caller gets it: in order, held up while the two are apart, broken with the host."""
        loop = self.host.loop
        queue: asyncio.Queue[Any] = asyncio.Queue()
        request = type(request).FromString(request.SerializeToString())
        last_s = 0.0

        def put(item: Any) -> None:
            nonlocal last_s
            apart_s = self._network.cut_until_s(caller.name, self.host.name)
            last_s = max(last_s, apart_s, loop.time()) + self._network.delay_s()
            loop.call_at(last_s, queue.put_nowait, item)

        async def serve() -> None:
            try:
                async for message in self.service.WatchSession(request, CallContext()):
                    put(type(message).FromString(message.SerializeToString()))
            except Aborted as refused:
                put(rpc_error(*refused.status))
            except asyncio.CancelledError:
                put(rpc_error(grpc.StatusCode.UNAVAILABLE, "the server went away"))

        way_s = self._network.way_s(caller.name, self.host.name)
        serving: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(deadline_s):
                if way_s is None:
                    await asyncio.sleep(deadline_s)
                await asyncio.sleep(way_s or 0.0)
                if not self.host.alive:
                    raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused")
                serving = self.host.start(serve(), "watch")
                while True:
                    item = await queue.get()
                    if isinstance(item, Exception):
                        raise item
                    yield item
        except TimeoutError:
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None
        finally:
            if serving is not None:
                serving.cancel()
