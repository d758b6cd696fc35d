"""Over each limit: an error of ours that names it. At the limit: taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from headrace.coordinator import requests
from headrace.core import limits
from headrace.core.errors import HeadraceError, ProtocolMismatch, SpecInvalid
from headrace.core.job import JobSpec
from headrace.testing.fuzz.control_rig import BAD, heartbeat, rank_id
from headrace.wire import convert, messages
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL, Failed, Hello, Refuse


def report(**values: Any) -> pb.ReportProgressRequest:
    return pb.ReportProgressRequest(id=rank_id(BAD), consumed=1, **values)


def beat(**values: Any) -> pb.HeartbeatRequest:
    request = heartbeat()
    request.MergeFrom(pb.HeartbeatRequest(**values))
    return request


BAD_SAMPLE = pb.BadSample(sample=1, key="k", reason="truncated")
TROUBLE = pb.LaneTrouble(lane=1, worker="w")
LAGGING = pb.LaggingLane(job="j", lane=1)
LISTS: list[tuple[str, Callable[[int], Any], Callable[[Any], Any], int]] = [
    ("bad samples", lambda n: report(bad_samples=[BAD_SAMPLE] * n), requests.progress_of, limits.BAD_SAMPLES_A_REPORT),
    ("causes", lambda n: report(wait_by_cause=[pb.WaitByCause(cause="read")] * n), requests.progress_of, limits.WAIT_CAUSES),
    ("troubles", lambda n: report(troubles=[TROUBLE] * n), requests.progress_of, limits.TROUBLES),
    ("operations", lambda n: beat(ops=["x"] * (n - len(heartbeat().ops))), requests.worker_of, limits.ENGINE_OPS),
    ("operation's name", lambda n: beat(ops=["x" * n]), requests.worker_of, limits.NAME_CHARS),
    ("lagging", lambda n: beat(lagging=[LAGGING] * n), requests.worker_of, limits.JOBS_A_WORKER),
    ("unable", lambda n: beat(unable_jobs=["j"] * n), requests.worker_of, limits.JOBS_A_WORKER),
    ("held", lambda n: beat(held=[pb.SessionLeases(job="j")] * n), requests.worker_of, limits.JOBS_A_WORKER),
    ("grpc", lambda n: beat(endpoint=pb.Endpoint(grpc="h" * n)), requests.worker_of, limits.HOST_PORT_CHARS),
    ("socket", lambda n: beat(endpoint=pb.Endpoint(socket="/" * n)), requests.worker_of, limits.SOCKET_PATH_BYTES),
    ("node", lambda n: beat(endpoint=pb.Endpoint(node="n" * n)), requests.worker_of, limits.TEXT_CHARS),
    ("fingerprint", lambda n: beat(fingerprint="f" * n), requests.worker_of, limits.TEXT_CHARS),
    ("stop", lambda n: report(stop_index=1, stop_why="w" * n), requests.progress_of, limits.ERROR_CHARS),
    ("node of a report", lambda n: report(node="n" * n), requests.progress_of, limits.TEXT_CHARS),
    (
        "node of a claim",
        lambda n: pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(BAD), world=2, node="n" * n),
        requests.join_of,
        limits.TEXT_CHARS,
    ),
    (
        "plan",
        lambda n: pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(BAD), world=2, plan_hash="a" * n),
        requests.join_of,
        limits.NAME_CHARS,
    ),
    (
        "rank",
        lambda n: pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(BAD, n), world=2),
        requests.join_of,
        limits.WORLD - 1,
    ),
    (
        "lanes",
        lambda n: pb.WatchSessionResponse(window=1, owners=[0] * n, tokens=[0] * n),
        convert.lane_table_from_proto,
        limits.LANES,
    ),
    ("have", lambda n: hello(have=tuple(range(n))), messages.decode, limits.HAVE_INDEXES),
    ("token", lambda n: hello(token="t" * n), messages.decode, limits.TOKENS_CHARS),
    ("nonce", lambda n: hello(nonce="t" * n), messages.decode, limits.TEXT_CHARS),
]


def hello(**values: Any) -> bytes:
    fields = {"protocol": PROTOCOL, "job": "j", "attempt": 1, "rank": 0, "nonce": "n", "next": 0, "window": 1} | values
    # Small enough numbers keep the longest list within one message.
    return messages.encode(Hello(**fields))[: limits.MESSAGE_BYTES * 2]


@pytest.mark.parametrize(("name", "make", "read", "limit"), LISTS, ids=[entry[0] for entry in LISTS])
def test_lists_and_texts(name: str, make: Callable[[int], Any], read: Callable[[Any], Any], limit: int) -> None:
    if name != "have":  # as many indexes do not fit a message in digits: the message's own length is the limit
        read(make(limit))
    with pytest.raises(ProtocolMismatch) as caught:
        read(make(limit + 1))
    if name != "have":
        assert str(limit) in caught.value.message


@pytest.mark.parametrize(
    "request_",
    [
        report(wait_s=math.nan), report(wait_s=-1.0), report(elapsed_s=math.inf), report(wait_s=1e300),
        report(wait_by_cause=[pb.WaitByCause(cause="read", seconds=math.nan)]), report(batches_remade=2**53),
        report(batches_fenced=2**53),
        report(troubles=[pb.LaneTrouble(lane=limits.LANES)]),
    ],
)  # fmt: skip
def test_numbers_of_a_report(request_: pb.ReportProgressRequest) -> None:
    with pytest.raises(ProtocolMismatch):
        requests.progress_of(request_)


@pytest.mark.parametrize("length", [257, limits.TEXT_CHARS])
def test_what_is_compared_is_kept_whole(length: int) -> None:
    """Two engines, or nodes, that differ only in their last letter are two."""
    text = "f" * (length - 1)
    one, other = (requests.worker_of(beat(fingerprint=text + end)) for end in "ab")
    assert one.fingerprint != other.fingerprint
    assert requests.progress_of(report(node=text + "a")).node == text + "a"


@pytest.mark.parametrize("values", [{"lagging": [pb.LaggingLane(job="../x")]}, {"unable_jobs": ["a b"]}])
def test_names_in_a_heartbeat(values: dict[str, Any]) -> None:
    with pytest.raises(ProtocolMismatch):
        requests.worker_of(beat(**values))


@pytest.mark.parametrize(
    ("field", "limit"),
    [("samples", limits.SAMPLES), ("max_key_bytes", limits.KEY_BYTES), ("max_label_bytes", limits.LABEL_BYTES),
     ("label_width", limits.MULTI_CLASSES)],
)  # fmt: skip
def test_what_a_job_takes_from_its_manifest(field: str, limit: int) -> None:
    JobSpec("j", "/d", 8, **{field: limit})  # type: ignore[arg-type]
    with pytest.raises(SpecInvalid, match=str(limit)):
        JobSpec("j", "/d", 8, **{field: limit + 1})  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_is_refused_before_it_can_break_a_log_or_a_record() -> None:
    with pytest.raises(ProtocolMismatch, match="UTF-8"):
        messages.decode(hello(job="\ud800"))


@pytest.mark.parametrize("text", ["\ud800", "x" * (limits.ADDRESS_CHARS + 1)], ids=["surrogate", "long"])
@pytest.mark.parametrize("name", [each.name for each in fields(JobSpec) if each.type in ("str", "Tail")])
def test_every_text_of_a_job_is_one_that_can_be_shown(name: str, text: str) -> None:
    """A coordinator's answers and records hold them: what no UTF-8 has would end each answer that lists jobs."""
    job = {**JobSpec("j", "/d", 8).to_dict(), name: text}
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.from_dict(job)
    assert caught.value.ids["field"] == name


@pytest.mark.parametrize("kind", [lambda *a: Failed(3, *a), Refuse])
def test_an_error_gets_through_whatever_its_text(kind: Callable[..., Failed | Refuse]) -> None:
    ids: dict[str, str | int] = {f"{i}" * 200: "x" * 10_000 for i in range(40)} | {"n": 10**40}
    sent = kind("internal", "\ud800" * 100_000, ids)
    found = messages.decode(messages.encode(sent))
    assert isinstance(found, Failed | Refuse)
    assert len(found.message) == limits.ERROR_CHARS


def test_an_error_whose_ids_are_named_as_arguments_is_rebuilt() -> None:
    from headrace.core.errors import from_code

    error = from_code("no_steps", "x", {"self": 1, "message": "m", "job": "j"})
    assert isinstance(error, HeadraceError)
    assert error.ids == {"job": "j"}
