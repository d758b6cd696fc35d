"""The intake and the worker's real server over device memory, which is memory of this machine: every refusal, every death."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client.gpu import Gpu, GpuChoice
from headrace.client.transports.device_slab import import_slab
from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TakenSlot, TransportChoice
from headrace.core.errors import BatchReleased, ProtocolMismatch, TransportUnavailable
from headrace.core.job import Endpoint, LaneTable, Session
from headrace.testing.leaks import fetchers_of
from headrace.testing.memfd_device import UUID, MemfdMemory, memfd_device
from headrace.testing.null_producer import NullProducer, pattern
from headrace.wire import messages
from headrace.wire.device_memory import Device, write_ping
from headrace.wire.slot_format import SlotHeader
from headrace.worker.device_share import DeviceShare
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import GrpcServer
from headrace.worker.serve_local import LocalServer
from tests.integration import intake_bench
from tests.integration.fake_worker import NODE, small_session
from tests.integration.intake_bench import Bench

DEADLINE_S = 20.0


class Served:
    """A worker's two servers, and the table that gives it all lanes."""

    def __init__(self, producer: NullProducer, local: LocalServer, table: LaneTable) -> None:
        self.producer = producer
        self.local = local
        self.table = table


@asynccontextmanager
async def serving(
    session: Session, directory: Path, device: Device | None, name: str = "w0", grace_s: float = 0.2
) -> AsyncIterator[Served]:
    producer = NullProducer(session.job.pipeline.shape(session.job.batch_size), window=session.window)
    register = RankRegister(producer, worker=name)
    share = DeviceShare(lambda: device, grace_s=0.1) if device else DeviceShare()  # type: ignore[arg-type,return-value]
    local, remote = LocalServer(register, directory / f"{name}.sock", devices=share), GrpcServer(register, "127.0.0.1:0")
    await local.start()
    await remote.start()
    endpoint = Endpoint(name, "1", NODE, f"127.0.0.1:{remote.port}", str(directory / f"{name}.sock"))
    lanes = session.lanes
    try:
        yield Served(producer, local, LaneTable(1, session.window, (name,) * lanes, (1,) * lanes, {name: endpoint}))
    finally:
        await local.close(grace_s)
        await remote.close(grace_s)


@asynccontextmanager
async def taking(
    session: Session, table: LaneTable, device: Device | None, transport: TransportChoice = "auto"
) -> AsyncIterator[ThreadIntake]:
    intake = ThreadIntake(session, 0, "n", NODE, transport=transport, gpu=Gpu(device) if device else Gpu())
    try:
        intake.update(table)
        yield intake
    finally:
        await asyncio.to_thread(intake.close)


def pixels_of(taken: TakenSlot) -> bytes:
    if taken.device is None:
        return bytes(taken.slot[4096 : 4096 + taken.header.pixel_bytes])
    return taken.device.to_host(np.dtype(np.uint8)).tobytes()


