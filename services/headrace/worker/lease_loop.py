"""Heartbeats: what this worker states of itself, and what the coordinator answers that it shall hold.

One loop on the event loop thread. While no coordinator answers, the worker goes on with the leases that it has: nobody
can take them over without a coordinator, and should one have done so unheard, the ranks refuse the older token.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.duration_pb2 import Duration

from headrace.core import limits
from headrace.core.errors import CoordinatorUnavailable, HeadraceError, PeerGone, StaleToken, WaitTimeout, from_code
from headrace.core.job import Endpoint, Session
from headrace.core.lease import heartbeat_patience_s
from headrace.telemetry.failures import unexpected
from headrace.telemetry.tasks import end
from headrace.wire import convert, status
from headrace.wire.calls import Calls
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen import coordinator_service_pb2_grpc as rpc
from headrace.wire.messages import PROTOCOL
from headrace.wire.tls import Stamp, open_aio_channel
from headrace.worker.engines.protocol import Engine
from headrace.worker.producer import Producer
from headrace.worker.stats import WorkerStats
from headrace.worker.tools import Toolbox, tools_key
from headrace.worker.work import Sessions, SessionWork

log = structlog.get_logger()

# Before the first answer says how long leases last.
FIRST_TTL_S = 3.0
# Lags above this are reported; what follows from them is the coordinator's to decide.
LAG_FLOOR_S = 1.0
# A job that could not be opened is stated for so long, doubled with each failure in a row, so that its lanes stay away until
# another try is worth it.
UNABLE_S = 30.0
UNABLE_MOST_S = 1800.0
_TELL_EACH_S = 30.0
# What it means that nobody answered; all else was said by a coordinator.
_UNANSWERED = frozenset({CoordinatorUnavailable.code, WaitTimeout.code, PeerGone.code, HeadraceError.code})
_CHANNEL = (
    ("grpc.max_receive_message_length", limits.ANSWER_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    # A coordinator that is back must hear of us before it takes us for dead: gRPC itself would wait for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while the worker runs."""

    endpoint: Endpoint
    engine: Engine
    threads: int
    pool: str = ""
    retiring: bool = False


