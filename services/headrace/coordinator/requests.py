"""What trainers and workers send, checked and turned into events of the rules. Raises SpecInvalid or ProtocolMismatch."""

from __future__ import annotations

import re

from headrace.core import limits
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import ProtocolMismatch, SpecInvalid
from headrace.core.events import Adopt, BadSample, Join, Leave, Observe, Progress
from headrace.core.job import ATTEMPT_BOUND, NAME_PATTERN, Session, Stop
from headrace.core.records import LaneTrouble, WorkerRecord
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import check_protocol

_MAX_TEXT = 256
_LARGEST = limits.COUNT_BOUND
_TOKEN = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def check_id(rank: pb.RankId) -> None:
    """Refuse names and numbers that could not be ours."""
    if not NAME_PATTERN.fullmatch(rank.job):
        raise SpecInvalid(f"{rank.job[:100]!r} is no job name", field="name")
    if not _TOKEN.fullmatch(rank.nonce) or rank.attempt >= ATTEMPT_BOUND:
        raise ProtocolMismatch(
            "a rank must send a nonce of 1 to 100 letters and digits, and an attempt below 2^53", job=rank.job, rank=rank.rank
        )


def join_of(request: pb.JoinSessionRequest) -> Join:
    """A claim."""
    check_protocol(request.protocol, "the trainer")
    check_id(request.id)
    limits.at_most(request.epochs, _LARGEST - 1, "epochs", job=request.id.job)
    limits.at_most(request.id.rank, limits.WORLD - 1, "rank", job=request.id.job)
    limits.text(request.plan_hash, "a plan's hash", limits.NAME_CHARS, job=request.id.job)
    return Join(
        attempt=request.id.attempt,
        rank=request.id.rank,
        world=request.world,
        nonce=request.id.nonce,
        state=convert.state_from_proto(request.state) if request.HasField("state") else None,
        plan_hash=request.plan_hash,
        epochs=request.epochs,
        node=_node_of(request),
        slot_bytes=0,
    )


def observe_of(request: pb.WatchSessionRequest) -> Observe:
    """A watch."""
    check_id(request.id)
    known = convert.session_from_proto(request.session) if request.HasField("session") else None
    return Observe(request.id.attempt, request.id.rank, request.id.nonce, known, stop=_stop_of(request))


def _node_of(request: pb.JoinSessionRequest | pb.ReportProgressRequest) -> str:
    """Compared with workers' nodes, so never cut."""
    return limits.text(request.node, "a node's id", limits.TEXT_CHARS, job=request.id.job, rank=request.id.rank)


def _stop_of(request: pb.WatchSessionRequest | pb.ReportProgressRequest) -> Stop | None:
    if not request.HasField("stop_index"):
        return None
    limits.at_most(request.stop_index, _LARGEST - 1, "index at which a rank stops", job=request.id.job)
    why = limits.text(request.stop_why, "the reason why a rank stops", limits.ERROR_CHARS, job=request.id.job)
    return Stop(request.stop_index, why)


def progress_of(request: pb.ReportProgressRequest) -> Progress:
    """A report."""
    check_id(request.id)
    job = request.id.job
    limits.at_most(len(request.bad_samples), limits.BAD_SAMPLES_A_REPORT, "bad samples in a report", job=job)
    limits.at_most(len(request.wait_by_cause), limits.WAIT_CAUSES, "causes of waiting in a report", job=job)
    limits.at_most(len(request.troubles), limits.TROUBLES, "troubles in a report", job=job)
    seconds = (request.wait_s, request.elapsed_s, *(item.seconds for item in request.wait_by_cause))
    if not all(0 <= value < _LARGEST for value in seconds):
        raise ProtocolMismatch("seconds in a report must be from 0 to 2^53", job=job, rank=request.id.rank)
    if max((item.lane for item in request.troubles), default=0) >= limits.LANES:
        raise ProtocolMismatch(f"a trouble names a lane beyond {limits.LANES - 1}", job=job, rank=request.id.rank)
    unknown = next((bad.reason for bad in request.bad_samples if bad.reason not in BAD_REASONS), None)
    if unknown is not None:
        raise ProtocolMismatch(f"unknown reason of a bad sample: {unknown[:100]!r}", job=request.id.job)
    if len(request.bad_counts) > len(BAD_REASONS) or any(item.reason not in BAD_REASONS for item in request.bad_counts):
        raise ProtocolMismatch("a report may count bad samples by known reasons alone, each once", job=request.id.job)
    if max(request.samples, *(item.count for item in request.bad_counts), 0) >= _LARGEST:
        raise ProtocolMismatch("samples must be below 2^53", job=request.id.job, rank=request.id.rank)
    if max(request.consumed, request.batches_remade, request.batches_fenced) >= _LARGEST:
        raise ProtocolMismatch("batches must be below 2^53", job=request.id.job, rank=request.id.rank)
    return Progress(
        attempt=request.id.attempt,
        rank=request.id.rank,
        nonce=request.id.nonce,
        known=convert.session_from_proto(request.session) if request.HasField("session") else None,
        consumed=request.consumed,
        committed=request.committed,
        wait_s=request.wait_s,
        waits=tuple((item.cause[:_MAX_TEXT], item.seconds) for item in request.wait_by_cause),
        elapsed_s=request.elapsed_s,
        transport=request.transport[:_MAX_TEXT],
        remade=request.batches_remade,
        fenced=request.batches_fenced,
        node=_node_of(request),
        waiting_s=request.waiting_s if 0 <= request.waiting_s < _LARGEST else 0.0,
        troubles=tuple(
            LaneTrouble(item.lane, item.worker[:_MAX_TEXT], item.token, item.waited.ToMicroseconds() / 1e6, item.connected)
            for item in request.troubles
        ),
        samples=request.samples,
        bad_counts=tuple((item.reason, item.count) for item in request.bad_counts),
        # As long as keys of an index may be: one that is cut shorter would exclude nothing.
        bad=tuple(BadSample(bad.epoch, bad.sample, bad.key[: limits.KEY_BYTES], bad.reason) for bad in request.bad_samples),
        stop=_stop_of(request),
    )


