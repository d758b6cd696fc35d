"""Garbage, silence and floods at the servers of a real coordinator and a real worker: a good peer is served all the while."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.core import limits
from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.testing.cluster import Cluster, Member
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen.coordinator_service_pb2_grpc import CoordinatorServiceStub
from headrace.wire.messages import PROTOCOL
from headrace.wire.status import error_from_rpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
CONNECTIONS = 400
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fleet"), coordinators=1, workers=1) as running:
        coordinator = running.coordinators[0]
        eventually(lambda: is_ready(coordinator.admin_address), "the coordinator has read its jobs")
        eventually(lambda: health_of(coordinator.address) == health_pb2.HealthCheckResponse.SERVING, "its gRPC health follows")
        yield running


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def garbage(rng: random.Random) -> bytes:
    """What one connection says."""
    frame = rng.randbytes(3) + rng.randbytes(6)
    return rng.choice(
        (
            b"",
            rng.randbytes(rng.choice((1, 9, 500, 20_000))),
            PREFACE,
            PREFACE + SETTINGS + rng.randbytes(300),
            PREFACE + SETTINGS + frame + rng.randbytes(100),
            PREFACE + b"\xff\xff\xff\x04\0\0\0\0\0",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + rng.randbytes(64),
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000,
            b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /api/jobs/%ff%fe%00 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\r\n" * 5000,
        )
    )


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def health_of(address: str) -> int:
    """As a fresh peer is told."""
    with grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=DEADLINE_S, wait_for_ready=True
        )
        return int(answer.status)


def speaks_grpc(address: str) -> None:
    """A fresh good peer is answered."""
    assert health_of(address) == health_pb2.HealthCheckResponse.SERVING


def speaks_http(address: str) -> None:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
        assert b"headrace_" in answer.read()


def servers(cluster: Cluster) -> list[tuple[Member, str, Callable[[str], None]]]:
    coordinator, worker = cluster.coordinators[0], cluster.workers[0]
    return [
        (coordinator, coordinator.address, speaks_grpc),
        (coordinator, coordinator.admin_address, speaks_http),
        (worker, worker.address, speaks_grpc),
        (worker, worker.admin_address, speaks_http),
    ]


def eventually(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise WaitTimeout(what)
        time.sleep(0.05)


@contextlib.contextmanager
def unharmed(member: Member) -> Iterator[None]:
    """The process lives on, logs no trace, and has its descriptors and threads back."""
    process = psutil.Process(member.running.pid)
    before = process.num_fds(), process.num_threads()
    yield
    eventually(lambda: process.num_fds() <= before[0] + 4, f"descriptors of {member.name} return to {before[0]}")
    eventually(lambda: process.num_threads() <= before[1] + 8, f"threads of {member.name} return to {before[1]}")
    assert member.running.alive
    assert "Traceback" not in member.log.read_text()


@pytest.mark.parametrize("which", range(4), ids=["coordinator", "admin", "worker", "metrics"])
def test_garbage(cluster: Cluster, which: int, seed: int) -> None:
    member, address, good = servers(cluster)[which]
    rng = random.Random(f"{seed}:{which}")
    good(address)
    with unharmed(member):
        for number in range(150):
            with socket.create_connection(address_of(address), timeout=10) as peer, contextlib.suppress(OSError):
                peer.sendall(garbage(rng))
                if rng.random() < 0.3:
                    peer.settimeout(0.05)
                    peer.recv(1000)
            if number % 50 == 0:
                good(address)
        good(address)


def test_hundreds_that_say_nothing_or_half_of_it(cluster: Cluster) -> None:
    """New good peers get their answers while they are there, and the servers themselves end them."""
    with contextlib.ExitStack() as stack:
        for member in {member.name: member for member, _, _ in servers(cluster)}.values():
            stack.enter_context(unharmed(member))
        held = []
        for _, address, _ in servers(cluster):
            for number in range(CONNECTIONS):
                peer = stack.enter_context(socket.create_connection(address_of(address), timeout=30))
                with contextlib.suppress(OSError):  # ended already, for too many
                    peer.sendall((b"", b"G", b"GET / HTTP/1.1\r\nX: ")[number % 3])
                held.append(peer)
        for _, address, good in servers(cluster):
            good(address)
        poll, open_still = select.poll(), {peer.fileno(): peer for peer in held}
        for descriptor in open_still:
            poll.register(descriptor, select.POLLIN)

        def all_ended() -> bool:
            for descriptor, _ in poll.poll(0):
                try:
                    ended = open_still[descriptor].recv(4096) == b""
                except OSError:
                    ended = True
                if ended:
                    poll.unregister(descriptor)
                    del open_still[descriptor]
            return not open_still

        eventually(all_ended, "the servers end connections that ask nothing")


def test_calls_that_are_no_messages(cluster: Cluster, seed: int) -> None:
    member = cluster.coordinators[0]
    rng = random.Random(seed)
    methods = ("OpenJob", "JoinSession", "ReportProgress", "LeaveSession", "Heartbeat", "NoSuchCall")
    with unharmed(member), grpc.insecure_channel(member.address) as channel:
        for number in range(120):
            call = channel.unary_unary(f"/headrace.v1.CoordinatorService/{methods[number % 6]}")
            with pytest.raises(grpc.RpcError) as caught:
                call(rng.randbytes(rng.choice((0, 3, 50, 3000))), timeout=DEADLINE_S)
            assert caught.value.code() in {
                grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNKNOWN,
            }  # fmt: skip
        stub = CoordinatorServiceStub(channel)
        too_long = pb.OpenJobRequest(
            protocol=PROTOCOL, job=pb.Job(name="j", spec_json="x" * (limits.REQUEST_BYTES + 1)), world=1
        )
        with pytest.raises(grpc.RpcError) as caught:
            stub.OpenJob(too_long, timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(limits.REQUEST_BYTES) in (caught.value.details() or "")
        long_spec = pb.OpenJobRequest(protocol=PROTOCOL, job=pb.Job(name="j", spec_json="x" * (limits.SPEC_CHARS + 1)), world=1)
        with pytest.raises(grpc.RpcError) as caught:
            stub.OpenJob(long_spec, timeout=DEADLINE_S)
        assert str(limits.SPEC_CHARS) in error_from_rpc(caught.value).message


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/jobs?" + "q" * limits.HTTP_QUERY_BYTES, None, 414),
        ("/api/jobs", b"x" * (limits.HTTP_BODY_BYTES + 1), 413),
        ("/api/jobs", b"x", 405),
    ],
)
def test_long_queries_and_bodies(cluster: Cluster, path: str, body: bytes | None, status: int) -> None:
    address = cluster.coordinators[0].admin_address
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{address}{path}", data=body, timeout=DEADLINE_S)
    assert caught.value.code == status
    speaks_http(address)


def test_an_error_over_the_limit_names_it() -> None:
    with pytest.raises(HeadraceError, match="at most 3 are taken"):
        limits.at_most(4, 3, "things")