def eat(intake: ThreadIntake, first: int, count: int) -> set[str]:
    """Take and check; the rungs that they came by."""
    rungs = set()
    for index in range(first, first + count):
        taken = intake.take(index, DEADLINE_S)
        assert pixels_of(taken) == pattern(index, taken.header.pixel_bytes)
        rungs.add(taken.transport)
        del taken
        intake.release(index + 1)
    return rungs


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(int(DEADLINE_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("headrace-device")


async def test_batches_come_by_cuda_ipc_and_nothing_is_left(tmp_path: Path) -> None:
    session = small_session(side=64, batch_size=4)
    mine, theirs = MemfdMemory(), MemfdMemory()
    async with serving(session, tmp_path, memfd_device(theirs)) as served:
        for transport in ("auto", "cuda_ipc"):
            async with taking(session, served.table, memfd_device(mine), transport) as intake:  # type: ignore[arg-type]
                assert await asyncio.to_thread(eat, intake, 0, 30) == {"cuda_ipc"}
                reason = {"auto": "same GPU", "cuda_ipc": "demanded by the caller"}[transport]
                assert intake.status().transports == {"w0": ("cuda_ipc", reason)}
    assert not mine.blocks and not theirs.blocks and mapped() == 0


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    [
        (memfd_device(), None, "the worker shares no GPU memory"),
        (memfd_device(uuid="GPU-b"), memfd_device(), "another GPU"),
        (memfd_device(uuid="MIG-b"), memfd_device(), "MIG instances"),
        (memfd_device(), memfd_device(MemfdMemory(faults=frozenset({"allocate"}))), "no memory on the GPU"),
        (memfd_device(), memfd_device(MemfdMemory("vmm")), "vmm: not taken by the rank"),
        (memfd_device(MemfdMemory(faults=frozenset({"import"}))), memfd_device(), "memfd: cuMemImportFromShareableHandle"),
        (memfd_device(MemfdMemory(faults=frozenset({"other"}))), memfd_device(), "probe mismatch"),
        (memfd_device(MemfdMemory(faults=frozenset({"deaf"}))), memfd_device(), "probe mismatch"),
        (None, memfd_device(), "asked for no GPU"),
    ],
)
async def test_each_refusal_ends_on_shared_memory_with_its_reason_or_is_an_error(
    tmp_path: Path, mine: Device | None, theirs: Device | None, why: str
) -> None:
    session = small_session()
    async with serving(session, tmp_path, theirs) as served:
        async with taking(session, served.table, mine) as intake:
            assert await asyncio.to_thread(eat, intake, 0, 8) == {"shm"}
            rung, reason = intake.status().transports["w0"]
            assert rung == "shm" and "cuda_ipc: " in reason and why in reason
        async with taking(session, served.table, mine, "cuda_ipc") as intake:
            with pytest.raises(TransportUnavailable, match="cannot be reached by cuda_ipc") as error:
                await asyncio.to_thread(intake.take, 0, DEADLINE_S)
            assert why in error.value.message


async def test_the_second_way_is_taken_before_shared_memory(tmp_path: Path) -> None:
    session = small_session()
    theirs = memfd_device(MemfdMemory("vmm"), MemfdMemory("legacy", outlives_owner=False))
    mine = memfd_device(MemfdMemory("vmm", faults=frozenset({"import"})), MemfdMemory("legacy", outlives_owner=False))
    async with serving(session, tmp_path, theirs) as served, taking(session, served.table, mine, "cuda_ipc") as intake:
        assert await asyncio.to_thread(eat, intake, 0, 8) == {"cuda_ipc"}


async def test_a_larger_window_is_a_larger_slab(tmp_path: Path) -> None:
    session = small_session()
    async with serving(session, tmp_path, memfd_device()) as served, taking(session, served.table, memfd_device()) as intake:
        await asyncio.to_thread(intake.take, 2, DEADLINE_S)
        served.producer.window = 7
        table = served.table
        intake.update(LaneTable(2, 7, table.owners, table.tokens, table.endpoints))
        await asyncio.to_thread(intake.take, 6, DEADLINE_S)
        assert await asyncio.to_thread(eat, intake, 0, 20) == {"cuda_ipc"}


async def test_ready_batches_of_a_dead_worker_are_used_where_the_memory_stays(tmp_path: Path) -> None:
    session = small_session()
    async with serving(session, tmp_path, memfd_device()) as served, taking(session, served.table, memfd_device()) as intake:
        await asyncio.to_thread(intake.take, 2, DEADLINE_S)
        await served.local.close(0.0)
        assert await asyncio.to_thread(eat, intake, 0, 3) == {"cuda_ipc"}


async def test_ready_batches_of_a_dead_worker_are_made_again_where_the_memory_goes_with_it(tmp_path: Path) -> None:
    session = small_session()
    legacy = [memfd_device(MemfdMemory("legacy", outlives_owner=False)) for _ in range(2)]
    async with serving(session, tmp_path, legacy[0]) as served, taking(session, served.table, legacy[1]) as intake:
        in_hand = await asyncio.to_thread(intake.take, 0, DEADLINE_S)
        staged = await asyncio.to_thread(intake.take, 1, DEADLINE_S)
        await asyncio.to_thread(intake.take, 2, DEADLINE_S)
        assert not in_hand.lost and not staged.lost
        await served.local.close(0.0)
        for _ in range(200):
            if staged.lost:
                break
            await asyncio.sleep(0.05)
        assert in_hand.lost and staged.lost and in_hand.device is not None
        with pytest.raises(BatchReleased):
            in_hand.device.to_host(np.dtype(np.uint8))
        async with serving(session, tmp_path, None, "w1") as other:  # another worker has the lanes now
            table = other.table
            intake.update(LaneTable(2, table.window, table.owners, (2,) * session.lanes, table.endpoints))
            other.producer.token = 2
            assert await asyncio.to_thread(eat, intake, 0, 6) == {"shm"}


@pytest.mark.parametrize("restarts", [False, True])
async def test_batches_of_a_dead_worker_come_by_the_fetcher_that_was_told_of_them(tmp_path: Path, restarts: bool) -> None:
    """The memory goes with its worker, and its lanes go to another node."""
    session = small_session()
    legacy = [memfd_device(MemfdMemory("legacy", outlives_owner=False)) for _ in range(2)]
    async with (
        serving(session, tmp_path, legacy[0]) as served,
        serving(session, tmp_path, None, "w1") as other,
        taking(session, served.table, legacy[1]) as intake,
    ):
        there = replace(other.table.endpoints["w1"], node="node-b", socket="")
        endpoints = {**served.table.endpoints, "w1": there}
        lanes, window = session.lanes, session.window
        if restarts:  # else it starts when all is here
            intake.update(LaneTable(2, window, ("w1",) + ("w0",) * (lanes - 1), (1,) * lanes, endpoints))
            await until(lambda: bool(other.producer.ports), "the fetcher is there")
        await asyncio.to_thread(intake.take, 2, DEADLINE_S)
        await until(lambda: len(intake._arrivals.have()) == window, "all are ready")
        if restarts:
            for pid in fetchers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not other.producer.ports, "the fetcher is gone")
        else:
            intake.update(LaneTable(2, window, ("w0",) * (lanes - 1) + ("w1",), (1,) * lanes, endpoints))
        await until(lambda: bool(other.producer.ports), "it was told what is here")
        await served.local.close(0.0)
        other.producer.token = 2
        intake.update(LaneTable(3, window, ("w1",) * lanes, (2,) * lanes, endpoints))
        assert "grpc" in await asyncio.to_thread(eat, intake, 0, 12)


