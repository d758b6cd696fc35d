"""Serves ranks of other nodes: batches as 4 MiB chunks of raw bytes over `WorkerService/StreamBatches`.

Messages are bytes (wire.messages) in both directions: protobuf would cost three more copies of every pixel. A batch is
written by the engine into one of two staging slots of its rank and sent from there, so a slow or stalled rank holds its
own two slots and nothing else. Per chunk there is one copy here (header and bytes joined, since grpcio takes only `bytes`)
and those inside grpcio.

`stream` of one rank: a reader (NEXT) and a sender (everything else) as two tasks, until one of them ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
import xxhash
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, HeadraceError, PortInUse, ProtocolMismatch, WaitTimeout
from headrace.telemetry.failures import unexpected
from headrace.wire import messages
from headrace.worker.rank_port import NOT_ADMITTED, RankPort, RankRegister, refusal
from headrace.worker.slab import Slab, make_slab

_log = structlog.get_logger()

SERVICE = "headrace.v1.WorkerService"
METHOD = "StreamBatches"
STAGING_SLOTS = 2  # one is written while the other is sent
_REFUSE_GRACE_S = 1.0
DRAIN_METADATA = (("x-drain", "1"),)

# Keepalive finds hosts that vanish. A client pings every few seconds also while no batch flows: the defaults would
# answer that with GOAWAY too_many_pings. Without so_reuseport=0 a second worker on the port would silently share it.
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", messages.MAX_CONTROL_BYTES),
    ("grpc.max_send_message_length", 2 * messages.CHUNK_BYTES),
    ("grpc.max_concurrent_streams", limits.STREAMS_A_CONNECTION),
    ("grpc.server_handshake_timeout_ms", int(1000 * limits.GRPC_HANDSHAKE_S)),
    ("grpc.max_connection_idle_ms", int(1000 * limits.GRPC_IDLE_S)),
)

Write = Callable[[bytes], Awaitable[None]]


class GrpcServer:
    """Listens at `address` (host:port; port 0 takes a free one, then see `port`).

    hello_deadline_s: within which a stream must have said HELLO. stall_deadline_s: a rank that takes no byte of a pending
    send for so long is cut; it always has slots for what it was granted, so only a peer that vanished or hangs does that.
    """

    def __init__(
        self,
        register: RankRegister,
        address: str,
        *,
        credentials: grpc.ServerCredentials | None = None,
        hello_deadline_s: float = 5.0,
        stall_deadline_s: float = 30.0,
    ) -> None:
        self._register = register
        self._address = address
        self._credentials = credentials
        self._hello_deadline_s = hello_deadline_s
        self._stall_deadline_s = stall_deadline_s
        self._server: grpc.aio.Server | None = None
        self._health = health_aio.HealthServicer()
        self._ports: set[GrpcPort] = set()
        self._watchdog: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen and report SERVING. Raises PortInUse or ConfigInvalid."""
        _check_address(self._address)
        server = grpc.aio.server(options=OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._stream
        )  # no serializers: bytes
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            await server.stop(None)
            raise PortInUse(
                f"cannot listen at {self._address}: it is taken or not an address of this host ({error})", address=self._address
            ) from error
        await server.start()
        self._server = server
        self._watchdog = asyncio.create_task(self._cut_stalled())
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Report NOT_SERVING and tell all ranks that nothing new is started here; what is published is still sent."""
        self._register.draining = True
        await self._health.enter_graceful_shutdown()
        for port in list(self._ports):
            port.drain()

    async def close(self, grace_s: float) -> None:
        """Finish the batches that are published, then end all streams, after `grace_s` at the latest. May be called again."""
        if self._server is None:
            return
        server, self._server = self._server, None
        for port in list(self._ports):
            port.finish()
        await server.stop(grace_s)
        if self._watchdog is not None:
            self._watchdog.cancel()
        for port in list(self._ports):
            port.close("the worker stops")

    async def _stream(self, _requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        try:
            port = await self._open(context)
        except HeadraceError as error:
            _log.info("grpc_rank_refused", code=error.code, error=str(error), peer=context.peer())
            await context.write(refusal(error))
            return
        self._ports.add(port)
        reason = "the stream was cancelled"
        try:
            self._register.add(port)
            if self._register.draining:
                port.drain()
            reason = await port.serve(context)
        finally:
            self._ports.discard(port)
            port.close(reason)
        if self._register.draining:
            context.set_trailing_metadata(DRAIN_METADATA)

    async def _open(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> GrpcPort:
        try:
            async with asyncio.timeout(self._hello_deadline_s):
                data = await _read(context)
        except TimeoutError as error:
            raise WaitTimeout(f"no HELLO came within {self._hello_deadline_s} s") from error
        hello = messages.decode(data or b"")
        if not isinstance(hello, messages.Hello):
            raise ProtocolMismatch(f"unexpected {type(hello).__name__}: a rank sends one HELLO, then NEXT")
        try:
            room = await self._register.admit(hello)
            slab = await make_slab(STAGING_SLOTS, room.slot_bytes)
        except HeadraceError:
            raise
        except Exception as error:
            raise unexpected("grpc_admit_failed", NOT_ADMITTED, error, job=hello.job, rank=hello.rank) from error
        return GrpcPort(self._register, hello, slab, self._register.welcome(room.window, room.slot_bytes))

    async def _cut_stalled(self) -> None:
        while True:
            await asyncio.sleep(self._stall_deadline_s / 4)
            oldest = time.monotonic() - self._stall_deadline_s
            for port in list(self._ports):
                if port.sending_since_s is not None and port.sending_since_s < oldest:
                    port.close(f"no byte was taken for {self._stall_deadline_s} s")


@dataclass(frozen=True, slots=True)
class _Staged:
    number: int
    token: int
    total_bytes: int


class GrpcPort(RankPort):
    """A rank behind a stream. A staging slot is busy from `acquire` until its last chunk is handed to gRPC."""

    transport = "grpc"

    def __init__(self, register: RankRegister, hello: messages.Hello, slab: Slab, welcome: messages.Welcome) -> None:
        super().__init__(register, hello, slab, welcome.slots)
        self._generation = welcome.generation
        self._control: deque[bytes] = deque((messages.encode(welcome),))
        self._staged: dict[int, _Staged] = {}
        self._sending: _Staged | None = None
        self._wake = asyncio.Event()
        self._gone: asyncio.Future[str] = self._loop.create_future()
        self._finishing = False
        self._violation: ProtocolMismatch | None = None
        self.sending_since_s: float | None = None  # since when a write waits for gRPC; None while none does

    async def serve(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
        """Read and send until the rank leaves, `close`, or `finish` with nothing left to send. Returns why it ended."""
        tasks = [asyncio.create_task(self._read_loop(context)), asyncio.create_task(self._send_loop(context.write))]
        try:
            done, _ = await asyncio.wait([*tasks, self._gone], return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Send DRAIN."""
        self._send(messages.Drain())

    def finish(self) -> None:
        """End the stream once all that is published is sent."""
        self._finishing = True
        self._wake.set()

    async def _read_loop(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
        try:
            while (data := await _read(context)) is not None:
                message = messages.decode(data)
                if not isinstance(message, messages.Next):
                    raise ProtocolMismatch(f"unexpected {type(message).__name__}: a rank sends one HELLO, then NEXT")
                self.advance(message.index)
        except ProtocolMismatch as error:
            self._violation = error
            self._wake.set()
            await asyncio.sleep(_REFUSE_GRACE_S)  # the sender says it and ends the stream
            return error.message
        except grpc.RpcError as error:
            return f"receive failed: {error!r}"
        return "the rank ended the stream"

    async def _send_loop(self, write: Write) -> str:
        try:
            while self._violation is None:
                await self._send_control(write)
                if self._staged:
                    await self._send_batch(write, min(self._staged))
                elif self._finishing:
                    return "all was sent"
                else:
                    self._wake.clear()
                    await self._wake.wait()
            await self._write(write, refusal(self._violation))
            return self._violation.message
        except grpc.RpcError as error:
            return f"send failed: {error!r}"

    async def _send_control(self, write: Write) -> None:
        while self._control:
            await self._write(write, self._control.popleft())

    async def _send_batch(self, write: Write, index: int) -> None:
        batch = self._sending = self._staged.pop(index)
        try:
            with self._slab.slot(batch.number) as view:
                checksum = await self._send_chunks(write, index, batch, view)
            if checksum is not None:
                ready = messages.Ready(index, batch.token, self._generation, batch.total_bytes, checksum)
                await self._write(write, messages.encode(ready))
        finally:
            self._sending = None
            self._slot_freed()

    async def _send_chunks(self, write: Write, index: int, batch: _Staged, view: memoryview) -> int | None:
        """Returns the checksum, or None if it was not sent to the end."""
        digest = xxhash.xxh3_64()
        for offset in range(0, batch.total_bytes, messages.CHUNK_BYTES):
            if index < self.next_index or self._violation is not None:  # it was made elsewhere, or nobody will read it
                return None
            with view[offset : min(offset + messages.CHUNK_BYTES, batch.total_bytes)] as data:
                digest.update(data)
                message = b"".join((messages.chunk_header(index, batch.token, offset, len(data)), data))
            await self._write(write, message)
            await self._send_control(write)
        return digest.intdigest()

    async def _write(self, write: Write, data: bytes) -> None:
        self.sending_since_s = time.monotonic()
        await write(data)
        self.sending_since_s = None

    def _free_slot(self, index: int) -> int | None:
        busy = {*self._writing.values(), *(batch.number for batch in self._staged.values())}
        if self._sending is not None:
            busy.add(self._sending.number)
        return next((number for number in range(STAGING_SLOTS) if number not in busy), None)

    def _hand_over(self, index: int, number: int, token: int, total_bytes: int) -> None:
        self._staged[index] = _Staged(number, token, total_bytes)
        self._wake.set()

    def _send(self, message: messages.Message) -> None:
        if not self.closed:
            self._control.append(messages.encode(message))
            self._wake.set()

    def _disconnect(self, reason: str) -> None:
        self._staged.clear()
        if not self._gone.done():
            self._gone.set_result(reason)

    def _ready(self) -> int:
        """Those that are sent, or wait for it: what has reached the rank is in its own memory."""
        return len(self._staged) + (self._sending is not None)

    def _busy(self) -> bool:
        return super()._busy() or self._sending is not None


async def _read(context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes | None:
    """The next message, or None at the stream's end."""
    data: Any = await context.read()
    return None if data is grpc.aio.EOF else data


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigInvalid(f"listening address {address!r} must be host:port", address=address)
