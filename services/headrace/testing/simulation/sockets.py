"""Unix sockets of a simulated node: packets in order, a bounded buffer, ends and resets; and the selector that reads them.

Real code uses them as it uses the kernel's, with the kernel's own descriptors riding on them.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headrace.testing.simulation.loop import HOST, Host
from headrace.testing.simulation.network import Network

# Packets on their way or unread; the kernel's bound is some hundreds.
ROOM = 32
_FD = struct.Struct("i")
_NOBODY = Context()

Accept = Callable[["SimulatedSocket"], None]


class Node:
    """The machine that workers and trainers share: its sockets by path."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.listeners: dict[str, tuple[Host, Accept]] = {}
        self.sockets: dict[SimulatedSocket, None] = {}


class SimulatedSocket:
    """One end of a connection."""

    node: Node  # of the run that goes on; a process runs one at a time

    def __init__(self, *_: object) -> None:
        host = HOST.get()
        assert host is not None
        self.host = host
        self.peer: SimulatedSocket | None = None
        self.closed = False
        self._inbox: deque[tuple[bytes, list[int]]] = deque()
        self._ended = False
        self._reset = False
        self._coming = 0
        self._last_s = 0.0
        self._reader: tuple[Context, Callable[[], object]] | None = None
        self._writer: tuple[Context, Callable[[], object]] | None = None
        self._called = False

    # --- as the kernel's ------------------------------------------------------------------------------------------------

    def setblocking(self, _: bool) -> None:
        """Never blocks."""

    def getsockopt(self, *_: int) -> bytes:
        """SO_PEERCRED, the one that is asked for: everybody runs as we do."""
        return struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())

    def connect(self, path: str) -> None:
        """Raises OSError where nobody listens."""
        host, accept = self.node.listeners.get(path, (None, None))
        if host is None or accept is None or not host.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        other = host.call(SimulatedSocket)
        self.peer, other.peer = other, self
        self.node.sockets[self] = None
        self._later(lambda: host.call_soon(_accept, accept, other))

    def send(self, data: bytes, fds: list[int] | None = None) -> int:
        """Raises BlockingIOError while the peer's buffer is full, BrokenPipeError after its end."""
        peer = self.peer
        if self.closed or peer is None or peer.closed or self._ended:
            raise BrokenPipeError(32, "Broken pipe")
        if self.full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        peer._coming += 1
        packet = bytes(data), [os.dup(fd) for fd in fds or ()]
        self._later(lambda: peer._receive(packet))
        return len(data)

    def recvmsg_into(self, buffers: list[bytearray], *_: int) -> tuple[int, list[Any], int, None]:
        """One packet; empty at the end."""
        if self._reset:
            self._reset = False
            raise ConnectionResetError(104, "Connection reset by peer")
        if not self._inbox:
            if self._ended:
                return 0, [], 0, None
            raise BlockingIOError(11, "Resource temporarily unavailable")
        data, fds = self._inbox.popleft()
        if self.peer is not None:
            self.peer._tell_room()
        buffers[0][: len(data)] = data
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_FD.pack, fds)))] if fds else []
        return len(data), rights, 0, None

    def recv_into(self, buffer: bytearray) -> int:
        """As recvmsg_into; descriptors are closed."""
        count, rights, _, _ = self.recvmsg_into([buffer])
        for _, _, data in rights:
            for (fd,) in _FD.iter_unpack(data):
                os.close(fd)
        return count

    def close(self) -> None:
        """The peer reads what was sent, then the end."""
        if self.closed:
            return
        self.closed = True
        unread = bool(self._inbox)
        self._drop()
        self._reader = self._writer = None
        self.node.sockets.pop(self, None)
        if self.peer is not None:
            peer = self.peer
            self._later(lambda: peer._end(reset=unread))

    # --- the simulation's ------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks: what is on its way is lost, and both ends notice."""
        for end in (self, self.peer):
            if end is not None and not end.closed:
                end._drop()
                end._end(reset=False)

    @property
    def full(self) -> bool:
        """True while the peer's buffer takes no more."""
        peer = self.peer
        return peer is not None and len(peer._inbox) + peer._coming >= ROOM

    @property
    def readable(self) -> bool:
        """True while reading gives something."""
        return not self.closed and bool(self._inbox or self._ended or self._reset)

    def watch(self, reader: Callable[[], object] | None) -> None:
        """Call this while there is something to read."""
        self._reader = None if reader is None else (copy_context(), reader)
        self._tell()

    def watch_room(self, writer: Callable[[], object] | None) -> None:
        """Call this when there is room to write."""
        self._writer = None if writer is None else (copy_context(), writer)
        self._tell_room()

    def _later(self, act: Callable[[], None]) -> None:
        """In order, and not before the two hosts reach one another again."""
        assert self.peer is not None
        network = self.node.network
        start_s = max(network.loop.time(), network.cut_until_s(self.host.name, self.peer.host.name))
        self._last_s = max(self._last_s, start_s + network.delay_s() / 4)
        network.loop.call_at(self._last_s, act, context=_NOBODY)

    def _receive(self, packet: tuple[bytes, list[int]]) -> None:
        self._coming -= 1
        if self.closed or self._ended:
            for fd in packet[1]:
                os.close(fd)
            return
        self._inbox.append(packet)
        self._tell()

    def _end(self, *, reset: bool) -> None:
        self._ended = True
        self._reset = reset
        self._tell()
        self._tell_room()

    def _drop(self) -> None:
        for _, fds in self._inbox:
            for fd in fds:
                os.close(fd)
        self._inbox.clear()

    def _tell(self) -> None:
        if self._reader is not None and self.readable and not self._called:
            self._called = True
            self.node.network.loop.call_soon(self._read, context=self._reader[0])

    def _read(self) -> None:
        self._called = False
        # Once for each packet: who reads takes all that is there, ROOM being below what both sides read in one turn.
        if self._reader is not None and self.readable:
            self._reader[1]()

    def _tell_room(self) -> None:
        if self._writer is not None and not self.full:
            self.node.network.loop.call_soon(self._write, context=self._writer[0])

    def _write(self) -> None:
        if self._writer is not None and not self.full:
            self._writer[1]()


