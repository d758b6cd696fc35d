"""What a worker does for a rank on its GPU: offer, probe, quarantine, refusals. The GPU is memory of this machine."""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import TransportUnavailable
from headrace.testing.memfd_device import GRANULARITY, UUID, MemfdMemory, memfd_device
from headrace.testing.null_producer import NullProducer
from headrace.wire import messages
from headrace.wire.device_memory import Block, Handle
from headrace.worker.device_share import DeviceShare
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_local import LocalServer
from tests.contract.raw_rank import HELLO, SHAPE, DeviceRank, Harness, LocalRank, eventually, pixels_of, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.sock"


def device_fds() -> int:
    gc.collect()
    links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sum("headrace-device" in str(link) for link in links)


async def welcome_of(rank: LocalRank, hello: messages.Hello) -> messages.Welcome:
    """The WELCOME, and nothing done about it."""
    await LocalRank.send(rank, hello)
    message = await LocalRank.receive(rank)
    assert isinstance(message, messages.Welcome), message
    return message


ASKING = replace(HELLO, gpu=UUID, memories="memfd")


async def test_only_the_pixels_lie_on_the_gpu(path: Path) -> None:
    async with serving("cuda_ipc", path) as harness:
        rank = await harness.connect()
        assert rank.welcome is not None
        assert rank.welcome.slot_bytes < harness.producer.slot_bytes - harness.producer.pixel_bytes + 4096
        assert rank.welcome.device_slot_bytes >= harness.producer.pixel_bytes
        (port,) = harness.producer.ports
        assert (port.transport, port.slab_bytes) == ("cuda_ipc", rank.welcome.slots * rank.welcome.device_slot_bytes)
        await rank.close()


async def test_a_rank_that_asks_for_no_gpu_gets_shared_memory_and_no_word_of_gpus(path: Path) -> None:
    async with serving("cuda_ipc", path) as harness:
        rank = LocalRank(path)
        welcome = await welcome_of(rank, HELLO)
        assert welcome == messages.Welcome(messages.PROTOCOL, "w0", welcome.generation, 4, harness.producer.slot_bytes)
        await eventually(lambda: bool(harness.producer.ports))
        assert harness.producer.ports[0].transport == "shm"
        await rank.close()


def test_ranks_and_workers_of_the_version_before_are_served() -> None:
    """2000 refuses fields that it does not know: whoever asks for no GPU says nothing of one, in either direction."""
    assert b"gpu" not in messages.encode(HELLO)
    welcome = messages.Welcome(2000, "w0", 1, 4, 8192)
    assert b"memory" not in messages.encode(welcome) and b"why_not" not in messages.encode(welcome)
    assert messages.decode(messages.encode(HELLO)) == HELLO
    assert messages.decode(messages.encode(welcome)) == welcome
    messages.check_protocol(2000, "a worker")


async def test_whatever_a_driver_raises_shared_memory_is_given(path: Path) -> None:
    class Broken(MemfdMemory):
        def allocate(self, nbytes: int) -> Block:
            raise OSError("the driver's library is of another version")

    async with serving("cuda_ipc", path, device=memfd_device(Broken())) as harness:
        rank = LocalRank(path)
        welcome = await welcome_of(rank, ASKING)
        assert "failed to share its GPU" in welcome.why_not and "another version" in welcome.why_not
        await rank.until_ready(0)
        assert harness.producer.ports[0].transport == "shm"
        await rank.close()


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (replace(ASKING, gpu="GPU-1"), "another GPU"),
        (replace(ASKING, gpu="MIG-1"), "MIG instances"),
        (replace(ASKING, memories="vmm,legacy"), "memfd: not taken by the rank"),
    ],
)
async def test_why_a_rank_gets_no_gpu_memory_is_in_its_welcome(path: Path, hello: messages.Hello, why: str) -> None:
    async with serving("cuda_ipc", path) as harness:
        rank = LocalRank(path)
        welcome = await welcome_of(rank, hello)
        assert why in welcome.why_not
        assert (welcome.memory, welcome.gpu, welcome.slot_bytes) == ("", "", harness.producer.slot_bytes)
        await rank.until_ready(0)
        await rank.close()


