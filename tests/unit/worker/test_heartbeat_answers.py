"""What a coordinator answers that cannot be: the worker goes on, with what it holds and with all that it can read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.core import limits
from headrace.core.job import JobSpec, Session
from headrace.core.pipeline_spec import PipelineSpec, Resize
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.worker.lease_loop import LeaseLoop
from headrace.worker.work import SessionWork
from tests.unit.worker.test_heartbeat_errors import leases  # noqa: F401 - a fixture

OTHER = PipelineSpec(ops=(Resize((2, 2)),))
FORBIDDEN: Any = object()
SESSION = Session(JobSpec("fine", "/nowhere", 64, manifest_hash="aa", samples=4000), 1, 1, 0, 0, 1, 4, 12)


def lease(job: str, **more: Any) -> pb.SessionLeases:
    return pb.SessionLeases(job=job, attempt=1, lanes=[0], tokens=[5], **more)


def of_another_version() -> pb.Session:
    message = convert.session_to_proto(replace(SESSION, job=replace(SESSION.job, name="newer")))
    message.job.spec_json = json.dumps({**json.loads(message.job.spec_json), "field_of_tomorrow": 1})
    return message


@pytest.mark.parametrize(
    "hostile",
    [
        pb.SessionLeases(job="odd", attempt=1, lanes=[0, 1], tokens=[5]),
        pb.SessionLeases(job="many", attempt=1, lanes=range(limits.LANES + 1), tokens=[1] * (limits.LANES + 1)),
        lease("newer", session=of_another_version()),
        lease("garbage", session=pb.Session(job=pb.Job(name="garbage", spec_json="["))),
        lease("zero", session=pb.Session()),
    ],
)
async def test_one_session_that_cannot_be_read_keeps_no_other_away(
    leases: LeaseLoop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    hostile: pb.SessionLeases,
) -> None:
    answer = pb.HeartbeatResponse(leases=[hostile, lease("fine", session=convert.session_to_proto(SESSION))])

    async def answered(_: object) -> pb.HeartbeatResponse:
        return answer

    monkeypatch.setattr(leases, "_call", answered)
    with capture_logs() as logs:
        assert await leases.beat()
        assert await leases.beat()
    assert [line["job"] for line in logs if line["event"] == "leases_unreadable"] == [hostile.job], "told once"
    assert list(leases._opening) == [("fine", 1)]


@pytest.mark.parametrize(
    "change", [{"dataset": "/elsewhere"}, {"seed": 9}, {"manifest_hash": "bb"}, {"batch_size": 32}, {"pipeline": OTHER}]
)
async def test_another_job_under_the_same_name_gets_no_tool_of_the_one_before(
    leases: LeaseLoop,  # noqa: F811
    change: dict[str, Any],
) -> None:
    """The store lost the first one, and both sessions are attempt 1."""
    await leases._sessions.put(SessionWork(SESSION, FORBIDDEN, FORBIDDEN, {}))
    await leases._know(replace(SESSION, window=SESSION.window + 1))
    assert leases._sessions.by_key["fine", 1].engine is FORBIDDEN, "the same job goes on with what it has"
    await leases._know(replace(SESSION, job=replace(SESSION.job, **change)))
    assert ("fine", 1) not in leases._sessions.by_key
    assert list(leases._opening) == [("fine", 1)], "it is opened anew"


@pytest.mark.parametrize("seconds", [-5, 10**11, 315_576_000_000])
async def test_times_that_cannot_be_are_brought_within_reason(
    leases: LeaseLoop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
) -> None:
    answer = pb.HeartbeatResponse()
    answer.interval.seconds = answer.ttl.seconds = seconds

    async def answered(_: object) -> pb.HeartbeatResponse:
        return answer

    monkeypatch.setattr(leases, "_call", answered)
    assert await leases.beat()
    assert 0.05 <= leases._interval_s <= 60
    assert 0.2 <= leases._ttl_s <= 600
