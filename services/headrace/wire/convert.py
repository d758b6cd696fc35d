"""Between protobuf messages and the core's dataclasses, one pair of functions a record.

`*_to_proto` never fails; `*_from_proto` checks what a peer sent and raises SpecInvalid or ProtocolMismatch. Sessions
ride on every watch and report, so parsed jobs are cached by their text. Any thread may call.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from headrace.core import limits
from headrace.core.errors import ProtocolMismatch, SpecInvalid
from headrace.core.job import ATTEMPT_BOUND, MAX_WORLD, Endpoint, JobSpec, LaneTable, Session, Stop, StreamState
from headrace.core.job_token import MAX_TOKENS
from headrace.core.pipeline_spec import shown
from headrace.wire.gen import coordinator_service_pb2 as pb

MAX_SPEC_CHARS = limits.SPEC_CHARS
MAX_LANES = limits.LANES
TOKEN_HASH_CHARS = 64

_INTEGERS = ("batch_size", "seed", "samples", "max_key_bytes", "max_label_bytes", "label_width")
_TEXTS = ("name", "dataset", "tail", "fingerprint", "manifest_hash", "label_kind")


@lru_cache(maxsize=1024)
def job_to_json(job: JobSpec) -> str:
    """Canonical JSON of a job: sorted keys, no spaces. Cached: a worker states its sessions with every heartbeat."""
    return json.dumps(job.to_dict(), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def job_from_json(text: str) -> JobSpec:
    """Read a job's JSON. Raises SpecInvalid naming the unknown, missing or malformed field."""
    if len(text) > MAX_SPEC_CHARS:
        raise SpecInvalid(f"the job's JSON has {len(text)} characters; at most {MAX_SPEC_CHARS} are read")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecInvalid(f"the job is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise SpecInvalid("the job must be a JSON object with named fields")
    _check_types(data)
    return JobSpec.from_dict(data)


def _check_types(data: dict[str, Any]) -> None:
    for names, kind, wording in ((_INTEGERS, int, "a whole number"), (_TEXTS, str, "a text")):
        for name in names:
            value = data.get(name, kind())
            if not isinstance(value, kind) or isinstance(value, bool):
                raise SpecInvalid(f"{name} must be {wording}, not {shown(value)}", field=name)
    for name in ("samples", "max_key_bytes", "max_label_bytes", "label_width"):
        if not 0 <= data.get(name, 0) < 2**63:
            raise SpecInvalid(f"{name} must be from 0 to 2^63 - 1, not {shown(data[name])}", field=name)
    for name in ("pipeline", "shuffle"):
        if not isinstance(data.get(name, {}), dict):
            raise SpecInvalid(f"{name} must be an object with named fields", field=name)


def job_to_proto(job: JobSpec) -> pb.Job:
    """A job as it travels."""
    return pb.Job(name=job.name, spec_json=job_to_json(job))


def job_from_proto(message: pb.Job) -> JobSpec:
    """Read a job. Raises SpecInvalid."""
    job = job_from_json(message.spec_json)
    if job.name != message.name:
        raise SpecInvalid(f"the job is called {shown(message.name)} outside and {job.name!r} inside its spec", field="name")
    return job


def state_to_proto(state: StreamState) -> pb.StreamState:
    """A resume state as it travels."""
    return pb.StreamState(epoch=state.epoch, first=state.first, step=state.step, world=state.world)


def state_from_proto(message: pb.StreamState) -> StreamState:
    """Read a resume state. Raises ProtocolMismatch on an impossible world."""
    _check_world(message.world)
    if max(message.epoch, message.first, message.step) >= limits.COUNT_BOUND:
        raise ProtocolMismatch("a state's epoch, first batch and step must be below 2^53")
    return StreamState(epoch=message.epoch, first=message.first, step=message.step, world=message.world)


def session_to_proto(session: Session) -> pb.Session:
    """A session as it travels."""
    return pb.Session(
        job=job_to_proto(session.job),
        attempt=session.attempt,
        world=session.world,
        epoch=session.epoch,
        first=session.first,
        epochs=session.epochs,
        window=session.window,
        lanes=session.lanes,
        token_hashes=session.token_hashes,
    )


def session_from_proto(message: pb.Session) -> Session:
    """Read a session. Raises SpecInvalid for its job, ProtocolMismatch for impossible numbers."""
    _check_world(message.world)
    numbers_fit = max(message.epoch, message.first, message.epochs) < limits.COUNT_BOUND
    window_fits = 1 <= message.window <= limits.WINDOW and 1 <= message.lanes <= MAX_LANES
    if not (1 <= message.attempt < ATTEMPT_BOUND and window_fits and numbers_fit):
        raise ProtocolMismatch(
            f"a session with attempt {message.attempt}, window {message.window}, {message.lanes} lanes is not one",
            job=message.job.name,
        )
    if len(message.token_hashes) > MAX_TOKENS or any(len(item) != TOKEN_HASH_CHARS for item in message.token_hashes):
        raise ProtocolMismatch("a session's token hashes are none", job=message.job.name)
    return Session(
        job=job_from_proto(message.job),
        attempt=message.attempt,
        world=message.world,
        epoch=message.epoch,
        first=message.first,
        epochs=message.epochs,
        window=message.window,
        lanes=message.lanes,
        token_hashes=tuple(message.token_hashes),
    )


def _check_world(world: int) -> None:
    if not 1 <= world <= MAX_WORLD:
        raise ProtocolMismatch(f"world size must be from 1 to {MAX_WORLD}, not {world}", world=world)


def endpoint_to_proto(endpoint: Endpoint) -> pb.Endpoint:
    """A worker's addresses as they travel."""
    return pb.Endpoint(
        worker=endpoint.worker, incarnation=endpoint.incarnation, node=endpoint.node, grpc=endpoint.grpc, socket=endpoint.socket
    )


def endpoint_from_proto(message: pb.Endpoint) -> Endpoint:
    """Read a worker's addresses. Raises ProtocolMismatch where the worker has no id or incarnation."""
    if not message.worker or not message.incarnation:
        raise ProtocolMismatch("an endpoint must name its worker and incarnation", worker=message.worker)
    return Endpoint(
        worker=message.worker, incarnation=message.incarnation, node=message.node, grpc=message.grpc, socket=message.socket
    )


def lane_table_to_proto(table: LaneTable) -> pb.WatchSessionResponse:
    """A lane table as it travels: owners as indexes into the endpoints plus 1, an owner without endpoint as nobody."""
    workers = sorted(set(table.owners) & set(table.endpoints))
    number = {worker: i + 1 for i, worker in enumerate(workers)}
    return pb.WatchSessionResponse(
        version=table.version,
        window=table.window,
        owners=[number.get(owner, 0) for owner in table.owners],
        tokens=table.tokens,
        endpoints=[endpoint_to_proto(table.endpoints[worker]) for worker in workers],
        stop_index=table.stop.index if table.stop else None,
        stop_why=table.stop.why if table.stop else "",
    )


def lane_table_from_proto(message: pb.WatchSessionResponse) -> LaneTable:
    """Read a lane table. Raises ProtocolMismatch where lengths or owners do not fit one another."""
    limits.at_most(len(message.owners), MAX_LANES, "lanes in a lane table")
    limits.at_most(len(message.endpoints), MAX_LANES, "endpoints in a lane table")
    limits.at_most(message.window, limits.WINDOW, "window in a lane table")
    endpoints = [endpoint_from_proto(item) for item in message.endpoints]
    if (
        len(message.owners) != len(message.tokens)
        or any(owner > len(endpoints) for owner in message.owners)
        or message.window < 1
    ):
        raise ProtocolMismatch("a lane table's owners, tokens and endpoints do not fit one another")
    names = ("", *(endpoint.worker for endpoint in endpoints))
    return LaneTable(
        version=message.version,
        window=message.window,
        owners=tuple(names[owner] for owner in message.owners),
        tokens=tuple(message.tokens),
        endpoints={endpoint.worker: endpoint for endpoint in endpoints},
        stop=Stop(message.stop_index, message.stop_why) if message.HasField("stop_index") else None,
    )