async def test_a_worker_without_a_gpu_says_so(path: Path) -> None:
    def broken() -> None:
        raise TransportUnavailable("no NVIDIA driver is here")

    producer = NullProducer(SHAPE)
    for share in (DeviceShare(), DeviceShare(broken)):  # type: ignore[arg-type]
        server = LocalServer(RankRegister(producer, worker="w0"), path, devices=share)
        await server.start()
        for _ in range(2):  # the second time it is not tried again
            rank = LocalRank(path)
            welcome = await welcome_of(rank, ASKING)
            assert welcome.why_not in ("the worker shares no GPU memory", "no NVIDIA driver is here")
            await rank.close()
        await server.close(0.0)


async def test_nothing_is_made_before_the_rank_has_answered_the_pattern(path: Path) -> None:
    async with serving("cuda_ipc", path, hello_deadline_s=0.3) as harness:
        rank = DeviceRank(path)
        welcome = await welcome_of(rank, ASKING)
        assert welcome.memory == "memfd"
        last = (await rank.until_gone())[-1]
        assert isinstance(last, messages.Refuse) and last.code == "wait_timeout"
        assert harness.producer.events == [] == harness.producer.made
        await rank.close()


async def test_probed_without_an_answer_in_the_slab_is_a_probe_mismatch(path: Path) -> None:
    for faults in ({"deaf"}, {"other"}):
        memory = MemfdMemory(faults=frozenset(faults))
        async with serving("cuda_ipc", path) as harness:
            rank = DeviceRank(path, memory)
            if faults == {"other"}:  # it sees for itself
                with pytest.raises(TransportUnavailable, match="probe mismatch"):
                    await harness_receive(rank)
            else:
                await rank.send(HELLO)
                await rank.receive()
                last = (await rank.until_gone())[-1]
                assert isinstance(last, messages.Refuse) and last.code == "transport_unavailable"
                assert "probe mismatch" in last.message
            assert harness.producer.events == []
            await rank.close()


async def harness_receive(rank: DeviceRank) -> None:
    await rank.send(HELLO)
    await rank.receive()


@pytest.mark.parametrize("early", [messages.Probed(), messages.Probed()])
async def test_probed_out_of_turn_ends_the_connection(path: Path, early: messages.Message) -> None:
    async with serving("cuda_ipc", path) as harness:
        for hello in (None, HELLO):
            rank = LocalRank(path)
            if hello is not None:
                await welcome_of(rank, hello)
            await rank.send(early)
            last = (await rank.until_gone())[-1]
            assert isinstance(last, messages.Refuse) and last.code == "protocol_mismatch"
            await rank.close()
        twice = await harness.connect()
        await twice.send(early)
        last = (await twice.until_gone())[-1]
        assert isinstance(last, messages.Refuse) and last.code == "protocol_mismatch"
        await twice.close()


async def test_a_dead_ranks_slab_is_quarantined_then_freed(path: Path) -> None:
    memory = MemfdMemory()
    async with serving("cuda_ipc", path, device=memfd_device(memory), grace_s=1.0) as harness:
        assert isinstance(harness.server, LocalServer)
        rank = await harness.connect()
        await rank.close()
        await harness.settle(lambda: not harness.producer.ports)
        assert harness.server.devices.quarantined == 1 and len(memory.blocks) == 1
        again = await harness.connect()  # meanwhile it gets another one
        assert len(memory.blocks) == 2
        await again.until_ready(3)
        await eventually(lambda: len(memory.blocks) == 1)
        await eventually(lambda: isinstance(harness.server, LocalServer) and harness.server.devices.quarantined == 0)
        await again.close()


async def test_a_slab_is_not_freed_while_an_engine_writes_to_it(path: Path) -> None:
    memory = MemfdMemory()
    async with serving("cuda_ipc", path, NullProducer(SHAPE, auto=False), device=memfd_device(memory)) as harness:
        rank = await harness.connect()
        (port,) = harness.producer.ports
        slot = port.acquire(0)
        place = port.device_place(0)
        assert slot is not None and place is not None
        await rank.close()
        await harness.settle(lambda: port.closed)
        await harness.settle()
        memory.write(place.slot.pointer, b"x" * place.slot.nbytes)
        del slot
        port.abandon(0)
        await eventually(lambda: not memory.blocks)