def leave_of(request: pb.LeaveSessionRequest) -> Leave:
    """A goodbye. The last report counts only if it is by the one who leaves."""
    check_id(request.id)
    last = progress_of(request.last) if request.HasField("last") else None
    if last is not None and request.last.id != request.id:
        raise ProtocolMismatch("the last report of a leaving rank must be its own", job=request.id.job, rank=request.id.rank)
    return Leave(request.id.attempt, request.id.rank, request.id.nonce, last)


def worker_of(request: pb.HeartbeatRequest) -> WorkerRecord:
    """What a worker states of itself, without how long it holds."""
    check_protocol(request.protocol, "the worker")
    endpoint = convert.endpoint_from_proto(request.endpoint)
    if not NAME_PATTERN.fullmatch(endpoint.worker) or not _TOKEN.fullmatch(endpoint.incarnation):
        raise ProtocolMismatch(
            "worker id and incarnation must be 1 to 100 of A-Z a-z 0-9 . _ -", worker=endpoint.worker[:_MAX_TEXT]
        )
    for address, name, most in (
        (endpoint.grpc, "a worker's grpc address", limits.HOST_PORT_CHARS),
        (endpoint.socket, "a worker's socket path", limits.SOCKET_PATH_BYTES),
        (endpoint.node, "a node's id", limits.TEXT_CHARS),
        (request.fingerprint, "an engine's fingerprint", limits.TEXT_CHARS),  # compared, so never cut
    ):
        limits.text(address, name, most, worker=endpoint.worker)
    limits.at_most(len(request.ops), limits.ENGINE_OPS, "operations of an engine", worker=endpoint.worker)
    for op in request.ops:
        limits.text(op, "an operation's name", limits.NAME_CHARS, worker=endpoint.worker)
    for count, what in (
        (len(request.held), "sessions held"), (len(request.lagging), "lagging lanes"),
        (len(request.unable_jobs), "unable jobs"),
    ):  # fmt: skip
        limits.at_most(count, limits.JOBS_A_WORKER, what, worker=endpoint.worker)
    if not all(NAME_PATTERN.fullmatch(job) for job in (*request.unable_jobs, *(item.job for item in request.lagging))):
        raise ProtocolMismatch("a job that a worker cannot open or lags in has no job's name", worker=endpoint.worker)
    if max((item.lane for item in request.lagging), default=0) >= limits.LANES:
        raise ProtocolMismatch(f"a lagging lane is beyond {limits.LANES - 1}", worker=endpoint.worker)
    if request.pool and not NAME_PATTERN.fullmatch(request.pool):
        raise ProtocolMismatch("a worker's pool must be 1 to 100 of A-Z a-z 0-9 . _ -", worker=endpoint.worker)
    lagging = ((item.job, item.lane, item.behind.ToMicroseconds() / 1e6) for item in request.lagging)
    return WorkerRecord(
        endpoint=endpoint,
        fingerprint=request.fingerprint,
        ops=tuple(sorted(request.ops)),
        samples_per_s=request.samples_per_s if 0 <= request.samples_per_s < _LARGEST else 0.0,
        threads=request.threads,
        draining=request.draining,
        alive_until_us=0,
        lagging=tuple(lagging),
        unable=tuple(sorted(set(request.unable_jobs))),
        pool=request.pool,
        retiring=request.retiring,
    )


def adopt_of(request: pb.HeartbeatRequest, leases: pb.SessionLeases) -> Adopt:
    """Leases that a worker holds."""
    if not NAME_PATTERN.fullmatch(leases.job) or len(leases.lanes) != len(leases.tokens) or len(leases.lanes) > limits.LANES:
        raise ProtocolMismatch("held leases must name a job, and have a token each", worker=request.endpoint.worker)
    known: Session | None = convert.session_from_proto(leases.session) if leases.HasField("session") else None
    tokens = tuple(zip(leases.lanes, leases.tokens, strict=True))
    return Adopt(request.endpoint.worker, request.endpoint.incarnation, leases.attempt, tokens, known)
