"""A TCP link that can be made bad while it is in use: slow, narrow, one-way, dead, or torn.

    with Proxy("127.0.0.1:7300", seed=7) as link:
        connect_to(link.address)
        link.set(delay_s=0.2, jitter_s=0.1)
        link.blackhole()
        link.heal()

Its loop runs in a thread of its own; any thread may call. What is held back is passed on when the link is healed, as TCP
would: a link never loses or reorders bytes of a connection that goes on, it only ends connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from headrace.telemetry.addresses import split_address
from headrace.telemetry.tasks import end

_CHUNK_BYTES = 1 << 16
_CHUNKS_ON_THE_WAY = 64  # a direction holds at most this times the above
_CONNECT_S = 5.0
_CALL_S = 10.0
_PARTS_A_SECOND = 20  # pieces that a throttled link sends

Way = Literal["up", "down"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a link does. up: client to target passes; down: target to client passes; what doesn't is held back.

    delay_s, jitter_s: each piece is later by delay_s and up to jitter_s more, in order. bytes_per_s: of each direction of each
    connection; 0: no limit. reset_after_bytes: mean number of bytes after which a connection is torn; 0: never. refuse: new
    connections are torn at once.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: int = 0
    up: bool = True
    down: bool = True
    reset_after_bytes: int = 0
    refuse: bool = False


@dataclass(slots=True)
class Counts:
    """What a link has done. torn: connections ended by it with a reset; cut: ended by it orderly."""

    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    torn: int = 0
    cut: int = 0


class Proxy:
    """Listens on a free loopback port and passes on to `target` (host:port). seed: of jitter and random resets."""

    def __init__(self, target: str, *, address: str = "127.0.0.1:0", seed: int = 0) -> None:
        self._target = split_address(target)
        self._listener = socket.create_server(split_address(address), backlog=128)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self.counts = Counts()
        self.conditions = Conditions()
        self._seed = seed
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._gates: dict[Way, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{port}", daemon=True)
        self._thread.start()

    # --- making it bad ----------------------------------------------------------------------------------------------

    def set(self, **conditions: Any) -> None:
        """Change fields of the conditions, the others stay; holds for open connections too, from the next piece on."""
        self._call(lambda: self._apply(replace(self.conditions, **conditions)))

    def heal(self) -> None:
        """All passes at once again; what was held back follows."""
        self._call(lambda: self._apply(Conditions()))

    def half_open(self, way: Way) -> None:
        """Nothing passes in one direction, not even the end of a connection."""
        self.set(**{way: False})

    def blackhole(self) -> None:
        """Nothing passes in either direction; new connections are accepted, and nothing comes of them."""
        self.set(up=False, down=False)

    def cut(self) -> int:
        """End all connections as if both sides had closed; returns how many."""
        return self._call(lambda: self._end_all(torn=False))

    def reset(self) -> int:
        """Tear all connections: both sides get ECONNRESET; returns how many."""
        return self._call(lambda: self._end_all(torn=True))

    def close(self) -> None:
        """Tear what is open and stop listening; idempotent."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CALL_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_S)
            self._loop.close()
            self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- its thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._apply(self.conditions)
        self._loop.add_reader(self._listener, self._accept)  # sock_accept would lose a connection when it is cancelled
        self._loop.run_forever()

    def _call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CALL_S)

    def _apply(self, conditions: Conditions) -> None:
        self.conditions = conditions
        for way, passes in (("up", conditions.up), ("down", conditions.down)):
            gate = self._gates[way]  # type: ignore[index]
            gate.set() if passes else gate.clear()

    def _end_all(self, torn: bool) -> int:
        links = list(self._links)
        for link in links:
            link.torn = torn
            self._links[link].cancel()
        if torn:
            self.counts.torn += len(links)
        else:
            self.counts.cut += len(links)
        return len(links)

    async def _close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._end_all(torn=True)
        await end(*self._links.values())

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        self.counts.connections += 1
        if self.conditions.refuse:
            self.counts.torn += 1
            _tear(client)
            return
        link = _Link(self, client, random.Random(f"{self._seed}:{self.counts.connections}"))  # noqa: S311
        task = self._loop.create_task(link.run(self._target))
        self._links[link] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._links[link]
            client.close()  # one that was cancelled before it began has not

        task.add_done_callback(ended)

    def gate(self, way: Way) -> Coroutine[Any, Any, Any]:
        """Waits until that direction passes."""
        return self._gates[way].wait()