async def test_pixels_that_are_lent_keep_the_memory(tmp_path: Path) -> None:
    session = small_session()
    memory = MemfdMemory()
    async with (
        serving(session, tmp_path, memfd_device()) as served,
        taking(session, served.table, memfd_device(memory)) as intake,
    ):
        taken = await asyncio.to_thread(intake.take, 0, DEADLINE_S)
        array = np.from_dlpack(taken.device)  # type: ignore[arg-type]
        del taken
        await asyncio.to_thread(intake.close)
        assert len(memory.blocks) == 1  # not unmapped under the array
        assert array.tobytes() == pattern(0, array.nbytes)
        del array
        gc.collect()


async def test_a_hundred_dead_workers_leave_neither_memory_nor_descriptors(tmp_path: Path) -> None:
    session = small_session(batches=1000)
    memory = MemfdMemory()
    fds: list[int] = []
    intake = ThreadIntake(session, 0, "n", NODE, transport="cuda_ipc", gpu=Gpu(memfd_device(memory)))
    try:
        for number in range(100):
            async with serving(session, tmp_path, memfd_device(), grace_s=0.0) as served:
                table = served.table
                endpoint = Endpoint("w0", str(number), NODE, table.endpoints["w0"].grpc, table.endpoints["w0"].socket)
                intake.update(LaneTable(number + 2, table.window, table.owners, table.tokens, {"w0": endpoint}))
                assert await asyncio.to_thread(eat, intake, 4 * number, 4) == {"cuda_ipc"}
            if number in (20, 99):
                gc.collect()
                fds.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
                assert len(memory.blocks) <= 2
        assert fds[1] <= fds[0] + 4  # those of one slab more or less, and of gRPC
    finally:
        await asyncio.to_thread(intake.close)
    assert not memory.blocks


def test_a_rank_without_a_driver_is_told_so() -> None:
    """The real bindings on a machine without a driver; where there is one, the device is opened."""
    gpu = GpuChoice(0).open("auto")
    assert (gpu.device is None) == bool(gpu.device is None and gpu.why_not)
    if gpu.device is None:
        assert "driver" in gpu.why_not or "cuda-bindings" in gpu.why_not
    assert GpuChoice(0).open("shm").device is None
    assert GpuChoice().open("auto") == Gpu()


class Pins:
    """client.gpu.Pinner that notes. fails: as a driver without the right does."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.pinned: dict[int, int] = {}
        self.all = 0

    def pin(self, address: int, nbytes: int) -> None:
        if self.fails:
            raise TransportUnavailable("this GPU's driver pins no memory that is mapped read-only")
        assert memory_at(address) >= nbytes, "what is pinned is mapped"
        self.pinned[address] = nbytes
        self.all += 1

    def unpin(self, address: int) -> None:
        assert memory_at(address) >= self.pinned.pop(address), "it is mapped still"


def memory_at(address: int) -> int:
    """Bytes of the mapping that begins there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return end - address
    return 0


@pytest.mark.parametrize("transport", ["shm", "grpc"])
@pytest.mark.parametrize("fails", [False, True])
async def test_slabs_in_host_memory_are_pinned_as_long_as_they_are_mapped(
    tmp_path: Path, transport: TransportChoice, fails: bool
) -> None:
    session = small_session()
    pins = Pins(fails)
    async with serving(session, tmp_path, None) as served:
        intake = ThreadIntake(session, 0, "n", NODE, transport=transport, gpu=GpuChoice(pinner=pins).open(transport))
        try:
            intake.update(served.table)
            taken = await asyncio.to_thread(intake.take, 0, DEADLINE_S)
            assert taken.pinned is not fails
            assert taken.transport == transport
            del taken
            served.producer.window = 5
            table = served.table
            intake.update(LaneTable(2, 5, table.owners, table.tokens, table.endpoints))  # a new slab
            await asyncio.to_thread(intake.take, 4, DEADLINE_S)
            await asyncio.to_thread(eat, intake, 0, 12)
            assert pins.all == (0 if fails else 2)
        finally:
            await asyncio.to_thread(intake.close)
    assert not pins.pinned


