"""Serves ranks of the same node: slots of a shared slab, messages over a Unix SOCK_SEQPACKET socket.

One connection a rank. HELLO is answered by WELCOME, with which the slab's descriptor rides once (SCM_RIGHTS); after that only
numbers travel. A rank that takes batches on this worker's GPU gets a device slab for the pixels, too (worker.device_share), and
nothing is made for it before both have seen the other's pattern there. Everything runs on the event loop thread and nothing
there ever blocks on a peer: what a full socket does not take waits in a bounded outbox. A closed socket means that the rank is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from dataclasses import replace
from pathlib import Path

import structlog

from headrace.core.errors import HeadraceError, ProtocolMismatch, WaitTimeout
from headrace.telemetry.failures import unexpected
from headrace.wire import messages, slot_format
from headrace.worker.device_share import DeviceShare, DeviceSlab
from headrace.worker.local_port import LocalPort
from headrace.worker.rank_port import MAX_TEXT, NOT_ADMITTED, RankRegister, refusal
from headrace.worker.slab import Slab, make_slab
from headrace.worker.unix_socket import BoundSocket

_log = structlog.get_logger()

_MAX_OUTBOX = 4096  # messages; a rank within its window never has nearly so many
_READS_A_TURN = 64
_ACCEPT_PAUSE_S = 0.5


class LocalServer:
    """Listens at `path`. hello_deadline_s: within which a connection must have said HELLO. devices: GPU memory for ranks."""

    def __init__(
        self,
        register: RankRegister,
        path: Path,
        *,
        hello_deadline_s: float = 5.0,
        mode: int = 0o600,
        devices: DeviceShare | None = None,
    ) -> None:
        self._register = register
        self._path = path
        self._mode = mode
        self._bound: BoundSocket | None = None
        self.hello_deadline_s = hello_deadline_s
        self.receive_buffer = bytearray(messages.MAX_CONTROL_BYTES + 1)
        self.connections: set[_Connection] = set()
        self.devices = devices or DeviceShare()
        self._empty = asyncio.Event()

    async def start(self) -> None:
        """Listen. Raises PortInUse or ConfigInvalid."""
        self._bound = BoundSocket(self._path, mode=self._mode)
        asyncio.get_running_loop().add_reader(self._bound.socket, self._accept)

    async def drain(self) -> None:
        """Tell all ranks that nothing new is started here; what is published stays readable."""
        self._register.draining = True
        for connection in list(self.connections):
            connection.drain()

    async def close(self, grace_s: float) -> None:
        """Stop listening, give ranks `grace_s` to leave, then end what is left. May be called again."""
        if self._bound is not None:
            asyncio.get_running_loop().remove_reader(self._bound.socket)
            self._bound.close()
            self._bound = None
        self._empty.clear()
        if self.connections:
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                _log.info("local_ranks_cut", count=len(self.connections), grace_s=grace_s)
        for connection in list(self.connections):
            connection.end("the worker stops")
        await self.devices.close()

    def forget(self, connection: _Connection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def _accept(self) -> None:
        if self._bound is None:
            return
        try:
            peer, _ = self._bound.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors: the backlog keeps the peer; trying at once would spin
            _log.warning("local_accept_failed", error=error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._bound.socket)
            loop.call_later(_ACCEPT_PAUSE_S, self._resume_accept)
            return
        peer.setblocking(False)
        self.connections.add(_Connection(self, self._register, peer))

    def _resume_accept(self) -> None:
        if self._bound is not None:
            asyncio.get_running_loop().add_reader(self._bound.socket, self._accept)


class _Connection:
    """One socket: from accept over HELLO to its end."""

    def __init__(self, server: LocalServer, register: RankRegister, peer: socket.socket) -> None:
        self._server = server
        self._register = register
        self._socket = peer
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._port: LocalPort | None = None
        self._early_next = 0
        self._probed: asyncio.Future[None] | None = None
        self._ended = False
        self._hello_timer = self._loop.call_later(server.hello_deadline_s, self._hello_overdue)
        self._loop.add_reader(peer, self._readable)

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send, or keep for later if the socket is full. Errors end the connection, but not from inside this call."""
        if self._ended:
            return
        if not self._outbox and self._try_send(data, fds):
            return
        self._outbox.append((data, fds))
        if len(self._outbox) == 1:
            self._loop.add_writer(self._socket, self._writable)
        elif len(self._outbox) > _MAX_OUTBOX:
            self._loop.call_soon(self.end, "the rank does not read its messages")

    def drain(self) -> None:
        """Send DRAIN once the rank is connected."""
        if self._port is not None:
            self.send(messages.encode(messages.Drain()))

    def end(self, reason: str) -> None:
        """Close the socket and the port; may be called again."""
        if self._ended:
            return
        self._ended = True
        self._hello_timer.cancel()
        if self._opening is not None and self._opening is not asyncio.current_task(self._loop):
            self._opening.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._outbox.clear()
        self._server.forget(self)
        if self._port is not None:
            self._port.close(reason)

    def _try_send(self, data: bytes, fds: tuple[int, ...]) -> bool:
        try:
            if fds:
                socket.send_fds(self._socket, [data], fds)
            else:
                self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._loop.call_soon(self.end, f"send failed: {error.strerror}")
        return True

    def _writable(self) -> None:
        while self._outbox:
            if not self._try_send(*self._outbox[0]):
                return
            self._outbox.popleft()
        self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        buffer = self._server.receive_buffer
        for _ in range(_READS_A_TURN):
            if self._ended:
                return
            try:
                count, _, flags, _ = self._socket.recvmsg_into([buffer])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.end(f"receive failed: {error.strerror}")
                return
            if count == 0:
                self.end("the rank closed the connection")
                return
            try:
                if flags & socket.MSG_TRUNC:
                    raise ProtocolMismatch(f"a message is longer than {messages.MAX_CONTROL_BYTES} bytes")
                self._received(messages.decode(memoryview(buffer)[:count]))
            except ProtocolMismatch as error:
                self._refuse(error)

    def _received(self, message: messages.Message) -> None:
        if isinstance(message, messages.Hello) and self._opening is None:
            self._hello_timer.cancel()
            self._opening = self._loop.create_task(self._open(message))
        elif isinstance(message, messages.Next) and self._opening is not None:
            if self._port is None:
                self._early_next = max(self._early_next, message.index)
            else:
                self._port.advance(message.index)
        elif isinstance(message, messages.Probed) and self._probed is not None and not self._probed.done():
            self._probed.set_result(None)
        else:
            raise ProtocolMismatch(f"unexpected {type(message).__name__}: a rank sends one HELLO, then NEXT")

    async def _open(self, hello: messages.Hello) -> None:
        try:
            async with contextlib.AsyncExitStack() as undo:
                await self._admit(hello, undo)
        except HeadraceError as error:
            self._refuse(error)
            return
        except Exception as error:  # noqa: BLE001 - the edge: the rank must hear of it, the server must go on
            self._refuse(unexpected("local_admit_failed", NOT_ADMITTED, error, job=hello.job, rank=hello.rank))
            return

    async def _admit(self, hello: messages.Hello, undo: contextlib.AsyncExitStack) -> None:
        """Give the rank its slabs and, once it has shown that it sees them, a port. undo: what to do if it comes to nothing."""
        room = await self._register.admit(hello)
        devices = self._server.devices
        offer = await devices.offer(hello, room.pixel_bytes, room.window)
        slot_bytes = room.slot_bytes
        if offer.slab is not None:
            undo.callback(devices.retire, offer.slab)
            slot_bytes = slot_format.host_slot_bytes(room.slot_bytes, room.pixel_bytes)
        slab = await make_slab(room.window, slot_bytes)
        undo.callback(slab.close)
        if self._ended:
            return
        welcome = self._register.welcome(room.window, slot_bytes)
        if offer.slab is not None:
            await self._prove(welcome, slab, offer.slab)
        else:
            self.send(messages.encode(replace(welcome, why_not=offer.why_not[:MAX_TEXT])), (slab.fd,))
        if self._ended:
            return
        undo.pop_all()
        port = LocalPort(self._register, hello, slab, room.window, connection=self, generation=welcome.generation)
        if offer.slab is not None:
            port.use_device(offer.slab, devices)
        port.advance_quietly(self._early_next)
        self._port = port
        self._register.add(port)
        if self._register.draining:
            self.drain()

    async def _prove(self, welcome: messages.Welcome, slab: Slab, device: DeviceSlab) -> None:
        """Offer a device slab and wait until the rank has answered its pattern. Raises TransportUnavailable, WaitTimeout."""
        self._probed = self._loop.create_future()
        fds = (slab.fd, device.handle.fd) if device.handle.fd >= 0 else (slab.fd,)
        self.send(messages.encode(device.describe(welcome)), fds)
        try:
            async with asyncio.timeout(self._server.hello_deadline_s):
                await self._probed
        except TimeoutError:
            raise WaitTimeout(f"no PROBED came within {self._server.hello_deadline_s} s") from None
        await asyncio.to_thread(device.prove)

    def _refuse(self, error: HeadraceError) -> None:
        _log.info("local_rank_refused", code=error.code, error=str(error))
        self.send(refusal(error))
        self._discard_input()
        self.end(error.message)

    def _discard_input(self) -> None:
        """Unread messages would turn our close into a reset at the peer, which could hide the REFUSE."""
        try:
            for _ in range(_MAX_OUTBOX):
                if self._socket.recv_into(self._server.receive_buffer) == 0:
                    return
        except OSError:
            return  # nothing left to read, or gone

    def _hello_overdue(self) -> None:
        self._refuse(WaitTimeout(f"no HELLO came within {self._server.hello_deadline_s} s"))
