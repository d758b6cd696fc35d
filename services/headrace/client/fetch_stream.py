"""One gRPC stream of the fetcher to one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from headrace.core.errors import HeadraceError, PeerGone
from headrace.telemetry.failures import unexpected
from headrace.wire import messages
from headrace.wire.calls import Calls
from headrace.wire.messages import Hello, Message, Next
from headrace.wire.tls import open_aio_channel

METHOD = "/headrace.v1.WorkerService/StreamBatches"

# Keepalive finds a worker whose host vanished; the worker's server allows pings at this rate. Each stream has its own
# TCP connection, so that one worker's flow control is not another's.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 2 * messages.CHUNK_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
)

Deliver = Callable[["Stream", Message], Awaitable[None]]


class Stream:
    """A link. All methods run on the fetcher's loop."""

    def __init__(
        self, link: int, target: str, worker: str, hello: Hello, deliver: Deliver, *, calls: Calls | None = None
    ) -> None:
        self._calls = calls or Calls()
        self.link = link
        self._target = target
        self._worker = worker
        self._hello = hello
        self._deliver = deliver
        self._next = hello.next
        self._moved = asyncio.Event()
        self._began = False
        self._ended: HeadraceError | None = None
        self._task: asyncio.Task[None] | None = None

    def send_next(self, index: int) -> None:
        """The rank's window moved."""
        self._next = max(self._next, index)
        self._moved.set()

    def cancel(self) -> None:
        """End without a word."""
        self.end(PeerGone("ended by the trainer"))

    def end(self, error: HeadraceError) -> None:
        """End, giving this reason."""
        self._ended = self._ended or error
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> HeadraceError:
        """Connect, introduce, deliver until the stream ends; returns why it ended. Raises nothing that a peer can cause."""
        self._task = asyncio.create_task(self._exchange())
        try:
            await self._task
        except asyncio.CancelledError:
            return self._ended or PeerGone("the fetcher ends")
        except grpc.aio.AioRpcError as error:
            return await self._lost(error.code(), error.details())
        except HeadraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever gRPC has in store: the trainer must hear that this stream is over
            what = f"stream to worker {self._worker} at {self._target} failed"
            return unexpected("stream_failed", what, error, worker=self._worker, target=self._target)
        return self._ended or PeerGone(f"worker {self._worker} ended the stream")

    async def _lost(self, code: grpc.StatusCode, details: str | None) -> PeerGone:
        """The stream's end in words; of one that never began, with what is wrong between this side's TLS and the worker's."""
        error = PeerGone(f"stream to worker {self._worker} at {self._target}: {code.name} {details}")
        why = ""
        if code is grpc.StatusCode.UNAVAILABLE and not self._began:
            why = await asyncio.to_thread(self._calls.explain, self._target, error)
        return PeerGone(f"{error.message}; {why}") if why else error

    async def _exchange(self) -> None:
        if self._ended is not None:
            return
        async with open_aio_channel(self._target, CHANNEL_OPTIONS, self._calls.tls) as channel:
            method: Any = channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
            call = method()
            sender = asyncio.create_task(self._send(call))
            try:
                # EOF is the only thing read that is not bytes.
                while isinstance(data := await call.read(), bytes):
                    self._began = True
                    await self._deliver(self, messages.decode(data))
                code, details = await call.code(), await call.details()
                if code is not grpc.StatusCode.OK:
                    raise await self._lost(code, details)
            finally:
                sender.cancel()
                call.cancel()

    async def _send(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        sent = self._hello.next
        try:
            await call.write(messages.encode(self._hello))
            while True:
                await self._moved.wait()
                self._moved.clear()
                if self._next > sent:
                    sent = self._next
                    await call.write(messages.encode(Next(sent)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; the reading side has the reason
