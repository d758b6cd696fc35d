"""The coordinator's process: builds everything, serves until SIGTERM, leaves. One event loop, no threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from headrace.coordinator import admin_api, refusals, store_address
from headrace.coordinator.access import Access
from headrace.coordinator.board import Board
from headrace.coordinator.grpc_api import CoordinatorService
from headrace.coordinator.heartbeats import HeartbeatRules
from headrace.coordinator.instruments import BoardCollector, Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.coordinator.serve import AdminServer, GrpcServer
from headrace.coordinator.settings import CoordinatorSettings
from headrace.coordinator.store import Store
from headrace.coordinator.store_memory import MemoryStore
from headrace.datasets.manifest import load_manifest
from headrace.datasets.roots import Roots
from headrace.telemetry import logging
from headrace.telemetry.addresses import split_address
from headrace.telemetry.descriptors import SERVICE_NEEDS, need_descriptors, tell_refused_accepts
from headrace.telemetry.parent import exit_with_parent
from headrace.telemetry.settings import load
from headrace.telemetry.tasks import end
from headrace.wire import service_security
from headrace.wire.secret import Secret, secret
from headrace.wire.tls import ServerTls

log = structlog.get_logger()

_HEALTH_S = 0.5
_GRACE_S = 1.0
_OPEN_TO_WORKERS = (
    "require_job_token guards little without a fleet_token: whoever calls himself a worker is given jobs, and with them what "
    "their ranks say to a worker, their tokens too"
)


def main(argv: list[str]) -> None:
    """Run a coordinator from command-line arguments; returns after SIGTERM. Raises HeadraceError, for the caller to print."""
    settings = load(CoordinatorSettings, argv, "headrace coordinator")
    if settings.exit_with_parent:
        exit_with_parent()
    logging.configure("coordinator", settings.log_format, settings.log_level)
    need_descriptors(SERVICE_NEEDS, "the coordinator")
    asyncio.run(run(settings))


async def run(settings: CoordinatorSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUse or ConfigInvalid. A store that is down is waited for, not an error."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    tell_refused_accepts(loop)
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        instruments = Instruments(CollectorRegistry())
        fleet, admin_token, tls = _secured(settings, instruments)
        store: Store = MemoryStore() if settings.store == "memory://" else _redis(settings)
        stack.push_async_callback(store.close)
        ledger = Ledger(store, settings.rules, instruments)
        board = Board(ledger, settings.tick_s, settings.job_keep_days, scaling_interval_s=settings.scaling_interval_s)
        stack.push_async_callback(board.end)
        instruments.registry.register(BoardCollector(board, instruments.moves))
        manifests = Manifests(partial(load_manifest, roots=Roots.of(settings.data_roots)), settings.manifest_cache_s)
        beats = HeartbeatRules(settings.heartbeat_s, settings.worker_ttl_s)
        access = Access(fleet, settings.require_job_token)
        service = CoordinatorService(ledger, board, manifests, beats, instruments, access=access)
        server = GrpcServer(service, settings.grpc_address, tls.grpc_credentials() if tls else None)
        await server.tell_health(False)
        await server.start()
        stack.push_async_callback(server.close, _GRACE_S)
        admin_port = 0
        if settings.admin_address:
            application = admin_api.build(board, ledger, instruments, manifests, admin_token)
            admin = AdminServer(application, settings.admin_address, tls.http_context() if tls else None)
            await admin.start()
            stack.push_async_callback(admin.close)
            admin_port = admin.port
        service_security.tell_open(
            (settings.grpc_address, settings.admin_address),
            TLS=tls is None,
            fleet_token=fleet is None,
            admin_token=admin_token is None and bool(settings.admin_address),
            require_job_token=not settings.require_job_token,
        )
        if settings.require_job_token and fleet is None:
            log.warning("fleet_token_missing", note=_OPEN_TO_WORKERS)
        log.info("coordinator_ready", grpc_port=server.port, admin_port=admin_port)
        await _serve(board, server, stop)
        log.info("coordinator_stopping")


def _redis(settings: CoordinatorSettings) -> Store:
    return store_address.connect(
        settings.store,
        settings.store_prefix,
        settings.store_deadline_s,
        password_file=settings.store_password_file,
        ca=settings.store_tls_ca,
    )


def _secured(settings: CoordinatorSettings, instruments: Instruments) -> tuple[Secret | None, Secret | None, ServerTls | None]:
    """(the fleet's token, the admin API's, TLS). Raises ConfigInvalid, also for tokens without TLS."""
    fleet = secret("fleet_token", settings.fleet_token.get_secret_value(), settings.fleet_token_file)
    admin = secret("admin_token", settings.admin_token.get_secret_value(), settings.admin_token_file)
    tls = service_security.server_tls(settings, instruments.tls_reloaded, _tls_refused(instruments))
    instruments.secrets = tuple(found for found in (fleet, admin) if found is not None)
    instruments.certificate(tls)
    grpc_tokens = fleet is not None or settings.require_job_token
    addresses = [settings.grpc_address] if grpc_tokens else []
    addresses += [settings.admin_address] if admin is not None and settings.admin_address else []
    hosts = [split_address(address)[0] for address in addresses]
    service_security.check_plaintext(settings, bool(addresses), tls is not None, hosts, "this coordinator")
    return fleet, admin, tls


def _tls_refused(instruments: Instruments) -> Callable[[str], None]:
    return lambda why: instruments.turned_away(refusals.TLS, f"a client of the admin address fails in its TLS handshake: {why}")


async def _serve(board: Board, server: GrpcServer, stop: asyncio.Event) -> None:
    passes = asyncio.create_task(board.run(), name="passes")
    health = asyncio.create_task(_follow_health(board, server), name="health")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    done, _ = await asyncio.wait({passes, health, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await end(passes, health, stopped)
    for task in done - {stopped}:
        task.result()  # a loop ended by itself: its error is the process's


async def _follow_health(board: Board, server: GrpcServer) -> None:
    told: bool | None = None
    while True:
        if told != board.healthy:
            told = board.healthy
            await server.tell_health(told)
        await asyncio.sleep(_HEALTH_S)
