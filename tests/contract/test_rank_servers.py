"""The contract of both of the worker's servers, on real sockets."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from headrace.core.errors import BatchFailed, PeerGone, PortInUse, SessionSuperseded
from headrace.testing.null_producer import NullProducer, pattern
from headrace.wire import messages, slot_format
from headrace.wire.batch_meta import decode_meta
from headrace.worker.ports import Room
from tests.contract.raw_rank import HELLO, SHAPE, Harness, RawRank, note_slabs, pixels_of, serving, slab_fds, slab_mappings

pytestmark = pytest.mark.parametrize("transport", ["cuda_ipc", "shm", "grpc"])


@pytest.fixture(autouse=True)
def only_slabs_of_this_test() -> None:
    note_slabs()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.sock"


def open_fds() -> int:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def assert_batch(rank: RawRank, index: int) -> None:
    content = rank.batches[index]
    header = slot_format.read_header(memoryview(content))
    assert (header.index, header.token, header.shape) == (index, 1, SHAPE)
    assert pixels_of(content) == pattern(index, header.pixel_bytes)
    meta = decode_meta(content[header.meta_offset :])
    assert (meta.index, len(meta.sample_ids)) == (index, SHAPE[0])


async def test_batches_arrive_intact_in_any_number_of_windows(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        rank = await harness.connect()
        for index in range(20):
            await rank.until_ready(index)
            assert_batch(rank, index)
            await rank.send(messages.Next(index + 1))
        await rank.close()


async def test_slots_are_counted_by_what_they_are_used_for(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        rank = await harness.connect()
        (port,) = harness.register._ports.values()
        total = sum(port.slot_states())
        await rank.until_ready(3)
        await harness.settle()
        # The window is full: the slab holds it on the same node; what was sent is in the rank's own memory.
        assert port.slot_states() == ((0, 0, total) if transport == "grpc" else (0, total, 0))
        slot = port.acquire(4)
        assert slot is None
        await rank.send(messages.Next(2))
        await harness.settle(lambda: harness.producer.made.count((0, 5)) == 1)
        await rank.until_ready(5)
        assert sum(port.slot_states()) == total
        await rank.close()


async def test_large_batches_arrive_intact(transport: str, path: Path) -> None:
    producer = NullProducer((16, 224, 224, 3), window=3)  # 2.4 MB: chunks of unequal length
    async with serving(transport, path, producer) as harness:
        rank = await harness.connect()
        for index in range(6):
            await rank.until_ready(index)
            assert pixels_of(rank.batches.pop(index)) == pattern(index, producer.pixel_bytes)
            await rank.send(messages.Next(index + 1))
        await rank.close()


async def test_started_comes_before_ready(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        rank = await harness.connect()
        assert await rank.until(messages.Started) == messages.Started(0, 1)
        ready = await rank.until(messages.Ready)
        assert isinstance(ready, messages.Ready) and (ready.index, ready.token) == (0, 1)
        await rank.close()


async def test_the_smaller_window_counts(transport: str, path: Path) -> None:
    async with serving(transport, path, NullProducer(SHAPE, window=5)) as harness:
        for asked, granted in ((3, 3), (9, 5)):
            rank = await harness.connect(window=asked)
            assert rank.welcome is not None and rank.welcome.slots == granted
            await rank.close()


@pytest.mark.parametrize(("asked", "had", "grown"), [(5, 3, 5), (4, 3, 8), (3, 3, 8), (8, 5, 5)])
async def test_a_rank_that_asked_for_more_than_it_has_connects_anew_when_the_window_grows(
    transport: str, path: Path, asked: int, had: int, grown: int
) -> None:
    producer = NullProducer(SHAPE, window=had)
    async with serving(transport, path, producer) as harness:
        rank = await harness.connect(window=asked)
        (port,) = producer.ports
        stays = min(asked, grown) == had
        port.grant(grown)
        assert port.closed is not stays
        await rank.close()
        producer.window = grown
        again = await harness.connect(window=asked)
        await harness.settle(lambda: len(producer.ports) == 1 and producer.ports[0] is not port)
        assert producer.ports[0].window == min(asked, grown)
        await again.close()


async def test_a_stalled_rank_holds_the_worker_at_its_window_and_nobody_else(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        stalled = await harness.connect(rank=0)
        other = await harness.connect(rank=1)
        for index in range(30):
            await other.until_ready(index)
            await other.send(messages.Next(index + 1))
        await harness.settle()
        assert [index for rank, index in harness.producer.made if rank == 0] == [0, 1, 2, 3]
        assert max(index for rank, index in harness.producer.made if rank == 1) < 30 + 4
        await stalled.close()
        await other.close()


async def test_have_is_not_made_again(transport: str, path: Path) -> None:
    async with serving(transport, path, NullProducer(SHAPE, window=4)) as harness:
        rank = await harness.connect(next=7, have=(8, 9, 500))
        await rank.until_ready(10)
        await harness.settle()
        assert [index for _, index in harness.producer.made] == [7, 10]
        await rank.close()


async def test_lower_and_repeated_next_change_nothing(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        rank = await harness.connect()
        await rank.until_ready(3)
        for number in (2, 2, 0, 1, 2):
            await rank.send(messages.Next(number))
        await rank.until_ready(5)
        await harness.settle()
        assert [index for _, index in harness.producer.made] == [0, 1, 2, 3, 4, 5]
        await rank.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": messages.PROTOCOL + 1000}, "protocol_mismatch"),
        ({"protocol": messages.PROTOCOL - 2}, "protocol_mismatch"),
        ({"window": 0}, "protocol_mismatch"),
        ({"window": 2**40}, "protocol_mismatch"),
        ({"job": "j" * 1000}, "protocol_mismatch"),
        ({"token": "wrong"}, "unauthenticated"),
    ],
)
async def test_a_wrong_hello_is_refused(transport: str, path: Path, changes: dict[str, object], code: str) -> None:
    async with serving(transport, path, token="secret") as harness:
        rank = harness.rank()
        fields = {"token": "secret", **changes}
        await rank.send(messages.Hello(**{**{f: getattr(HELLO, f) for f in HELLO.__slots__}, **fields}))
        (refusal,) = await rank.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == code
        assert harness.producer.events == []
        await rank.close()
        good = await harness.connect(token="secret")
        await good.close()


async def test_the_listeners_refusal_crosses_with_its_ids(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        harness.producer.error = SessionSuperseded("attempt 4 has begun", attempt=4, job="job")
        rank = harness.rank()
        await rank.send(HELLO)
        (refusal,) = await rank.until_gone()
        assert refusal == messages.Refuse("session_superseded", "attempt 4 has begun", {"attempt": 4, "job": "job"})
        await rank.close()


async def test_a_bug_in_admit_is_told_and_the_server_goes_on(
    transport: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(transport, path) as harness:

        async def broken(*_: object) -> Room:
            raise ZeroDivisionError("oops")

        monkeypatch.setattr(harness.producer, "admit", broken)
        rank = harness.rank()
        await rank.send(HELLO)
        (refusal,) = await rank.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == "internal" and "oops" in refusal.message
        await rank.close()
        monkeypatch.undo()
        await (await harness.connect()).close()


async def test_a_silent_peer_is_refused_after_the_deadline(transport: str, path: Path) -> None:
    async with serving(transport, path, hello_deadline_s=0.1) as harness:
        rank = harness.rank()
        (refusal,) = await rank.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == "wait_timeout"
        await rank.close()


@pytest.mark.parametrize("first", [messages.Next(3), messages.Drain(), messages.Started(0, 0)])
async def test_something_else_than_hello_is_refused(transport: str, path: Path, first: messages.Message) -> None:
    async with serving(transport, path) as harness:
        rank = harness.rank()
        await rank.send(first)
        (refusal,) = await rank.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == "protocol_mismatch"
        await rank.close()


@pytest.mark.parametrize("data", [messages.encode(HELLO), messages.encode(messages.Drain()), b"\xff" * 9])
async def test_garbage_after_hello_ends_only_that_rank(transport: str, path: Path, data: bytes) -> None:
    async with serving(transport, path) as harness:
        other = await harness.connect(rank=1)
        rank = await harness.connect()
        await rank.send_raw(data)
        last = (await rank.until_gone())[-1]
        assert isinstance(last, messages.Refuse) and last.code == "protocol_mismatch"
        await other.until_ready(3)
        await harness.settle(lambda: harness.producer.events.count(("closed", 0)) == 1)
        assert ("closed", 1) not in harness.producer.events
        await rank.close()
        await other.close()


async def test_a_reconnect_replaces_the_earlier_port(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        first = await harness.connect()
        await first.until_ready(3)
        second = await harness.connect(next=2, have=(3,))
        await first.until_gone()
        await second.until_ready(5)
        assert [event for event, _ in harness.producer.events if event != "advanced"] == ["opened", "closed", "opened"]
        assert set(second.batches) == {2, 4, 5}
        assert len(harness.producer.ports) == 1 and not harness.producer.ports[0].closed
        assert first.welcome and second.welcome and first.welcome.generation != second.welcome.generation
        await first.close()
        await second.close()


async def test_another_attempt_is_another_port(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        ranks = [await harness.connect(attempt=attempt) for attempt in (0, 1)]
        assert len(harness.producer.ports) == 2
        for rank in ranks:
            await rank.until_ready(0)
            await rank.close()


async def test_a_gone_rank_frees_everything(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:

        async def come_and_go() -> None:
            rank = await harness.connect()
            await rank.until_ready(2)
            await rank.close()
            await harness.settle(lambda: not harness.producer.ports)

        await come_and_go()  # warm up: grpc keeps descriptors of its own
        await harness.settle()
        fds, mappings = open_fds(), slab_mappings()
        assert mappings == 0
        for _ in range(5):
            await come_and_go()
        await harness.settle(lambda: open_fds() <= fds)
        assert slab_mappings() == 0


async def test_a_slab_outlives_its_rank_while_an_engine_writes(transport: str, path: Path) -> None:
    async with serving(transport, path, NullProducer(SHAPE, auto=False)) as harness:
        rank = await harness.connect()
        (port,) = harness.producer.ports
        slot, other = port.acquire(0), port.acquire(1)
        assert slot is not None and other is not None
        await rank.close()
        await harness.settle(lambda: port.closed)
        assert slab_mappings() == 1 and slab_fds() == 2, "not even half closed"
        slot[:] = b"x" * len(slot)  # the engine's thread knows of nothing
        assert not port.wants(0) and port.acquire(2) is None
        port.publish(0, 1, 4096)
        assert slab_mappings() == 1 and slab_fds() == 2
        other[:1] = b"x"
        del slot, other
        port.abandon(1)
        assert slab_mappings() == 0 and slab_fds() == 0


async def test_an_abandoned_index_may_be_acquired_again(transport: str, path: Path) -> None:
    producer = NullProducer(SHAPE, auto=False)
    async with serving(transport, path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        assert port.acquire(0) is not None
        assert port.acquire(0) is None, "it is being written"
        producer.events.clear()
        port.abandon(0)
        assert port.wants(0)
        await harness.settle(lambda: ("advanced", 0) in producer.events)
        assert producer.make(port, 0) and not port.wants(0)
        await rank.until_ready(0)
        assert_batch(rank, 0)
        await rank.close()


async def test_an_overtaken_index_is_dropped_and_never_shares_memory(transport: str, path: Path) -> None:
    """Another worker made index 0 while it was written here: the window moves on, its slot stays its own until written."""
    producer = NullProducer(SHAPE, auto=False, window=1)
    async with serving(transport, path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        slot = port.acquire(0)
        assert slot is not None
        await rank.send(messages.Next(1))
        await harness.settle(lambda: port.next_index == 1)
        assert port.wants(1)
        later = port.acquire(1)
        if later is not None:  # gRPC has a second staging slot
            later[0], slot[0] = 1, 2
            assert later[0] == 1
            port.abandon(1)
        port.publish(0, 1, producer.write(slot, port, 0))
        assert producer.make(port, 1)
        await rank.until_ready(1)
        assert set(rank.batches) == {1}
        await rank.close()


async def test_a_failed_batch_carries_its_error(transport: str, path: Path) -> None:
    producer = NullProducer(SHAPE, auto=False)
    async with serving(transport, path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        assert port.acquire(0) is not None
        port.fail(0, BatchFailed("all samples are bad" + "!" * 10**6, batch=17))
        failed = await rank.until(messages.Failed)
        assert isinstance(failed, messages.Failed)
        assert (failed.index, failed.code, failed.ids) == (0, "batch_failed", {"batch": 17})
        assert not port.wants(0) and port.acquire(1) is not None
        port.abandon(1)
        await rank.close()


async def test_drain_tells_all_and_still_sends_what_is_published(transport: str, path: Path) -> None:
    async with serving(transport, path, NullProducer(SHAPE, window=2)) as harness:
        rank = await harness.connect()
        await rank.until_ready(0)
        await harness.server.drain()
        await rank.until(messages.Drain)
        await rank.until_ready(1)
        late = harness.rank()
        await late.send(HELLO)
        (refusal,) = await late.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == "peer_gone"
        assert harness.producer.ports, "a drained rank stays connected"
        await late.close()
        await rank.close()


async def test_close_ends_all_within_its_grace(transport: str, path: Path) -> None:
    async with serving(transport, path) as harness:
        rank = await harness.connect()
        await rank.until_ready(0)
        await asyncio.wait_for(harness.server.close(0.2), 5.0)
        await rank.until_gone()
        assert harness.producer.ports == []
        await rank.close()
    with pytest.raises((PeerGone, OSError)):
        gone = harness.rank()
        await gone.send(HELLO)
        await gone.receive()


async def test_a_taken_address_is_refused(transport: str, path: Path) -> None:
    from headrace.worker.serve_grpc import GrpcServer
    from headrace.worker.serve_local import LocalServer

    async with serving(transport, path) as harness:
        second = (
            GrpcServer(harness.register, f"127.0.0.1:{harness.server.port}")  # type: ignore[union-attr]
            if transport == "grpc"
            else LocalServer(harness.register, path)
        )
        with pytest.raises(PortInUse):
            await second.start()
        await (await harness.connect()).close()


async def test_many_ranks_at_once(transport: str, path: Path) -> None:
    async def run(harness: Harness, number: int) -> None:
        rank = await harness.connect(rank=number)
        for index in range(8):
            await rank.until_ready(index)
            assert_batch(rank, index)
            await rank.send(messages.Next(index + 1))
        await rank.close()

    async with serving(transport, path) as harness:
        await asyncio.gather(*(run(harness, number) for number in range(16)))
        await harness.settle(lambda: not harness.producer.ports)
