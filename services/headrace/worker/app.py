"""The worker's process: builds everything, serves until SIGTERM, drains, leaves.

One asyncio loop in the main thread (heartbeats, both servers, reads); threads: one for the engine's batches, the
engine's own pool, and prometheus_client's HTTP server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import structlog
from prometheus_client import CollectorRegistry

from headrace.core.errors import ConfigInvalid, HeadraceError
from headrace.core.job import Endpoint
from headrace.core.placement import GPU_ENGINES
from headrace.datasets.roots import Roots
from headrace.telemetry import logging
from headrace.telemetry.addresses import split_address
from headrace.telemetry.descriptors import SERVICE_NEEDS, need_descriptors
from headrace.telemetry.node import node_id
from headrace.telemetry.parent import exit_with_parent
from headrace.telemetry.settings import load
from headrace.telemetry.tasks import end
from headrace.wire import service_security
from headrace.wire.calls import Calls
from headrace.wire.cuda_device import open_device
from headrace.wire.malloc import tune_malloc
from headrace.wire.secret import Secret, secret
from headrace.wire.tls import ServerTls
from headrace.worker import socket_dir
from headrace.worker.device_share import DeviceShare
from headrace.worker.engines.protocol import Engine
from headrace.worker.gauges import export_gpus
from headrace.worker.health import Health
from headrace.worker.lease_loop import Identity, LeaseLoop
from headrace.worker.metrics_http import MetricsServer
from headrace.worker.placement import make_engine
from headrace.worker.producer import Limits, Producer
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import GrpcServer
from headrace.worker.serve_local import LocalServer
from headrace.worker.settings import WorkerSettings
from headrace.worker.sources.sharded import open_source
from headrace.worker.stats import WorkerStats
from headrace.worker.tools import Toolbox
from headrace.worker.work import Sessions

log = structlog.get_logger()

# Tries of the heartbeat that hands the lanes back.
_LAST_BEATS = 5
# Batches in flight have so long before the lanes go; most take a fraction of it.
_FINISH_S = 1.0
_LAST_WORDS_S = 1.0


def main(argv: list[str]) -> None:
    """Run a worker from command-line arguments; returns after a clean drain. Raises HeadraceError, for the caller to print."""
    settings = load(WorkerSettings, argv, "headrace worker")
    if settings.exit_with_parent:
        exit_with_parent()
    tune_malloc()
    logging.configure("worker", settings.log_format, settings.log_level, worker=settings.worker_id)
    need_descriptors(SERVICE_NEEDS, "the worker")
    asyncio.run(run(settings))


async def run(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises PortInUse, ConfigInvalid."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    engine = make_engine(settings.engine, settings.cores)
    in_flight = settings.batches_in_flight + engine.batches_at_once - 1
    stats = WorkerStats(CollectorRegistry(), in_flight)
    sessions = Sessions()
    limits = Limits(
        in_flight,
        settings.read_ahead_bytes,
        settings.read_deadline_s,
        engine.batches_at_once,
        engine.memory,
    )
    producer = Producer(settings.worker_id, engine.fingerprint, sessions, stats, limits)
    toolbox = Toolbox(engine, partial(open_source, roots=Roots.of(settings.data_roots)))
    register = RankRegister(producer, worker=settings.worker_id, tokens_of=sessions.token_hashes)
    fleet, tls = _secured(settings, stats)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(engine.close)
        stats.engine(engine)
        stack.callback(export_gpus(stats.registry, engine.name in GPU_ENGINES))
        stack.callback(producer.close)
        stack.push_async_callback(toolbox.close)
        grpc_server = GrpcServer(register, settings.grpc_address, credentials=tls.grpc_credentials() if tls else None)
        await grpc_server.start()
        stack.push_async_callback(grpc_server.close, 1.0)
        local_server, socket_path = _local_server(settings, register, engine)
        if local_server is not None:
            await local_server.start()
            stack.push_async_callback(local_server.close, 1.0)
        endpoint = Endpoint(
            settings.worker_id, uuid.uuid4().hex, node_id(), _advertised(settings, grpc_server.port), socket_path
        )
        leases = LeaseLoop(
            settings.coordinator.split(","),
            Identity(endpoint, engine, settings.cores, settings.pool, settings.retiring),
            sessions=sessions,
            producer=producer,
            toolbox=toolbox,
            stats=stats,
            calls=Calls(service_security.client_tls(settings), fleet),
        )
        stack.push_async_callback(leases.close)
        health = Health(leases.why_not_ready)
        if settings.metrics_address:
            context = tls.http_context() if tls else None
            stack.callback(MetricsServer(settings.metrics_address, stats.registry, context, health).close)
        addresses = (settings.grpc_address, settings.metrics_address)
        service_security.tell_open(addresses, TLS=tls is None, fleet_token=fleet is None)
        log.info("worker_ready", grpc=endpoint.grpc, socket=socket_path, engine=engine.fingerprint, threads=settings.cores)
        heartbeats = asyncio.create_task(leases.run(), name="heartbeats")
        production = asyncio.create_task(producer.run(), name="producer")
        beats = asyncio.create_task(health.beat(), name="health")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        tasks: list[asyncio.Task[Any]] = [heartbeats, production, stopped]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        servers = [server for server in (grpc_server, local_server) if server]
        idle = await _drain(settings, leases, heartbeats, producer, servers)
        await end(*tasks, beats)
        if not idle:
            await _leave_now(servers, done)
        for ended in done:
            ended.result()  # a loop ended by itself: its error is the process's


async def _drain(
    settings: WorkerSettings,
    leases: LeaseLoop,
    heartbeats: asyncio.Task[None],
    producer: Producer,
    servers: list[GrpcServer | LocalServer],
) -> bool:
    """Finish what is nearly done, hand the lanes back, and let what is published reach its ranks. False: see Producer.drain.

    A batch that takes longer is its lane's next owner's: ranks would wait for all others of our lanes meanwhile. Where nobody
    takes the lanes back they are ours until the leases end, and it is finished.
    """
    deadline_s = settings.drain_deadline_s
    log.info("draining", deadline_s=deadline_s)
    leases.leaving = True
    begun_s = time.monotonic()
    left = await producer.finish(min(_FINISH_S, deadline_s))
    for server in servers:
        await server.drain()
    # The loop ends first: a heartbeat of its own that is still under way must not take the lanes back.
    await end(heartbeats)
    leases.draining = True
    handed_back = await _hand_back(leases)
    if handed_back:
        log.info("drained", lanes_handed_back=True, batches_left=left)
    else:
        note = "no coordinator answered; the lanes move when the leases end"
        log.warning("drained", lanes_handed_back=False, batches_left=left, note=note)
    return await producer.drain(0.0 if handed_back else max(0.0, begun_s + deadline_s - time.monotonic()))


async def _hand_back(leases: LeaseLoop) -> bool:
    for _ in range(_LAST_BEATS):
        if await leases.beat():
            return True
        await asyncio.sleep(0.5)
    return False


async def _leave_now(servers: list[GrpcServer | LocalServer], done: set[asyncio.Task[Any]]) -> NoReturn:
    """End the process although a thread of the engine is at work: no library lets it be stopped, and all else is done."""
    error = next((error for task in done if not task.cancelled() and (error := task.exception()) is not None), None)
    try:
        closing = [asyncio.create_task(server.close(_LAST_WORDS_S)) for server in servers]
        closed, unclosed = await asyncio.wait(closing, timeout=3 * _LAST_WORDS_S)
        for task in closed:
            if (failure := task.exception()) is not None:  # of a GPU that is lost, say
                log.warning("server_not_closed", error=str(failure))
        log.info("left_at_work", note="the engine was still at a batch that another worker makes", unclosed=len(unclosed))
        if isinstance(error, HeadraceError):
            sys.stderr.write(f"headrace: {error}\n")
        elif error is not None:
            log.error("worker_failed", exc_info=error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0 if error is None else 1)


def _device_share(settings: WorkerSettings, engine: Engine) -> DeviceShare:
    """The GPU is opened for the first trainer that asks: a context takes some hundred megabytes of it. Raises ConfigInvalid."""
    if settings.gpu > 0 and engine.name in GPU_ENGINES:
        raise ConfigInvalid(
            f"engine {engine.name} works on the first GPU that this process sees, and --gpu names another; leave --gpu out and "
            f"set CUDA_VISIBLE_DEVICES={settings.gpu}",
            field="gpu",
        )
    if settings.gpu < 0 and engine.name not in GPU_ENGINES:
        return DeviceShare(
            why_not=f"the worker's engine {engine.name} makes batches in host memory (with --gpu 0 it copies them to the GPU)"
        )
    return DeviceShare(partial(open_device, max(settings.gpu, 0)))


def _local_server(settings: WorkerSettings, register: RankRegister, engine: Engine) -> tuple[LocalServer | None, str]:
    if not settings.socket_dir:
        return None, ""
    directory = Path(settings.socket_dir)
    mode = socket_dir.prepare(directory, int(settings.socket_group) if settings.socket_group else None)
    path = directory / f"{settings.worker_id}.sock"
    return LocalServer(register, path, mode=mode, devices=_device_share(settings, engine)), str(path)


def _secured(settings: WorkerSettings, stats: WorkerStats) -> tuple[Secret | None, ServerTls | None]:
    """(the fleet's token, what it serves with). Raises ConfigInvalid, also for a token without TLS."""
    fleet = secret("fleet_token", settings.fleet_token.get_secret_value(), settings.fleet_token_file)
    tls = service_security.server_tls(settings, stats.tls_reloaded)
    stats.certificate(tls)
    coordinators = [split_address(address.strip())[0] for address in settings.coordinator.split(",")]
    calls_tls = bool(settings.tls_ca)
    service_security.check_plaintext(settings, fleet is not None, calls_tls, coordinators, "this worker")
    # Ranks show it their jobs' tokens.
    own = [split_address(settings.grpc_address)[0]]
    service_security.check_plaintext(settings, fleet is not None, tls is not None, own, "this worker")
    return fleet, tls


def _advertised(settings: WorkerSettings, port: int) -> str:
    if settings.advertise:
        return settings.advertise
    host, _ = split_address(settings.grpc_address)
    if host in ("0.0.0.0", "::", ""):  # noqa: S104
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
