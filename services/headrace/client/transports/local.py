"""A link to a worker on this node: a Unix SOCK_SEQPACKET socket for messages, and its slabs mapped."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

from headrace.client.transports.device_slab import ImportedSlab, import_slab
from headrace.client.transports.mapping import Slab, map_slab
from headrace.core import limits
from headrace.core.errors import PeerGone, ProtocolMismatch
from headrace.telemetry.failures import no_descriptor
from headrace.telemetry.socket_trust import check_peer, distrusted, explained, trusted_owners
from headrace.wire import messages
from headrace.wire.device_memory import Device
from headrace.wire.messages import Hello, Message, Welcome

_MESSAGES_A_CALL = 64  # then the other links have their turn
_MAX_FDS = limits.DESCRIPTORS
_FD = struct.Struct("i")


class LocalLink:
    """One connection. Used under the intake's lock, by any thread; never blocks.

    Raises OSError from the constructor if the worker cannot be reached or may be somebody else. slab: None until WELCOME came.
    more: the last read took all that it may at once, so that more is to be read. marks: batches taken by them since that read.
    device: the GPU that `hello` names, if it names one. offered: kind of the device slab that the worker offered, or empty;
    why_no_device: its word why it offered none.
    """

    def __init__(self, number: int, worker: str, path: str, hello: Hello, device: Device | None = None) -> None:
        self.number = number
        self.device = device
        self.offered = ""
        self.why_no_device = ""
        self.worker = worker
        self.slab: Slab | None = None
        self.more = False
        self.marks = 0
        self._unsent: int | None = None
        self._buffer = bytearray(messages.MAX_CONTROL_BYTES)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            owners = trusted_owners()
            self._connect(path, owners)
            check_peer(self.socket, owners)  # before it hears our token
            self.socket.send(messages.encode(hello))
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, path: str, owners: frozenset[int]) -> None:
        try:
            reason = distrusted(os.path.dirname(path), owners)  # noqa: PTH120 - a text, as the coordinator has it
            if not reason:
                self.socket.connect(path)
        except OSError as error:
            raise explained(path, error) from error
        if reason:
            raise PermissionError(errno.EACCES, reason)

    @property
    def wants_write(self) -> bool:
        """True while a NEXT waits for room in the socket."""
        return self._unsent is not None

    def send_next(self, index: int) -> bool:
        """Tell the worker what is released. False if it has no room: it gets the newest number later."""
        self._unsent = None
        try:
            self.socket.send(messages.next_message(index))
        except BlockingIOError:
            self._unsent = index
        except OSError:
            pass  # the connection is over: reading says so, after what came before
        return self._unsent is None

    def flush(self) -> None:
        """Send what waits."""
        if self._unsent is not None:
            self.send_next(self._unsent)

    def receive(self) -> Iterator[Message]:
        """The messages that are there.

        Raises PeerGone at the end of the connection, ProtocolMismatch on anything malformed, OutOfDescriptors where a slab
        takes more than this process may open, TransportUnavailable where a device slab that was offered cannot be used here.
        """
        self.more, self.marks = False, 0
        for _ in range(_MESSAGES_A_CALL):
            try:
                size, fds, flags = self._receive_one()
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # our unread NEXT was lost with the worker; what it had sent before can still be read
            try:
                if size == 0:
                    raise PeerGone(f"worker {self.worker} closed its socket", worker=self.worker)
                if flags & socket.MSG_CTRUNC and len(fds) < _MAX_FDS:
                    raise no_descriptor(f"the memory of worker {self.worker} cannot be received", worker=self.worker)
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise ProtocolMismatch(f"worker {self.worker} sent an oversize message", worker=self.worker)
                message = messages.decode(memoryview(self._buffer)[:size])
                if isinstance(message, Welcome):
                    self._map(message, fds)
                elif fds:
                    raise ProtocolMismatch(f"worker {self.worker} sent a descriptor with {type(message).__name__}")
            finally:
                for fd in fds:
                    os.close(fd)
            yield message
        self.more = True

    def close(self) -> None:
        """End the connection; the slab's mapping is its owner's to close."""
        self.socket.close()

    def _receive_one(self) -> tuple[int, list[int], int]:
        space = socket.CMSG_SPACE(_MAX_FDS * _FD.size)
        size, ancillary, flags, _ = self.socket.recvmsg_into([self._buffer], space, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += [fd for (fd,) in _FD.iter_unpack(data[: len(data) - len(data) % _FD.size])]
        return size, fds, flags

    def _map(self, welcome: Welcome, fds: list[int]) -> None:
        device_fds = int(bool(welcome.memory) and not welcome.handle)
        if self.slab is not None or len(fds) != 1 + device_fds:
            raise ProtocolMismatch(f"worker {self.worker} sent WELCOME twice or without its descriptors", worker=self.worker)
        messages.check_protocol(welcome.protocol, f"worker {self.worker}")
        self.why_no_device = welcome.why_not
        self.offered = welcome.memory
        device = import_slab(self.device, welcome, fds[1] if device_fds else -1) if welcome.memory else None
        try:
            self.slab = self._mapped(welcome, fds[0], device)
        except BaseException:
            if device is not None:
                device.close()
            raise
        if device is not None:
            self.socket.send(messages.encode(messages.Probed()))

    def _mapped(self, welcome: Welcome, fd: int, device: ImportedSlab | None) -> Slab:
        slab = map_slab(
            fd,
            self.number,
            slots=welcome.slots,
            slot_bytes=welcome.slot_bytes,
            generation=welcome.generation,
            transport="shm" if device is None else "cuda_ipc",
            who=f"worker {self.worker}",
            foreign=True,
        )
        slab.device = device
        return slab
