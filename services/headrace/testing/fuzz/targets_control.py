"""What crosses between trainers, workers, coordinators and their store: calls, answers, records, specs, states."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, Message

from headrace.client.options import state_from_dict, state_to_dict
from headrace.coordinator.store import Stored, Table
from headrace.core.epoch_plan import check_plan
from headrace.core.errors import HeadraceError, ProtocolMismatch, RecordInvalid
from headrace.core.events import Tick
from headrace.core.job import Endpoint, LaneTable, Session, StreamState
from headrace.core.session_plan import SessionPlan
from headrace.testing.fuzz.control_rig import BAD, Rig, heartbeat, rank_id, spec
from headrace.testing.fuzz.mutate import json_after, mutate_json
from headrace.testing.fuzz.mutate_proto import mutated
from headrace.testing.fuzz.runner import Target
from headrace.wire import convert, slot_format
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL

_CALLS: tuple[tuple[str, type[Message]], ...] = (
    ("OpenJob", pb.OpenJobRequest),
    ("JoinSession", pb.JoinSessionRequest),
    ("WatchSession", pb.WatchSessionRequest),
    ("ReportProgress", pb.ReportProgressRequest),
    ("LeaveSession", pb.LeaveSessionRequest),
    ("Heartbeat", pb.HeartbeatRequest),
)
_SESSION = Session(spec(BAD), 1, 2, 0, 0, 2, 8, 12)


def _requests() -> list[Message]:
    session = convert.session_to_proto(_SESSION)
    report = pb.ReportProgressRequest(id=rank_id(BAD), session=session, consumed=5, committed=2, wait_s=1.0, elapsed_s=9.0)
    report.wait_by_cause.add(cause="read", seconds=1.0)
    report.bad_samples.add(epoch=0, sample=7, key="k", reason="truncated")
    report.troubles.add(lane=3, worker="w1", token=5, connected=True, reason="refused").waited.FromMilliseconds(1500)
    beat = heartbeat()
    beat.held.add(job=BAD, attempt=1, lanes=[0, 1], tokens=[2**50, 2**50], session=session)
    beat.lagging.add(job=BAD, lane=1).behind.FromMilliseconds(7000)
    beat.unable_jobs.append("other")
    state = convert.state_to_proto(StreamState(0, 0, 3, 2))
    return [
        pb.OpenJobRequest(protocol=PROTOCOL, job=convert.job_to_proto(spec(BAD)), world=2),
        pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(BAD, attempt=2), world=2, state=state, plan_hash="", node="n"),
        pb.WatchSessionRequest(id=rank_id(BAD), session=session),
        report,
        pb.LeaveSessionRequest(id=rank_id(BAD), last=report),
        beat,
    ]


class _Attack:
    """A rig, and one call or one record that goes wrong in it."""

    def __init__(self) -> None:
        self.rig = Rig()

    def call(self, data: bytes) -> None:
        """A call by its number and its request."""
        method, kind = _CALLS[data[0] % len(_CALLS)] if data else _CALLS[0]
        request = kind()
        try:
            request.ParseFromString(data[1:])
        except DecodeError:
            return  # gRPC refuses it before us
        self.rig.reset()
        with contextlib.suppress(HeadraceError):
            self.rig.run(self.rig.call(method, request))
        self.rig.run(self.rig.look())
        try:
            self.rig.run(self.rig.ledger.update(BAD, Tick(0)))
        except RecordInvalid as error:  # what was accepted must be readable
            raise AssertionError(str(error)) from error

    def record(self, data: bytes) -> None:
        """What somebody wrote over a record, or beside it: table, field, then the record."""
        head, _, body = data.partition(b"\n")
        group, _, rest = head.decode("utf-8", "replace").partition("|")
        kind, _, name = rest.partition("|")
        self.rig.reset()
        store = self.rig.store
        tables, stamps = store.snapshot()
        table = Table(group, kind)
        tables.setdefault(table, {})[name or "x"] = Stored(stamps.get(table, 1) + 1, body)
        store.restore((tables, {**stamps, table: stamps.get(table, 1) + 1}))
        self.rig.run(self.rig.look())
        for request in (pb.ReportProgressRequest(id=rank_id(BAD), consumed=9, elapsed_s=9.0), heartbeat("w2")):
            method = "Heartbeat" if isinstance(request, pb.HeartbeatRequest) else "ReportProgress"
            with contextlib.suppress(HeadraceError):
                self.rig.run(self.rig.call(method, request))


def _records(rig: Rig) -> list[bytes]:
    """All records of the attacked job and of the fleet, as `record` takes them."""
    tables, _ = rig.store.snapshot()
    made = [
        f"{table.group}|{table.kind}|{field}\n".encode() + stored.data
        for table, fields in tables.items()
        for field, stored in fields.items()
        if table.group == "fleet" or table.group.endswith(BAD)
    ]
    return [*made, f"job:{BAD}|bad|7\n".encode() + b'["k", "truncated", 1, 0]']


def _mutate_call(rng: Random, data: bytes) -> bytes:
    return data[:1] + mutated(rng, data[1:], _CALLS[data[0] % len(_CALLS)][1])


def _mutate_record(rng: Random, data: bytes) -> bytes:
    head, mark, body = data.partition(b"\n")
    return head + mark + mutate_json(rng, body)


def _read_spec(data: bytes) -> None:
    job = convert.job_from_json(data.decode("utf-8", "replace"))
    check_plan(job.samples or 4000, job.batch_size, 2, job.tail)
    assert slot_format.job_slot_bytes(job) > 0
    assert len(job.plan_hash) == 32
    assert convert.job_from_json(convert.job_to_json(job)) == job


def _read_session(data: bytes) -> None:
    session = convert.session_from_proto(_parsed(pb.Session, data))
    SessionPlan(session).locate(0, 3)


def _read_table(data: bytes) -> None:
    convert.lane_table_from_proto(_parsed(pb.WatchSessionResponse, data))


def _read_state(data: bytes) -> None:
    job = spec(BAD)
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return
    state_to_dict(job, state_from_dict(job, plain))


def _parsed(kind: type[Message], data: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProtocolMismatch("gRPC refuses it before us") from error
    return message


def _fields_of(kind: type[Message]) -> Callable[[Random, bytes], bytes]:
    return lambda rng, data: mutated(rng, data, kind)


def targets() -> list[Target]:
    """All targets of this file."""
    calls = [bytes([number]) + request.SerializeToString() for number, request in enumerate(_requests())]
    attack = _Attack()
    endpoint = Endpoint("w1", "w1-1", "n", "w1:1", "/run/x.sock")
    table = LaneTable(5, 8, ("w1", ""), (7, 0), {"w1": endpoint})
    job = spec(BAD)
    whole: dict[str, Any] = {"lines": 60_000, "lines_a_byte": 200, "memory": 8 << 20}
    return [
        Target("coordinator_calls", calls, attack.call, special=_mutate_call, **whole),
        Target("store_records", _records(attack.rig), attack.record, special=_mutate_record, **whole),
        Target("job_spec", [convert.job_to_json(job).encode()], _read_spec, special=mutate_json),
        Target(
            "session", [convert.session_to_proto(_SESSION).SerializeToString()], _read_session, special=_fields_of(pb.Session)
        ),
        Target(
            "lane_table",
            [convert.lane_table_to_proto(table).SerializeToString()],
            _read_table,
            special=_fields_of(pb.WatchSessionResponse),
        ),
        Target(
            "resume_state",
            [json.dumps(state_to_dict(job, StreamState(1, 0, 3, 2))).encode()],
            _read_state,
            special=json_after(0),
        ),
    ]
