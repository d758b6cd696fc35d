"""The few calls of the CUDA runtime that a GPU engine makes, each checked. Any thread, after `use` in that thread."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import runtime

from headrace.core.errors import GpuLost, GpuMemoryFull, HeadraceError
from headrace.core.gpu_faults import loses_gpu

# Less free memory than that, and what a library refuses without a reason counts as refused for want of memory.
LEAST_FREE_BYTES = 256 << 20


def use(gpu: int) -> None:
    """Make the GPU this thread's. gpu: ordinal in this process."""
    checked(runtime.cudaSetDevice(gpu), "choose the GPU")


def checked(answer: tuple[Any, ...], doing: str) -> Any:
    """What a runtime call gave beside its status. Raises GpuMemoryFull, GpuLost, or HeadraceError for all else."""
    status, *rest = answer
    if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
        raise GpuMemoryFull(f"no GPU memory to {doing}: give the worker a GPU of its own, or the job a smaller batch")
    if status != runtime.cudaError_t.cudaSuccess:
        if loses_gpu(status.name):
            raise GpuLost(f"CUDA failed to {doing}: {status.name}: this process can use its GPU no more", reason=status.name)
        raise HeadraceError(f"CUDA failed to {doing}: {status.name}; see the worker's log and `nvidia-smi`")
    return rest[0] if len(rest) == 1 else tuple(rest)


def probe() -> None:
    """Wait for all that was asked of this thread's GPU. Raises GpuLost if it can be used no more; other errors may pass."""
    (status,) = runtime.cudaDeviceSynchronize()
    if loses_gpu(status.name):
        checked((status,), "wait for the GPU")


def look_at_memory() -> None:
    """Raises GpuLost, and GpuMemoryFull if the GPU has next to none."""
    free, _ = checked(runtime.cudaMemGetInfo(), "ask for its free memory")
    if free < LEAST_FREE_BYTES:
        raise GpuMemoryFull(f"the GPU has {free >> 20} MiB left: give the worker a GPU of its own, or the job a smaller batch")


class DeviceBuffer:
    """Device memory that grows; what was in it is lost then. Not for two threads at once."""

    def __init__(self) -> None:
        self.pointer = 0
        self.nbytes = 0

    def at_least(self, nbytes: int) -> int:
        """Its address, once it has that many bytes. Raises GpuMemoryFull."""
        if nbytes > self.nbytes:
            self.free()
            self.pointer = int(checked(runtime.cudaMalloc(nbytes), f"hold {nbytes >> 20} MiB"))
            self.nbytes = nbytes
        return self.pointer

    def free(self) -> None:
        """Give it back; idempotent."""
        pointer, self.pointer, self.nbytes = self.pointer, 0, 0
        if pointer:
            checked(runtime.cudaFree(pointer), "free memory")


class PinnedBuffer:
    """Host memory that the GPU copies from and to without a detour; grows as DeviceBuffer does."""

    def __init__(self) -> None:
        self.pointer = 0
        self.nbytes = 0

    def at_least(self, nbytes: int) -> memoryview:
        """Its first `nbytes`, writable. Raises GpuMemoryFull where the host has none to pin."""
        if nbytes > self.nbytes:
            self.free()
            self.pointer = int(checked(runtime.cudaMallocHost(nbytes), f"pin {nbytes >> 20} MiB of the host's"))
            self.nbytes = nbytes
        if not nbytes:
            return memoryview(bytearray())
        return memoryview((ctypes.c_ubyte * nbytes).from_address(self.pointer)).cast("B")

    def free(self) -> None:
        """Give it back; idempotent. No view of it may be used any more."""
        pointer, self.pointer, self.nbytes = self.pointer, 0, 0
        if pointer:
            checked(runtime.cudaFreeHost(pointer), "free pinned memory")


def upload(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy to the device, in the stream's order. target, source: addresses."""
    if nbytes:
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        checked(runtime.cudaMemcpyAsync(target, source, nbytes, kind, stream), "copy to the GPU")


def download(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy to the host, in the stream's order."""
    if nbytes:
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(runtime.cudaMemcpyAsync(target, source, nbytes, kind, stream), "copy from the GPU")


class Timer:
    """Three moments of a stream: seconds between them, known once the stream has passed them."""

    def __init__(self) -> None:
        self._events = [checked(runtime.cudaEventCreate(), "make an event") for _ in range(3)]

    def mark(self, place: int, stream: int) -> None:
        """Note moment 0, 1 or 2 in the stream's order."""
        checked(runtime.cudaEventRecord(self._events[place], stream), "note a moment")

    def seconds(self) -> tuple[float, float]:
        """From 0 to 1, and from 1 to 2."""
        pairs = zip(self._events, self._events[1:], strict=False)
        first, second = (float(checked(runtime.cudaEventElapsedTime(*pair), "tell a time")) / 1000 for pair in pairs)
        return first, second

    def close(self) -> None:
        """Give the events back; idempotent."""
        events, self._events = self._events, []
        for event in events:
            checked(runtime.cudaEventDestroy(event), "free an event")