class LeaseLoop:
    """See the module. `beat` is public so that draining can send the last word."""

    def __init__(
        self,
        coordinators: list[str],
        identity: Identity,
        *,
        sessions: Sessions,
        producer: Producer,
        toolbox: Toolbox,
        stats: WorkerStats,
        calls: Calls | None = None,
    ) -> None:
        self._addresses = coordinators
        self._identity = identity
        self._sessions = sessions
        self._producer = producer
        self._toolbox = toolbox
        self._stats = stats
        self._calls = calls or Calls()
        self._real = calls is not None  # without, whoever makes this has a network of its own
        self._channels: dict[str, tuple[Stamp | None, grpc.aio.Channel]] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._interval_s = 0.5
        self._ttl_s = FIRST_TTL_S
        self._unable: dict[str, tuple[float, float]] = {}  # job -> until when, for how long
        self._unheard_since_s: float | None = None
        self._tell_from_s = 0.0
        self._registered = False
        self._opening: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._unreadable: set[tuple[str, int]] = set()  # what is told once
        self._refused = ""
        self.leaving = False  # it finishes what it has begun
        self.draining = False  # it hands its lanes back

    def why_not_ready(self) -> str:
        """Why this worker is to get no work; empty while its heartbeats are answered and it goes on. Any thread."""
        if self.leaving or self.draining:
            return "it drains: it begins no batch any more"
        if self._unheard_since_s is not None:
            return self._refused or "no coordinator answers its heartbeats: its log says why"
        return "" if self._registered else "no coordinator has answered a heartbeat yet"

    async def run(self) -> None:
        """Send heartbeats for ever; ends when it is cancelled."""
        while True:
            begun = time.monotonic()
            self._soon.clear()
            await self.beat()
            try:
                async with asyncio.timeout(max(0.0, self._interval_s - (time.monotonic() - begun))):
                    await self._soon.wait()
            except TimeoutError:
                continue

    async def beat(self) -> bool:
        """One heartbeat, to the first coordinator that answers, and what follows from the answer. False if none did."""
        begun = time.monotonic()
        try:
            answer = await self._call(self._request())
        except (HeadraceError, OSError) as failure:  # the latter: this process has no descriptor left, say
            error = failure if isinstance(failure, HeadraceError) else HeadraceError(f"it cannot be sent: {failure}")
            self._stats.heartbeat_failed(error.code)
            self._refused = "" if error.code in _UNANSWERED else f"its heartbeats are refused: {error.message}"
            if self._unheard_since_s is None:
                self._unheard_since_s, self._tell_from_s = begun, begun
            if begun >= self._tell_from_s:
                self._tell_from_s = begun + _TELL_EACH_S
                # Another address than the one that failed last comes first now.
                self._tell_unanswered(self._addresses[-1], error)
            return False
        if not self._registered:
            log.info("registered", coordinator=self._addresses[0])
        elif self._unheard_since_s is not None:
            log.info("heartbeat_answered_again", after_s=round(begun - self._unheard_since_s, 3))
        self._registered, self._unheard_since_s = True, None
        self._stats.heartbeat(time.monotonic() - begun)
        self._interval_s = _seconds(answer.interval, 0.05, 60.0) or self._interval_s
        self._ttl_s = _seconds(answer.ttl, 0.2, 600.0) or self._ttl_s
        await self._take_over(answer)
        return True

    async def close(self) -> None:
        """End what is being opened and close the channels."""
        await end(*self._opening.values(), *([self._telling] if self._telling else []))
        for channel in [*self._retired, *(channel for _, channel in self._channels.values())]:
            await channel.close(None)
        self._channels.clear()
        self._retired.clear()

    def _request(self) -> pb.HeartbeatRequest:
        held = [
            pb.SessionLeases(
                job=work.session.job.name,
                attempt=work.session.attempt,
                lanes=sorted(work.leases),
                tokens=[work.leases[lane].token for lane in sorted(work.leases)],
                session=convert.session_to_proto(work.session),
            )
            for work in self._sessions.by_key.values()
            if work.leases and not self.draining
        ]
        request = pb.HeartbeatRequest(
            protocol=PROTOCOL,
            endpoint=convert.endpoint_to_proto(self._identity.endpoint),
            fingerprint=self._identity.engine.fingerprint,
            ops=sorted(self._identity.engine.ops),
            samples_per_s=self._stats.samples_per_s,
            threads=self._identity.threads,
            draining=self.draining,
            held=held,
            pool=self._identity.pool,
            retiring=self._identity.retiring,
        )
        now = time.monotonic()
        # Kept for a while longer, so that the next failure is known to be one in a row.
        self._unable = {job: times for job, times in self._unable.items() if times[0] + times[1] > now}
        request.unable_jobs.extend(sorted(job for job, (until_s, _) in self._unable.items() if until_s > now))
        for job, lane, behind_s in self._producer.lagging(LAG_FLOOR_S):
            request.lagging.add(job=job, lane=lane).behind.FromMicroseconds(int(behind_s * 1e6))
        return request

    async def _call(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        last: HeadraceError = CoordinatorUnavailable("no coordinator address is set")
        while self._retired:
            await self._retired.pop().close(None)
        for address in list(self._addresses):
            try:
                heartbeat = self._stub(address).Heartbeat
                answer: pb.HeartbeatResponse = await heartbeat(
                    request, timeout=heartbeat_patience_s(self._ttl_s), **self._calls.tokens()
                )
                return answer
            except grpc.aio.AioRpcError as error:
                last = status.error_from_rpc(error)
                # The next heartbeat begins with another replica.
                self._addresses.append(self._addresses.pop(0))
        raise last

    def _tell_unanswered(self, address: str, error: HeadraceError) -> None:
        """Beside the heartbeats: finding out why takes seconds, and the next one may be answered by another replica."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._why(address, error), name="why-unanswered")

    async def _why(self, address: str, error: HeadraceError) -> None:
        """What of TLS keeps a replica from being reached, found by a connection of its own."""
        why = await asyncio.to_thread(self._calls.explain, address, error) if self._real else ""
        kept = "leases held are kept" if error.code != StaleToken.code else "it serves nothing any more, and may be ended"
        log.warning("heartbeat_unanswered", error=error, why=why or "see error", note=kept)

    def _stub(self, address: str) -> Any:
        """Calls to one replica; the other place that knows the network."""
        stamp = self._calls.stamp
        made, channel = self._channels.get(address, (None, None))
        if channel is None or (made != stamp and stamp is not None):
            before, channel = channel, open_aio_channel(address, _CHANNEL, self._calls.tls)
            self._channels[address] = (stamp, channel)
            if before is not None:  # it would go on with the certificate that it was made with
                self._retired.append(before)
        return rpc.CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]

    async def _take_over(self, answer: pb.HeartbeatResponse) -> None:
        named: set[tuple[str, int]] = set()
        changed = False
        for leases in answer.leases:
            key = (leases.job, leases.attempt)
            named.add(key)
            try:
                limits.at_most(len(leases.lanes), limits.LANES, "lanes in an answer", job=leases.job)
                tokens = dict(zip(leases.lanes, leases.tokens, strict=True))
                if leases.HasField("session"):
                    await self._know(convert.session_from_proto(leases.session))
            except (HeadraceError, ValueError) as error:  # a coordinator of another version: the other jobs go on
                if key not in self._unreadable:
                    self._unreadable.add(key)
                    log.warning("leases_unreadable", job=leases.job, attempt=leases.attempt, error=str(error))
                continue
            self._unreadable.discard(key)
            work = self._sessions.by_key.get(key)
            # A session that is still being opened gets its leases with the heartbeat that follows the opening.
            if work is not None and work.set_leases(tokens):
                changed = True
                log.info("leases", job=leases.job, attempt=leases.attempt, lanes=len(leases.lanes))
        self._sessions.forget_final({key for key in self._sessions.broken if key not in named})
        for key, work in list(self._sessions.by_key.items()):
            if key not in named:
                changed = work.set_leases({}) or changed
                if not self._producer.serves(key):
                    del self._sessions.by_key[key]
                    changed = True
        if changed:
            self._stats.lanes({key[0]: len(work.leases) for key, work in sorted(self._sessions.by_key.items())})
            self._producer.leases_changed()
        self._producer.grant_windows()
        in_use = {tools_key(work.session.job) for work in self._sessions.by_key.values()}
        await self._toolbox.free_unused(in_use | {tools_key(job) for job in self._producer.jobs_in_flight()})

    async def _know(self, session: Session) -> None:
        """Take note of a session: begin to open it, or bring it up to date (its window may have grown)."""
        known = self._sessions.by_key.get(session.key)
        if known is not None and tools_key(known.session.job) != tools_key(session.job):
            # The store lost the job, and another was opened under its name: no tool of the old one may make its batches.
            log.warning("session_replaced", job=session.job.name, attempt=session.attempt, note="another job has this name now")
            del self._sessions.by_key[session.key]
            self._producer.end_session(session.key, "another job has its name now")
            known = None
        if known is not None:
            if known.session != session:
                await self._sessions.put(SessionWork(session, known.engine, known.source, known.leases))
        elif session.key not in self._opening:
            # Never inside the heartbeat: a large manifest from a slow store must not cost this worker its leases.
            task = asyncio.create_task(self._open(session), name=f"open-{session.job.name}")
            self._opening[session.key] = task

    async def _open(self, session: Session) -> None:
        job = session.job
        try:
            tools = await self._toolbox.get(job)
            await self._sessions.put(SessionWork(session, tools.engine, tools.source))
            self._unable.pop(job.name, None)
            log.info("session", job=job.name, attempt=session.attempt, world=session.world, window=session.window)
        except HeadraceError as error:
            await self._cannot_serve(session, error)
        except Exception as error:  # noqa: BLE001 - the edge: the ranks must not wait for a session that nobody opens
            failure = unexpected("job_cannot_be_served", "it failed inside", error, attempt=session.attempt)
            await self._cannot_serve(session, failure)
        finally:
            del self._opening[session.key]
            self._soon.set()

    async def _cannot_serve(self, session: Session, error: HeadraceError) -> None:
        """The ranks that connect are told; the opening is tried again with the next heartbeat but one."""
        job, worker = session.job.name, self._identity.endpoint.worker
        log.error("job_cannot_be_served", job=job, attempt=session.attempt, error=str(error))
        text = f"worker {worker} cannot serve job {job!r}: {error.message}"
        _, before_s = self._unable.get(job, (0.0, UNABLE_S / 2))
        for_s = min(2 * before_s, UNABLE_MOST_S)
        self._unable[job] = (time.monotonic() + for_s, for_s)
        self._sessions.mark_broken(session.key, from_code(error.code, text, {**error.ids, "job": job, "worker": worker}))
        await asyncio.sleep(1.0)


def _seconds(told: Duration, least: float, most: float) -> float:
    """What a coordinator tells, within what its own settings allow; 0 where it tells nothing."""
    seconds = told.seconds + told.nanos / 1e9
    return min(max(seconds, least), most) if seconds else 0.0
