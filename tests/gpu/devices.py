"""The kinds of memory that the proof runs over: two of a GPU, and memory of this machine that stands for one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import TransportUnavailable
from headrace.testing.memfd_device import MemfdMemory, memfd_device
from headrace.wire.device_memory import Block, Device, DeviceMemory, Handle, HostBuffer

KINDS = ("memfd", "vmm", "legacy")
# Also memory that must not be read once its owner is gone, and both ways of a GPU over a driver that is none.
ALL_KINDS = ("memfd", "memfd-legacy", "played-vmm", "played-legacy", "vmm", "legacy")
MEMFD_BYTES = 8 << 30


class Counting:
    """Another memory, and the bytes that its `write` and `read` moved: between host and GPU there is no other copy of ours."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.kind = memory.kind
        self.gpu = memory.gpu
        self.outlives_owner = memory.outlives_owner
        self.dlpack_device = memory.dlpack_device
        self.written = self.read_back = 0

    def allocate(self, nbytes: int) -> Block:
        return self._memory.allocate(nbytes)

    def export(self, block: Block) -> Handle:
        return self._memory.export(block)

    def import_block(self, handle: Handle, nbytes: int) -> Block:
        return self._memory.import_block(handle, nbytes)

    def free(self, block: Block) -> None:
        self._memory.free(block)

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        self.written += len(data)
        self._memory.write(pointer, data)

    def read(self, pointer: int, out: memoryview) -> None:
        self.read_back += len(out)
        self._memory.read(pointer, out)

    def host_buffer(self, nbytes: int) -> HostBuffer:
        return self._memory.host_buffer(nbytes)

    def close(self) -> None:
        self._memory.close()


def open_kind(kind: str) -> Device:
    """The GPU with that way to share memory alone, its copies counted. Raises TransportUnavailable."""
    if kind.startswith("memfd"):
        memory = Counting(MemfdMemory(most_bytes=MEMFD_BYTES, outlives_owner=kind == "memfd"))
        return memfd_device(memory)  # type: ignore[arg-type]
    from headrace.wire.cuda_device import open_device

    if kind.startswith("played-"):
        play()
    device = open_device(0)
    found = device.memory(kind.removeprefix("played-"))
    if found is None:
        raise TransportUnavailable(device.lacks or f"this GPU has no memory of kind {kind}")
    return Device(device.uuid, device.name, (Counting(found),))


def play(put: Callable[[object, str, object], None] = setattr) -> None:
    """Have a stand-in for the CUDA driver answer in this process (testing.fake_driver), unless one does. put: as setattr."""
    from headrace.testing.fake_driver import FakeDriver
    from headrace.wire import cuda_calls, cuda_legacy, cuda_vmm

    if not isinstance(cuda_calls.driver, FakeDriver):
        fake = FakeDriver()
        for module in (cuda_calls, cuda_vmm, cuda_legacy):
            put(module, "driver", fake)


def counter(device: Device) -> Counting:
    """What counts a device's copies."""
    (memory,) = device.memories
    assert isinstance(memory, Counting)
    return memory


@functools.cache
def why_not(kind: str) -> str:
    """Why a kind cannot be used here; empty if it can. The first call of CUDA is made here."""
    try:
        device = open_kind(kind)
        block = device.memories[0].allocate(1 << 20)
        device.memories[0].free(block)
        device.close()
    except TransportUnavailable as error:
        return error.message
    return ""


def used_bytes(kind: str) -> int:
    """Memory in use on the GPU, by all processes; of what stands for one, what this process has mapped."""
    if kind.startswith("memfd"):
        return Path("/proc/self/maps").read_text().count("headrace-device") * (2 << 20)
    from headrace.wire.cuda_calls import Context, check, driver

    if kind.startswith("played-"):
        return sum(held.size for held in driver.ranges.values())  # type: ignore[attr-defined]

    context = Context(0)
    with context.current():
        code, free, total = driver.cuMemGetInfo()
        check("cuMemGetInfo", code)
    context.close()
    return int(total) - int(free)


def descriptors() -> int:
    """Open in this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
