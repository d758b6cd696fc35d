"""What only the gRPC server promises."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from headrace.core.errors import ConfigInvalid
from headrace.testing.null_producer import NullProducer
from headrace.wire import messages
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import METHOD, SERVICE, STAGING_SLOTS, GrpcServer
from tests.contract.raw_rank import HELLO, SHAPE, GrpcRank, eventually, note_slabs, serving, slab_mappings

BIG = (32, 224, 224, 3)  # 4.8 MB: more than gRPC buffers by itself

CLIENT = """
import sys, time, grpc
from headrace.wire import messages
from headrace.worker.serve_grpc import METHOD, SERVICE
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.max_receive_message_length", 8 << 20)])
hello = messages.encode(messages.Hello(messages.PROTOCOL, "job", 0, 0, "n", 0, 4))
def requests():
    yield hello
    time.sleep(60)
for data in channel.stream_stream(f"/{SERVICE}/{METHOD}")(requests()):
    print("got", flush=True)
    if len(sys.argv) > 2 and isinstance(messages.decode(data), messages.Chunk):
        time.sleep(60)
"""


async def child_rank(port: int, *arguments: str) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, f"127.0.0.1:{port}", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    await asyncio.wait_for(child.stdout.readline(), 20)
    return child


def port_of(server: object) -> int:
    assert isinstance(server, GrpcServer)
    return server.port


@pytest.fixture(autouse=True)
def only_slabs_of_this_test() -> None:
    note_slabs()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "unused"


async def test_a_killed_client_is_noticed(path: Path) -> None:
    async with serving("grpc", path) as harness:
        child = await child_rank(port_of(harness.server))
        await harness.settle(lambda: len(harness.producer.ports) == 1)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        await harness.settle(lambda: not harness.producer.ports)


async def test_a_client_that_hangs_is_cut_and_its_slab_freed(path: Path) -> None:
    """Stopped in the middle of a batch: TCP stays up, no byte moves; the port closes after the stall deadline, not before."""
    producer = NullProducer(BIG, window=8, fill=False)
    register = RankRegister(producer, worker="w0")
    server = GrpcServer(register, "127.0.0.1:0", stall_deadline_s=1.0)
    await server.start()
    child = await child_rank(server.port)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        with capture_logs() as logs:
            await eventually(lambda: ("closed", 0) in producer.events, 30)
        # not by keepalive, which would find a process that is stopped, but not one that hangs
        assert [log["reason"] for log in logs if log["event"] == "rank_disconnected"] == ["no byte was taken for 1.0 s"]
        await eventually(lambda: slab_mappings() == 0)
        os.kill(child.pid, signal.SIGCONT)
        await asyncio.wait_for(child.wait(), 20)  # its stream ended too
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
            await child.wait()
        await asyncio.wait_for(server.close(0.0), 10)


async def test_a_client_that_does_not_read_holds_its_two_slots_only(path: Path) -> None:
    producer = NullProducer(BIG, window=32, fill=False)
    async with serving("grpc", path, producer) as harness:
        slow = await harness.connect(window=32)
        other = await harness.connect(rank=1, window=4)
        for index in range(6):
            await other.until_ready(index)
            await other.send(messages.Next(index + 1))
        made = len([1 for rank, _ in producer.made if rank == 0])
        buffered = 64 << 20  # gRPC's own flow control stops at a few MiB; no more than this
        assert made <= STAGING_SLOTS + buffered // producer.pixel_bytes and made < 32
        await slow.close()
        await other.close()


async def test_staging_is_two_slots(path: Path) -> None:
    producer = NullProducer(SHAPE, auto=False)
    async with serving("grpc", path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        first, second = port.acquire(0), port.acquire(1)
        assert first is not None and second is not None and port.acquire(2) is None
        first[0], second[0] = 1, 2
        assert (first[0], second[0]) == (1, 2)
        producer.events.clear()
        port.publish(1, 1, producer.write(second, port, 1))
        await rank.until_ready(1)
        await harness.settle(lambda: ("advanced", 0) in producer.events)
        assert port.acquire(2) is not None
        for index in (0, 2):
            port.abandon(index)
        await rank.close()


async def test_control_messages_do_not_wait_for_a_whole_batch(path: Path) -> None:
    """Said while a batch is on its way. Where the machine is slow, it may all be on its way already: then again."""
    assert any([await _said_within_a_batch(path) for _ in range(5)])


async def _said_within_a_batch(path: Path) -> bool:
    producer = NullProducer(BIG, auto=False, fill=False)
    async with serving("grpc", path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        assert producer.make(port, 0)
        assert isinstance(await rank.until(messages.Chunk), messages.Chunk)
        port.started(1, 1)
        seen: list[messages.Message] = []
        while not isinstance(message := await rank.receive(), messages.Ready):
            seen.append(message)
        await rank.close()
    return messages.Started(1, 1) in seen


async def test_a_drained_stream_ends_with_its_mark_and_whole_batches(path: Path) -> None:
    producer = NullProducer(BIG, window=2, fill=False)
    async with serving("grpc", path, producer) as harness:
        rank = await harness.connect()
        assert isinstance(rank, GrpcRank)
        await rank.until(messages.Chunk)
        await harness.server.drain()
        closing = asyncio.create_task(harness.server.close(10.0))
        await rank.until_gone()
        assert await rank.call.code() is grpc.StatusCode.OK
        assert ("x-drain", "1") in [tuple(pair) for pair in await rank.call.trailing_metadata()]
        assert set(rank.batches) == {0, 1}
        await asyncio.wait_for(closing, 10.0)
        await rank.close()


async def test_health_says_when_it_drains(path: Path) -> None:
    async with serving("grpc", path) as harness:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port_of(harness.server)}")
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await harness.server.drain()
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await channel.close()


async def test_an_idle_stream_survives_keepalive_pings(path: Path) -> None:
    """A client that pings each second: servers by default end such a connection after two pings."""
    async with serving("grpc", path, NullProducer(SHAPE, auto=False)) as harness:
        options = [
            ("grpc.keepalive_time_ms", 1000),
            ("grpc.keepalive_timeout_ms", 500),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port_of(harness.server)}", options=options) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            await call.write(messages.encode(HELLO))
            await call.read()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call.read(), 4.5)
            assert len(harness.producer.ports) == 1


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", ":7", "127.0.0.1:99999"])
async def test_an_impossible_address_is_named(address: str) -> None:
    server = GrpcServer(RankRegister(NullProducer(SHAPE), worker="w0"), address)
    with pytest.raises(ConfigInvalid, match="host:port"):
        await server.start()


async def test_an_oversize_request_ends_only_its_stream(path: Path) -> None:
    async with serving("grpc", path) as harness:
        rank = await harness.connect()
        await rank.send_raw(b"x" * (messages.MAX_CONTROL_BYTES + 1))
        await rank.until_gone()
        await harness.settle(lambda: not harness.producer.ports)
        await rank.close()
        await (await harness.connect()).close()