async def test_a_slab_whose_pixels_lie_on_the_gpu_is_not_pinned(tmp_path: Path) -> None:
    session = small_session()
    pins = Pins()
    async with serving(session, tmp_path, memfd_device()) as served:
        gpu = Gpu(memfd_device(), pinner=pins)
        intake = ThreadIntake(session, 0, "n", NODE, gpu=gpu)
        try:
            intake.update(served.table)
            assert await asyncio.to_thread(eat, intake, 0, 6) == {"cuda_ipc"}
        finally:
            await asyncio.to_thread(intake.close)
    assert pins.all == 0


@pytest.mark.parametrize("vmm", [True, False], ids=["vmm", "legacy"])
async def test_the_same_over_every_line_up_to_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vmm: bool) -> None:
    """The implementations for CUDA, over a driver that is none."""
    pytest.importorskip("cuda.bindings.driver")
    from headrace.testing.fake_driver import FakeDriver
    from headrace.wire import cuda_calls, cuda_legacy, cuda_vmm
    from headrace.wire.cuda_device import open_device

    fake = FakeDriver(vmm=vmm)
    for module in (cuda_calls, cuda_vmm, cuda_legacy):
        monkeypatch.setattr(module, "driver", fake)
    session = small_session(side=64, batch_size=4)
    async with (
        serving(session, tmp_path, open_device(0)) as served,
        taking(session, served.table, open_device(0), "cuda_ipc") as intake,
    ):
        assert await asyncio.to_thread(eat, intake, 0, 20) == {"cuda_ipc"}
        served.producer.window = 6
        table = served.table
        intake.update(LaneTable(2, 6, table.owners, table.tokens, table.endpoints))
        assert await asyncio.to_thread(eat, intake, 20, 20) == {"cuda_ipc"}
    assert fake.clean


@pytest.mark.parametrize("refuses", [True, False])
def test_a_worker_of_the_version_before_is_used_by_shared_memory(bench: Bench, refuses: bool) -> None:
    """It refuses a HELLO with fields that it does not know; one that knows none of GPUs answers as ever."""
    worker = bench.worker("w0")
    if refuses:
        worker.refuse.append(messages.Refuse("protocol_mismatch", "Hello message has wrong fields", {}))
    intake = ThreadIntake(bench.session, 0, "n", NODE, gpu=Gpu(memfd_device()))
    bench.intakes.append(intake)
    intake.update(bench.tables.give(worker))
    assert set(intake_bench.eat(intake, range(8))) == {"w0"}
    assert [hello.gpu for hello in worker.hellos] == ([UUID, ""] if refuses else [UUID])
    rung, reason = intake.status().transports["w0"]
    assert rung == "shm" and "cuda_ipc: the worker's version shares no GPU memory" in reason


WELCOME = messages.Welcome(messages.PROTOCOL, "w0", 1, 4, 8192, "memfd", UUID, 1024, "", "nonce")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"gpu": "GPU-other"}, ProtocolMismatch),
        ({"memory": "vmm"}, ProtocolMismatch),
        ({"device_slot_bytes": 0}, ProtocolMismatch),
        ({"device_slot_bytes": 1000}, ProtocolMismatch),
        ({"device_slot_bytes": 1 << 50}, ProtocolMismatch),
        ({"handle": "xyz"}, ProtocolMismatch),
        ({}, TransportUnavailable),  # no descriptor came
    ],
)
def test_what_a_worker_offers_is_checked_before_the_driver_sees_it(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        import_slab(memfd_device(), replace(WELCOME, **changes), -1)
    with pytest.raises(ProtocolMismatch):
        import_slab(None, WELCOME, -1)


def test_pixels_that_do_not_fit_their_slot_are_refused() -> None:
    memory = MemfdMemory()
    block = memory.allocate(4096)
    write_ping(memory, block, 4096, "nonce")
    handle = memory.export(block)
    slab = import_slab(memfd_device(MemfdMemory()), WELCOME, handle.fd)
    form = (0, 1, "uint8", "NHWC", (1, 32, 32, 3))
    assert slab.pixels(5, SlotHeader(*form, 1024, 4096, 10, 0, True)).pointer % 4096 == 1024
    with pytest.raises(ProtocolMismatch):
        slab.pixels(5, SlotHeader(*form, 1025, 4096, 10, 0, True))
    assert slab.close()
    os.close(handle.fd)
