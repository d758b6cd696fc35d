"""A heartbeat that this process cannot send is one that failed, never the process's end."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from headrace.core.errors import CoordinatorUnavailable, StaleToken, StoreUnavailable, Unauthenticated, WaitTimeout
from headrace.core.job import Endpoint
from headrace.wire.calls import Calls
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.worker.engines import registry
from headrace.worker.lease_loop import Identity, LeaseLoop
from headrace.worker.producer import Limits, Producer
from headrace.worker.sources.sharded import open_source
from headrace.worker.stats import WorkerStats
from headrace.worker.tools import Toolbox
from headrace.worker.work import Sessions


@pytest.fixture
async def leases() -> AsyncIterator[LeaseLoop]:
    engine, sessions, stats = registry.create("cpu", 1), Sessions(), WorkerStats(CollectorRegistry())
    producer = Producer("w0", engine.fingerprint, sessions, stats, Limits(1, 1 << 20, 10.0))
    identity = Identity(Endpoint("w0", "i", "node", "127.0.0.1:1", ""), engine, 1)
    toolbox = Toolbox(engine, open_source)
    loop = LeaseLoop(
        ["127.0.0.1:1"], identity, sessions=sessions, producer=producer, toolbox=toolbox, stats=stats, calls=Calls()
    )
    yield loop
    await loop.close()
    await toolbox.close()
    producer.close()
    engine.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
async def test_an_error_of_the_system_is_told_and_tried_again(
    leases: LeaseLoop, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(_: str) -> None:
        raise OSError(code, "not now")

    monkeypatch.setattr(leases, "_stub", fail)
    with capture_logs() as logs:
        assert not await leases.beat()
        assert not await leases.beat()
        assert leases._telling is not None
        await leases._telling
    (told,) = (line for line in logs if line["event"] == "heartbeat_unanswered")
    assert "it cannot be sent" in str(told["error"]) and "not now" in str(told["error"])


async def test_heartbeats_do_not_wait_for_why_one_was_not_answered(leases: LeaseLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at a replica takes seconds; leases end after three, and another replica may answer the next one."""
    known = threading.Event()
    answers: list[pb.HeartbeatResponse] = []

    async def call(_: object) -> pb.HeartbeatResponse:
        if not answers:
            raise CoordinatorUnavailable("not there")
        return answers[0]

    def explain(*_: object) -> str:
        assert known.wait(30.0)
        return "its certificate expired"

    monkeypatch.setattr(leases, "_call", call)
    monkeypatch.setattr(leases._calls, "explain", explain)
    with capture_logs() as logs:
        try:
            for _ in range(3):
                leases._tell_from_s = 0.0
                assert not await leases.beat()
            answers.append(pb.HeartbeatResponse())
            assert await leases.beat(), "answered while the reason is still looked for"
            assert not [line for line in logs if line["event"] == "heartbeat_unanswered"]
        finally:
            known.set()
        assert leases._telling is not None
        await leases._telling
    (told,) = (line for line in logs if line["event"] == "heartbeat_unanswered")
    assert told["why"] == "its certificate expired"


async def test_what_a_heartbeat_says_is_not_read_from_disk(leases: LeaseLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is replaced on disk does not change what is loaded; nor may a worker depend on free descriptors."""
    before = leases._request().fingerprint

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "no file may be opened")

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr("io.open", refused)
    monkeypatch.setattr(Path, "read_text", refused)
    assert leases._request().fingerprint == before != ""


async def test_readiness_says_what_keeps_the_worker_from_work(leases: LeaseLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    failing: Exception | None = None

    async def call(request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        if failing is not None:
            raise failing
        return pb.HeartbeatResponse()

    monkeypatch.setattr(leases, "_call", call)
    monkeypatch.setattr(leases, "_tell_unanswered", lambda address, error: None)
    assert "no coordinator has answered" in leases.why_not_ready()
    assert await leases.beat() and leases.why_not_ready() == ""
    for error, words in (
        (CoordinatorUnavailable("nobody there"), "no coordinator answers its heartbeats"),
        (WaitTimeout("too late"), "no coordinator answers its heartbeats"),
        (StoreUnavailable("the store is full"), "refused: the store is full"),
        (Unauthenticated("the worker shows no token"), "refused: the worker shows no token"),
        (StaleToken("another process now runs as worker w0"), "refused: another process now runs as worker w0"),
    ):
        failing = error
        assert not await leases.beat()
        assert words in leases.why_not_ready()
        failing = None
        assert await leases.beat() and leases.why_not_ready() == ""
    leases.leaving = True
    assert "drains" in leases.why_not_ready()


async def test_a_worker_whose_name_another_has_taken_is_not_told_that_its_leases_are_kept(leases: LeaseLoop) -> None:
    with capture_logs() as logs:
        await leases._why("127.0.0.1:1", StaleToken("another process now runs as worker w0"))
        await leases._why("127.0.0.1:1", CoordinatorUnavailable("nobody there"))
    assert ["ended" in line["note"] for line in logs] == [True, False]