class _Link:
    """One connection and its way on to the target."""

    def __init__(self, proxy: Proxy, client: socket.socket, rng: random.Random) -> None:
        self._proxy = proxy
        self._client = client
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._fate = rng.expovariate(1.0)  # times the mean: after how many bytes it is torn
        self._passed = 0
        self.torn = False

    async def run(self, target: tuple[str, int]) -> None:
        """Pass on until both sides have closed, one fails, or the proxy ends it."""
        server: socket.socket | None = None
        try:
            await self._proxy.gate("up")  # in a black hole nobody answers
            server = await self._dial(target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass("up", self._client, server))
                group.create_task(self._pass("down", server, self._client))
        except* OSError:
            self.torn = True  # what one side suffered, the other does
        finally:
            for side in (self._client, server):
                if side is not None:
                    _tear(side) if self.torn else side.close()

    async def _dial(self, target: tuple[str, int]) -> socket.socket:
        made = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
        made.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._loop.sock_connect(made, target)
        except BaseException:
            made.close()
            raise
        for side in (made, self._client):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    async def _pass(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_ON_THE_WAY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(way, source, on_the_way))
            group.create_task(self._give(way, sink, on_the_way))

    async def _take(self, way: Way, source: socket.socket, on_the_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            await self._proxy.gate(way)
            try:
                data = await self._loop.sock_recv(source, _CHUNK_BYTES)
            except OSError:
                await self._proxy.gate(way)  # on a half-open link the other side does not hear of it
                raise
            now = self._proxy.conditions
            await on_the_way.put((self._loop.time() + now.delay_s + self._rng.random() * now.jitter_s, data))

    async def _give(self, way: Way, sink: socket.socket, on_the_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        while True:
            due_s, data = await on_the_way.get()
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            await self._proxy.gate(way)
            if not data:
                with contextlib.suppress(OSError):  # gone already
                    sink.shutdown(socket.SHUT_WR)
                return
            rest = memoryview(data)
            while rest:
                piece, rest = self._piece(rest)
                if limit := self._proxy.conditions.bytes_per_s:
                    await asyncio.sleep(len(piece) / limit)
                    await self._proxy.gate(way)
                try:
                    await self._loop.sock_sendall(sink, piece)
                except OSError:
                    await self._proxy.gate("down" if way == "up" else "up")  # word of it goes back to the sender
                    raise
                self._count(way, len(piece))

    def _piece(self, data: memoryview) -> tuple[memoryview, memoryview]:
        limit = self._proxy.conditions.bytes_per_s
        size = max(1, limit // _PARTS_A_SECOND) if limit else len(data)
        if mean := self._proxy.conditions.reset_after_bytes:
            size = min(size, max(1, int(self._fate * mean) - self._passed))  # to the byte, however the pieces come
        return data[:size], data[size:]

    def _count(self, way: Way, size: int) -> None:
        counts = self._proxy.counts
        if way == "up":
            counts.bytes_up += size
        else:
            counts.bytes_down += size
        self._passed += size
        mean = self._proxy.conditions.reset_after_bytes
        if mean and not self.torn and self._passed >= int(self._fate * mean):
            self.torn = True
            counts.torn += 1
            raise ConnectionResetError("torn, as the conditions say")


def _tear(side: socket.socket) -> None:
    """Close with a reset."""
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.close()
