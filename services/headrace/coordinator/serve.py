"""The coordinator's two servers: gRPC for trainers and workers, HTTP for people and probes. Both on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator

import grpc
import grpc.aio
import uvicorn
from fastapi import FastAPI
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from headrace.coordinator.grpc_api import SERVICE, CoordinatorService
from headrace.coordinator.http_guard import RequestLimits, guarded
from headrace.core import limits
from headrace.core.errors import ConfigInvalid, HeadraceError, PortInUse
from headrace.telemetry.addresses import split_address
from headrace.wire.gen import coordinator_service_pb2_grpc as pb_grpc

_OPTIONS = (
    # With port sharing, a second coordinator on the same port would silently take half of the calls.
    ("grpc.so_reuseport", 0),
    # Idle watchers keep their connections through middleboxes; pings of clients are welcome.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES),
    ("grpc.max_send_message_length", limits.ANSWER_BYTES),
    ("grpc.max_concurrent_streams", limits.STREAMS_A_CONNECTION),
    # Whoever connects and says nothing is gone again soon.
    ("grpc.server_handshake_timeout_ms", int(1000 * limits.GRPC_HANDSHAKE_S)),
    ("grpc.max_connection_idle_ms", int(1000 * limits.GRPC_IDLE_S)),
)
_TICK_S = 1.0
_BACKLOG = 32  # asyncio accepts that many at a time, and tries each also while there is no descriptor


class GrpcServer:
    """gRPC with health and reflection. port: what it listens on, once started."""

    def __init__(self, service: CoordinatorService, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self._address = address
        self._credentials = credentials
        self._server = grpc.aio.server(options=_OPTIONS)
        self._health = health_aio.HealthServicer()
        pb_grpc.add_CoordinatorServiceServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises PortInUse or ConfigInvalid."""
        split_address(self._address)
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise _why_not_bound(self._address, "--grpc-address") from error
        await self._server.start()

    async def tell_health(self, healthy: bool) -> None:
        """What the standard health service answers."""
        states = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._health.set(name, states.SERVING if healthy else states.NOT_SERVING)

    async def close(self, grace_s: float) -> None:
        """Refuse new calls, end the others within `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


class _Quiet(uvicorn.Server):
    """Leaves signals to the coordinator, and sleeps where uvicorn looks ten times a second whether it shall end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Have `serve` close and return."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        """See uvicorn; its tick number 0 renews the Date header."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminServer:
    """HTTP on a socket of its own. port: what it listens on, once started."""

    def __init__(self, app: FastAPI, address: str, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            RequestLimits(app), http=guarded(), log_config=None, log_level="warning", access_log=False,
            lifespan="off", timeout_graceful_shutdown=1, backlog=_BACKLOG,
        )  # fmt: skip
        config.load()
        config.ssl = tls
        self._server = _Quiet(config)
        self._address = address
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises PortInUse or ConfigInvalid."""
        try:
            self._socket = _bound(self._address)
        except OSError as error:
            raise _bind_error(self._address, "--admin-address", error) from error
        self.port = self._socket.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin")

    async def close(self) -> None:
        """End open requests within a second."""
        if self._task is not None:
            self._server.end()
            await self._task
        if self._socket is not None:
            self._socket.close()


def _bound(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _why_not_bound(address: str, flag: str) -> HeadraceError:
    """gRPC only says that it failed: find out why by trying ourselves."""
    try:
        _bound(address).close()
    except OSError as error:
        return _bind_error(address, flag, error)
    return PortInUse(f"{address} was taken a moment ago; try again, or choose another by {flag}", address=address)


def _bind_error(address: str, flag: str, error: OSError) -> HeadraceError:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{address} is taken by another process; stop it, or choose another by {flag}", address=address)
    return ConfigInvalid(f"cannot listen on {address}: {error.strerror or error}; choose another by {flag}", address=address)
