"""What `cuda_ipc` asks of the CUDA driver, over a driver that is none (testing.fake_driver): rules kept, errors explained."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver

from headrace.core.errors import GpuLost, TransportUnavailable
from headrace.testing.fake_driver import GRANULARITY, FakeDriver
from headrace.wire import cuda_calls, cuda_legacy, cuda_vmm
from headrace.wire.cuda_device import open_device, open_pinner, uuid_text
from headrace.wire.device_memory import Device, answer_ping, check_pong, write_ping
from tests.unit.test_gpu_faults import LOST

SIZE = 3 * GRANULARITY - 512


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    for module in (cuda_calls, cuda_vmm, cuda_legacy):
        monkeypatch.setattr(module, "driver", fake)
    yield fake


@pytest.fixture(params=["vmm", "legacy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def memory_of(device: Device, kind: str) -> Any:
    memory = device.memory(kind)
    assert memory is not None
    return memory


def test_a_block_is_shared_proven_and_freed(fake: FakeDriver, kind: str) -> None:
    mine, theirs = (memory_of(open_device(0), kind) for _ in range(2))
    block = mine.allocate(SIZE)
    assert block.nbytes == 3 * GRANULARITY
    write_ping(mine, block, SIZE, "nonce")
    handle = mine.export(block)
    assert (handle.fd >= 0, len(handle.data)) == ((True, 0) if kind == "vmm" else (False, 64))
    imported = theirs.import_block(handle, SIZE)
    assert imported.pointer != block.pointer
    answer_ping(theirs, imported, SIZE, "nonce")
    check_pong(mine, block, SIZE, "nonce")
    mine.write(block.pointer + 4096, b"pixels")
    found = bytearray(6)
    theirs.read(imported.pointer + 4096, memoryview(found))
    assert found == b"pixels"
    theirs.free(imported)
    mine.free(block)
    if handle.fd >= 0:
        os.close(handle.fd)
    assert fake.clean
    for memory in (mine, theirs):
        memory.close()
        memory.close()
    assert fake.contexts == 0


def test_vmm_memory_outlives_its_owner(fake: FakeDriver) -> None:
    mine, theirs = (memory_of(open_device(0), "vmm") for _ in range(2))
    assert theirs.outlives_owner
    block = mine.allocate(SIZE)
    mine.write(block.pointer, b"batch")
    handle = mine.export(block)
    imported = theirs.import_block(handle, SIZE)
    os.close(handle.fd)
    mine.free(block)
    found = bytearray(5)
    theirs.read(imported.pointer, memoryview(found))
    assert found == b"batch"
    theirs.free(imported)
    assert fake.clean


@pytest.mark.parametrize(
    "fails",
    ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemImportFromShareableHandle",
     "cuMemGetAllocationGranularity"],
)  # fmt: skip
def test_whatever_fails_on_the_way_leaves_nothing(fake: FakeDriver, fails: str) -> None:
    owner = memory_of(open_device(0), "vmm")
    block = owner.allocate(SIZE)
    handle = owner.export(block)
    held = len(fake.ranges), len(fake.physical)
    fake.fails[fails] = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    other = memory_of(open_device(0), "vmm")
    with pytest.raises(TransportUnavailable, match=f"{fails}: CUDA_ERROR_OUT_OF_MEMORY \\(the GPU has no memory left"):
        if fails != "cuMemCreate":
            other.import_block(handle, SIZE)
        other.allocate(SIZE)
    assert (len(fake.ranges), len(fake.physical)) == held
    fake.fails.clear()
    owner.free(block)
    os.close(handle.fd)
    assert fake.clean


def test_every_thread_gets_the_context_and_its_own_back(fake: FakeDriver, kind: str) -> None:
    memory = memory_of(open_device(0), kind)
    block = memory.allocate(SIZE)
    errors: list[Exception] = []

    def work(own: int) -> None:
        try:
            fake.cuCtxPushCurrent(own)  # as a trainer's thread has
            memory.write(block.pointer + own * 64, bytes([own]) * 64)
            assert fake._stack() == [own]
        except (AssertionError, TransportUnavailable) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = bytearray(64)
    memory.read(block.pointer + 5 * 64, memoryview(found))
    assert found == b"\x05" * 64
    memory.free(block)


def test_host_buffers_are_writable_and_freed(fake: FakeDriver, kind: str) -> None:
    memory = memory_of(open_device(0), kind)
    buffer = memory.host_buffer(8192)
    buffer.view[:4] = b"head"
    block = memory.allocate(SIZE)
    memory.write(block.pointer, buffer.view)
    found = bytearray(8192)
    memory.read(block.pointer, memoryview(found))
    assert found[:4] == b"head"
    memory.free(block)
    buffer.close()
    assert fake.clean


def test_a_slab_is_pinned_by_whole_pages_read_only(fake: FakeDriver) -> None:
    pinner = open_pinner(0)
    pinner.pin(1 << 40, 8192)
    assert fake.pinned == {1 << 40: 8192}
    pinner.unpin(1 << 40)
    assert fake.clean
    fake.vmm = False  # it says no to every attribute
    with pytest.raises(TransportUnavailable, match="mapped read-only"):
        pinner.pin(1 << 40, 8192)


def test_a_driver_without_descriptors_leaves_the_older_handles(fake: FakeDriver) -> None:
    fake.vmm = False
    device = open_device(0)
    assert [memory.kind for memory in device.memories] == ["legacy"]
    assert "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED" in device.lacks


def test_gpus_are_named_as_everywhere(fake: FakeDriver) -> None:
    fake.uuid = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert open_device(0).uuid == "GPU-00112233-4455-6677-8899-aabbccddeeff"
    fake.name = b"NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert open_device(0).uuid == "MIG-00112233-4455-6677-8899-aabbccddeeff"
    assert uuid_text(bytes(16)) == "GPU-00000000-0000-0000-0000-000000000000"


def test_each_error_says_what_to_do(fake: FakeDriver) -> None:
    with pytest.raises(TransportUnavailable, match=r"CUDA_ERROR_INVALID_DEVICE .*CUDA_VISIBLE_DEVICES"):
        open_device(3)
    fake.lacks.add("cuMemCreate")
    with pytest.raises(TransportUnavailable, match="driver is too old: it has no cuMemCreate"):
        memory_of(open_device(0), "vmm").allocate(1)
    for result, words in cuda_calls._ADVICE.items():
        with pytest.raises(TransportUnavailable) as error:
            cuda_calls.check("cuInit", getattr(driver.CUresult, result))
        assert words in error.value.message and error.value.reason == result


@pytest.mark.parametrize("code", list(driver.CUresult), ids=lambda code: code.name)
def test_a_result_that_ends_the_processs_use_of_its_gpu_is_another_error(code: driver.CUresult) -> None:
    if code == driver.CUresult.CUDA_SUCCESS:
        cuda_calls.check("cuMemcpyHtoDAsync", code)
        return
    with pytest.raises(TransportUnavailable) as error:
        cuda_calls.check("cuMemcpyHtoDAsync", code)
    assert type(error.value) is (GpuLost if code.value in LOST else TransportUnavailable)


def test_a_handle_survives_its_way_as_bytes() -> None:
    data = bytes(range(64))
    assert cuda_legacy.handle_bytes(cuda_legacy.handle_of(data)) == data
    for wrong in (b"", bytes(63), bytes(65)):
        with pytest.raises(TransportUnavailable, match="64"):
            cuda_legacy.handle_of(wrong)


def test_what_is_asked_for_is_memory_of_one_gpu_shared_by_descriptor() -> None:
    wanted = cuda_vmm.allocation(3)
    assert wanted.type == driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert wanted.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert wanted.location.id == 3
    assert wanted.requestedHandleTypes == driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    access = cuda_vmm.access(2)
    assert (access.location.id, access.flags) == (2, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)


def test_without_a_driver_the_real_bindings_end_in_a_sentence() -> None:
    """In a process of its own: the bindings remember that they found none."""
    code = (
        "from headrace.wire.cuda_device import open_device\n"
        "from headrace.core.errors import TransportUnavailable\n"
        "try:\n    print(open_device(0).uuid)\n"
        "except TransportUnavailable as error:\n    print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(("GPU-", "MIG-", "no NVIDIA driver is here", "cuInit: CUDA_ERROR"))