def _accept(accept: Accept, end: SimulatedSocket) -> None:
    accept(end)


def socket_module() -> SimpleNamespace:
    """Stands in for the module `socket`."""
    sends = {"socket": SimulatedSocket, "send_fds": lambda end, parts, fds: end.send(b"".join(parts), list(fds))}
    return SimpleNamespace(**{**vars(socket), **sends})


class WakeFd(int):
    """Stands in for an eventfd."""

    pending: bool
    told: Callable[[], None]


def os_module() -> SimpleNamespace:
    """Stands in for the module `os` where only an eventfd is used."""

    def eventfd(*_: int) -> WakeFd:
        made = WakeFd(1 << 30)
        made.pending, made.told = False, lambda: None
        return made

    def write(fd: WakeFd, _: int) -> None:
        fd.pending = True
        fd.told()

    def read(fd: WakeFd) -> None:
        fd.pending = False

    return SimpleNamespace(
        eventfd=eventfd,
        eventfd_write=write,
        eventfd_read=read,
        close=lambda _: None,
        EFD_NONBLOCK=os.EFD_NONBLOCK,
        EFD_CLOEXEC=os.EFD_CLOEXEC,
    )


@dataclass(slots=True)
class Watched:
    """As selectors.SelectorKey."""

    fileobj: Any
    events: int
    data: Any


class Selector:
    """Stands in for selectors.DefaultSelector. told: called when something may have become ready."""

    def __init__(self) -> None:
        self._keys: dict[Any, Watched] = {}
        self.told: Callable[[], None] = lambda: None

    def register(self, source: Any, events: int, data: Any = None) -> None:
        """Watch a socket, or the eventfd (which is polled by its own `told`)."""
        self._keys[source] = Watched(source, events, data)
        if isinstance(source, SimulatedSocket):
            source.watch(self._tell)

    def unregister(self, source: Any) -> None:
        """Watch it no more."""
        del self._keys[source]
        if isinstance(source, SimulatedSocket):
            source.watch(None)
            source.watch_room(None)

    def modify(self, source: Any, events: int, data: Any = None) -> None:
        """Watch for other events."""
        self._keys[source] = Watched(source, events, data)
        source.watch_room(self._tell if events & selectors.EVENT_WRITE else None)

    def get_key(self, source: Any) -> Watched:
        """What is watched."""
        return self._keys[source]

    def select(self, _: float = 0.0) -> list[tuple[Watched, int]]:
        """What is ready now."""
        found = []
        for source, key in self._keys.items():
            if isinstance(source, SimulatedSocket):
                events = selectors.EVENT_READ * source.readable
                events |= selectors.EVENT_WRITE * (bool(key.events & selectors.EVENT_WRITE) and not source.full)
            else:
                events = selectors.EVENT_READ * source.pending
            if events:
                found.append((key, events))
        return found

    def close(self) -> None:
        """Nothing to free."""

    def _tell(self) -> None:
        self.told()
