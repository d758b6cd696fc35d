"""Calls of the CUDA driver by cuda-bindings: results checked, the GPU's context current, copies waited for by the host.

Nothing here was ever run on a GPU (docs/gpu.md). Without a driver the first call ends as TransportUnavailable.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import numpy as np
from cuda.bindings import driver

from headrace.core.errors import GpuLost, TransportUnavailable
from headrace.core.gpu_faults import loses_gpu
from headrace.wire.device_memory import HostBuffer

P = ParamSpec("P")
_OK = driver.CUresult.CUDA_SUCCESS
# What people meet most, and what to do about it.
_ADVICE = {
    "CUDA_ERROR_NO_DEVICE": "this process sees no GPU: give its container one (NVIDIA_VISIBLE_DEVICES, nvidia.com/gpu)",
    "CUDA_ERROR_INVALID_DEVICE": "this process sees fewer GPUs: name one that is there (CUDA_VISIBLE_DEVICES counts from 0)",
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has no memory left for it: smaller batches, a smaller window, or fewer tenants",
    "CUDA_ERROR_NOT_SUPPORTED": "this GPU or its driver cannot do that: MIG, vGPU and some containers share no memory",
    "CUDA_ERROR_NOT_PERMITTED": "the container may not do that; see docs/dataplane.md on sharing a GPU",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver's kernel module and library differ: restart the node",
    "CUDA_ERROR_SYSTEM_NOT_READY": "the fabric manager or the driver is not up yet on this node",
}


def call(function: Callable[P, tuple[Any, ...]], *arguments: P.args, **named: P.kwargs) -> Any:
    """Call a driver function; returns what it gives beside its result, if anything. Raises TransportUnavailable."""
    try:
        code, *values = function(*arguments, **named)
    except RuntimeError as error:  # DynamicLibNotFoundError, or a driver that lacks the function
        raise TransportUnavailable(_no_driver(function.__name__, error), reason="no driver") from error
    check(function.__name__, code)
    return values[0] if values else None


def check(name: str, code: Any) -> None:
    """Raise TransportUnavailable unless a driver function's result is CUDA_SUCCESS; GpuLost where all that follows fails."""
    if code != _OK:
        text = getattr(code, "name", str(code))
        if loses_gpu(text):
            raise GpuLost(f"{name}: {text}: this process can use its GPU no more; restart it", reason=text)
        raise TransportUnavailable(f"{name}: {text}" + (f" ({_ADVICE[text]})" if text in _ADVICE else ""), reason=text)


def _no_driver(name: str, error: RuntimeError) -> str:
    if "not found" in str(error).lower() and name in str(error):
        return f"this machine's NVIDIA driver is too old: it has no {name}; install driver 525 or later"
    return "no NVIDIA driver is here: this process sees no GPU (install the driver; in a container, ask for a GPU)"


class Context:
    """The primary context of one GPU, the one that torch, jax and the CUDA runtime use, too. Any thread."""

    def __init__(self, ordinal: int) -> None:
        call(driver.cuInit, 0)
        self.ordinal = ordinal
        self.device = call(driver.cuDeviceGet, ordinal)
        self._lock = threading.Lock()
        self._context: Any = None
        self._stream: Any = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it this thread's, and give back the one that was: a trainer's thread has its own."""
        with self._lock:
            if self._context is None:
                self._context = call(driver.cuDevicePrimaryCtxRetain, self.device)
        call(driver.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            call(driver.cuCtxPopCurrent)

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        """Host to device, waited for."""
        with self.current():
            stream = self._copies()
            call(driver.cuMemcpyHtoDAsync, pointer, _address(data), len(data), stream)
            call(driver.cuStreamSynchronize, stream)

    def read(self, pointer: int, out: memoryview) -> None:
        """Device to host, waited for."""
        with self.current():
            stream = self._copies()
            call(driver.cuMemcpyDtoHAsync, _address(out), pointer, out.nbytes, stream)
            call(driver.cuStreamSynchronize, stream)

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """Pinned host memory, usable from every context."""
        with self.current():
            address = int(call(driver.cuMemHostAlloc, nbytes, driver.CU_MEMHOSTALLOC_PORTABLE))
        return HostBuffer(_view(address, nbytes), lambda: self._free_host(address))

    def _free_host(self, address: int) -> None:
        with self.current():
            call(driver.cuMemFreeHost, address)

    def pin(self, address: int, nbytes: int) -> None:
        """Let the GPU read host memory that is mapped read-only here, without this thread's waiting for it."""
        if not self.attribute("READ_ONLY_HOST_REGISTER_SUPPORTED"):
            raise TransportUnavailable("this GPU's driver pins no memory that is mapped read-only", reason="old driver")
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_READ_ONLY
        with self.current():
            call(driver.cuMemHostRegister, address, nbytes, flags)

    def unpin(self, address: int) -> None:
        """Before the memory is unmapped."""
        with self.current():
            call(driver.cuMemHostUnregister, address)

    def _copies(self) -> Any:
        """A stream of its own: the default one would wait for the trainer's kernels. Within `current`."""
        with self._lock:
            if self._stream is None:
                self._stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
            return self._stream

    def name(self) -> str:
        """For people; that of a MIG instance has `MIG` in it."""
        return bytes(call(driver.cuDeviceGetName, 256, self.device)).split(b"\0")[0].decode(errors="replace")

    def uuid(self) -> bytes:
        """16 bytes, those of the instance where it is one of MIG."""
        # The older one does not tell MIG instances apart; from CUDA 13 on it does, and is the only one.
        newest = driver.cuDeviceGetUuid_v2 if hasattr(driver, "cuDeviceGetUuid_v2") else driver.cuDeviceGetUuid
        return bytes(call(newest, self.device).bytes)

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name, 0 where driver or bindings do not know it."""
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if attribute is None:
            return 0
        try:
            return int(call(driver.cuDeviceGetAttribute, attribute, self.device))
        except TransportUnavailable:
            return 0

    def close(self) -> None:
        """Let go of the primary context; idempotent."""
        with self._lock:
            context, self._context = self._context, None
            stream, self._stream = self._stream, None
        if context is not None:
            if stream is not None:
                call(driver.cuCtxPushCurrent, context)
                call(driver.cuStreamDestroy, stream)
                call(driver.cuCtxPopCurrent)
            call(driver.cuDevicePrimaryCtxRelease, self.device)


class OnGpu:
    """What all kinds of device memory share: their GPU, and copies by its context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.gpu = context.ordinal
        self.dlpack_device = (2, context.ordinal)

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        """See DeviceMemory."""
        self._context.write(pointer, data)

    def read(self, pointer: int, out: memoryview) -> None:
        """See DeviceMemory."""
        self._context.read(pointer, out)

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """See DeviceMemory."""
        return self._context.host_buffer(nbytes)

    def close(self) -> None:
        """See DeviceMemory."""
        self._context.close()


def _address(data: bytes | memoryview) -> int:
    """Also of what is read-only, which ctypes refuses. `data` must be kept until the copy is waited for."""
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def _view(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")
