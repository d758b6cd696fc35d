"""What lies between the hosts: delays, losses, repeats, and pairs of hosts that cannot reach one another."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from headrace.testing.simulation.loop import Host, VirtualLoop
from headrace.testing.simulation.trace import Trace

T = TypeVar("T")
_NOBODY = contextvars.Context()


@dataclass(slots=True)
class Weather:
    """delay_s: mean of a message's way. slow: share of messages that take up to slow_s. lost, repeated: shares of messages."""

    delay_s: float = 0.001
    slow: float = 0.0
    slow_s: float = 2.0
    lost: float = 0.0
    repeated: float = 0.0


class Aborted(Exception):
    """How a simulated server ends a call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        super().__init__(details)
        self.status = code, details, metadata


class CallContext:
    """What of grpc.aio.ServicerContext the service uses."""

    def invocation_metadata(self) -> tuple[()]:
        """Nobody shows a token."""
        return ()

    def peer(self) -> str:
        """For the log."""
        return "simulated"

    def time_remaining(self) -> None:
        """Nobody says how long he waits."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call."""
        raise Aborted(code, details, trailing_metadata)


def rpc_error(code: grpc.StatusCode, details: str, metadata: Any = ()) -> grpc.aio.AioRpcError:
    """What a caller gets."""
    return grpc.aio.AioRpcError(code, (), tuple(metadata), details)  # type: ignore[arg-type]


class Network:
    """See the module. Messages between two hosts overtake one another, unless they belong to one connection."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.weather = Weather()
        self._rng = rng
        self._trace = trace
        self._cut_until_s: dict[tuple[str, str], float] = {}

    def cut(self, one: str, other: str, for_s: float) -> None:
        """Nothing passes between two hosts for a while."""
        self._cut_until_s[min(one, other), max(one, other)] = self.loop.time() + for_s

    def heal(self) -> None:
        """Fine weather, and everybody reaches everybody."""
        self.weather = Weather()
        self._cut_until_s.clear()

    def cut_until_s(self, one: str, other: str) -> float:
        """Until when two hosts are apart."""
        return self._cut_until_s.get((min(one, other), max(one, other)), 0.0)

    def delay_s(self) -> float:
        """Of one message."""
        weather = self.weather
        if weather.slow and self._rng.random() < weather.slow:
            self._trace.faults["message delayed"] += 1
            return self._rng.uniform(0.05, weather.slow_s)
        return self._rng.expovariate(1.0) * weather.delay_s

    def way_s(self, one: str, other: str, more_s: float = 0.0) -> float | None:
        """How long a message takes; None if it never arrives. more_s: mean of what it waits for at its end."""
        if self.cut_until_s(one, other) > self.loop.time():
            self._trace.faults["message cut off"] += 1
            return None
        if self.weather.lost and self._rng.random() < self.weather.lost:
            self._trace.faults["message lost"] += 1
            return None
        return self.delay_s() + (self._rng.expovariate(1.0) * more_s if more_s else 0.0)

    def repeats(self) -> bool:
        """True if a message shall arrive twice."""
        if self.weather.repeated and self._rng.random() < self.weather.repeated:
            self._trace.faults["message repeated"] += 1
            return True
        return False

    async def call(self, caller: Host, server: Host, work: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """One gRPC call of a host that is up or not. Raises AioRpcError as gRPC does."""
        answer: asyncio.Future[T] = self.loop.create_future()
        ways = [self.way_s(caller.name, server.name)]
        if self.repeats():
            ways.append(self.way_s(caller.name, server.name))
        tasks: list[asyncio.Task[None]] = []
        for way_s in ways:
            if way_s is not None:
                self.loop.call_later(way_s, self._arrive, caller, server, work, answer, tasks, context=_NOBODY)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            # The server's own deadline ends it there too; not if the message was on its way for that long.
            for task in tasks:
                if self._rng.random() < 0.5:
                    task.cancel()
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None

    def _arrive(
        self, caller: Host, server: Host, work: Callable[[], Awaitable[T]], answer: asyncio.Future[T], tasks: list[Any]
    ) -> None:
        if not server.alive:
            self._back(caller, server, answer, rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused"))
            return

        async def serve() -> None:
            try:
                result: Any = await work()
            except Aborted as refused:
                result = rpc_error(*refused.status)
            except asyncio.CancelledError:
                result = rpc_error(grpc.StatusCode.UNAVAILABLE, "the server went away")
            self._back(caller, server, answer, result)

        tasks.append(server.start(serve()))

    def _back(self, caller: Host, server: Host, answer: asyncio.Future[T], result: Any) -> None:
        way_s = self.way_s(caller.name, server.name)
        if way_s is not None:
            self.loop.call_later(way_s, _settle, answer, result, context=_NOBODY)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