async def test_a_full_gpu_waits_for_what_is_quarantined_and_then_says_so(path: Path) -> None:
    memory = MemfdMemory(most_bytes=GRANULARITY)
    async with serving("cuda_ipc", path, device=memfd_device(memory), grace_s=1.0) as harness:
        first = await harness.connect()
        second = LocalRank(path)
        welcome = await welcome_of(second, replace(ASKING, rank=1))
        assert "no memory on the GPU" in welcome.why_not
        await second.close()
        await first.close()
        await harness.settle(lambda: not harness.producer.ports)
        third = await harness.connect(rank=2)  # no other memory than the quarantined
        assert third.welcome is not None and third.welcome.memory == "memfd"
        await third.close()


async def test_the_next_way_is_offered_where_the_first_fails(path: Path) -> None:
    device = memfd_device(MemfdMemory("vmm", faults=frozenset({"allocate"})), MemfdMemory("legacy", outlives_owner=False))
    async with serving("cuda_ipc", path, device=device):
        rank = DeviceRank(path, MemfdMemory("legacy"))
        await rank.send(replace(ASKING, memories="vmm,legacy"))
        welcome = await rank.receive()
        assert isinstance(welcome, messages.Welcome) and welcome.memory == "legacy"
        await rank.until_ready(0)
        await rank.close()


async def test_a_hundred_dead_ranks_leave_neither_memory_nor_descriptors(path: Path) -> None:
    memory = MemfdMemory()
    async with serving("cuda_ipc", path, device=memfd_device(memory)) as harness:

        async def come_and_go(number: int) -> None:
            rank = await harness.connect(rank=number)
            if number % 3:
                await rank.until_ready(1)
            await rank.close()
            await harness.settle(lambda: not harness.producer.ports)

        await come_and_go(0)
        await eventually(lambda: not memory.blocks)
        before = device_fds()
        for number in range(100):
            await come_and_go(number)
        await eventually(lambda: not memory.blocks)
        # Others' tests may have left some in this process; a rank's end of what it received goes a moment after it.
        await eventually(lambda: device_fds() <= before)


async def test_a_worker_that_stops_frees_all(path: Path) -> None:
    memory = MemfdMemory()
    async with serving("cuda_ipc", path, device=memfd_device(memory), grace_s=60.0) as harness:
        gone, there = await harness.connect(rank=0), await harness.connect(rank=1)
        await gone.close()
        await harness.settle(lambda: len(harness.producer.ports) == 1)
        await harness.server.close(0.0)
        await there.until_gone()
        await eventually(lambda: not memory.blocks)
        await there.close()


async def test_what_is_ready_outlives_the_worker(path: Path) -> None:
    async with serving("cuda_ipc", path) as harness:
        rank = await harness.connect()
        await rank.until_ready(3)
        await harness.server.close(0.0)
        assert isinstance(rank, DeviceRank) and isinstance(harness, Harness)
        for index in range(4):
            content = rank.content(messages.Ready(index, 1, rank.welcome.generation, 4096 + 65536))  # type: ignore[union-attr]
            assert pixels_of(content)
        await rank.close()


async def test_a_rank_that_leaves_during_the_probe_leaves_nothing(path: Path) -> None:
    memory = MemfdMemory()
    async with serving("cuda_ipc", path, device=memfd_device(memory)) as harness:
        rank = LocalRank(path)
        await welcome_of_with_device(rank)
        assert len(memory.blocks) == 1
        await rank.close()
        await eventually(lambda: not memory.blocks)
        await asyncio.sleep(0)
        assert harness.producer.events == []


async def welcome_of_with_device(rank: LocalRank) -> None:
    rank.take_fds = lambda fds: [os.close(fd) for fd in fds]  # type: ignore[assignment,method-assign,func-returns-value]
    assert (await welcome_of(rank, ASKING)).memory == "memfd"


def test_a_wrong_descriptor_is_refused(tmp_path: Path) -> None:
    memory = MemfdMemory()
    with (tmp_path / "f").open("wb+") as file, pytest.raises(TransportUnavailable):
        memory.import_block(Handle(file.fileno()), 4096)
