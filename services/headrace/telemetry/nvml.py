"""What the NVIDIA driver tells of its GPUs (NVML), by nvidia-ml-py. Needs no CUDA, takes no memory of the GPU, any thread.

What a GPU or a container's rights do not let one ask is None; all else that fails raises NvmlFailed.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from headrace.core.placement import Gpu

_LIBRARY = "libnvidia-ml.so.1"
_NO_DRIVER = (
    f"there is no NVIDIA driver ({_LIBRARY} is not found): on a node with a GPU install the driver; in a container ask for a "
    f"GPU (nvidia.com/gpu), with the capability `utility`"
)
# Bits of NVML's event reasons that mean a GPU runs slower than it could; idle clocks and chosen ones don't.
_THROTTLING = {
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}
THROTTLE_REASONS = tuple(_THROTTLING)


class NvmlMissing(Exception):
    """There is no NVML to ask; its text says why and what to do. For callers inside Headrace, all of which can do without."""


class NvmlFailed(Exception):
    """NVML fails to answer, as of a GPU that fell off the bus. As NvmlMissing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One GPU at a moment; ratios from 0 to 1 over NVML's own last sampling period. None: not to be had of this GPU.

    throttled: those of THROTTLE_REASONS that hold now.
    """

    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    jpeg_utilization: float | None = None
    decoder_utilization: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    throttled: frozenset[str] | None = None


class Nvml:
    """NVML, opened. Raises NvmlMissing. driver: its version; cuda: newest version that it runs."""

    def __init__(self) -> None:
        try:
            ctypes.CDLL(_LIBRARY)  # most machines have none, and need not load nvidia-ml-py to be told so
        except OSError as error:
            raise NvmlMissing(_NO_DRIVER) from error
        try:
            import pynvml
        except ImportError as error:
            raise NvmlMissing("nvidia-ml-py is not installed: pip install 'headrace[gpu]'") from error
        self._nvml: Any = pynvml
        self._lock = threading.Lock()
        self._handles: dict[str, Any] = {}
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlMissing(_why_missing(pynvml, error)) from error
        with self._failing():
            self.driver: str = pynvml.nvmlSystemGetDriverVersion()
        version = self._ask("nvmlSystemGetCudaDriverVersion_v2") or 0
        self.cuda = (version // 1000, version % 1000 // 10)

    def gpus(self) -> tuple[Gpu, ...]:
        """All that this process may ask of, MIG slices in place of the GPUs that they are cut from. Raises NvmlFailed."""
        with self._lock, self._failing():
            count = self._nvml.nvmlDeviceGetCount()
            return tuple(gpu for index in range(count) for gpu in self._whole_or_slices(index))

    def figures(self, gpu: Gpu) -> Figures:
        """How it does now; `gpu`: one that `gpus` gave. Raises NvmlFailed."""
        handle = self._handles[gpu.uuid]
        with self._lock, self._failing():
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            used = self._ask("nvmlDeviceGetUtilizationRates", handle)
            power = self._ask("nvmlDeviceGetPowerUsage", handle)
            bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
            return Figures(
                utilization=None if used is None else used.gpu / 100,
                memory_used_bytes=None if memory is None else int(memory.used),
                memory_total_bytes=None if memory is None else int(memory.total),
                jpeg_utilization=self._share("nvmlDeviceGetJpgUtilization", handle),
                decoder_utilization=self._share("nvmlDeviceGetDecoderUtilization", handle),
                power_watts=None if power is None else power / 1000,
                temperature_celsius=self._ask("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU),
                throttled=None if bits is None else frozenset(name for name, bit in _THROTTLING.items() if bits & bit),
            )

    def close(self) -> None:
        """Let go of it; idempotent."""
        with self._lock, contextlib.suppress(self._nvml.NVMLError):  # a second time, or a driver that has gone
            self._nvml.nvmlShutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole_or_slices(self, index: int) -> Iterator[Gpu]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            yield self._gpu(index, handle, handle, mig=False)
            return
        for number in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            piece = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if piece is not None:
                yield self._gpu(index, piece, handle, mig=True)

    def _gpu(self, index: int, handle: Any, whole: Any, *, mig: bool) -> Gpu:
        uuid = self._nvml.nvmlDeviceGetUUID(handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        self._handles[uuid] = handle
        return Gpu(
            index=index,
            uuid=uuid,
            name=self._nvml.nvmlDeviceGetName(handle),
            total_bytes=int(memory.total) if memory else 0,
            free_bytes=int(memory.free) if memory else 0,
            # Of a slice NVML tells nothing: whether it was given a decoder shows when it decodes.
            jpeg=None if mig else self._ask("nvmlDeviceGetJpgUtilization", handle) is not None,
            capability=tuple(self._ask("nvmlDeviceGetCudaComputeCapability", whole) or (0, 0)),
            mig=mig,
        )

    def _share(self, function: str, handle: Any) -> float | None:
        answer = self._ask(function, handle)
        return None if answer is None else answer[0] / 100

    def _ask(self, function: str, *args: Any) -> Any:
        """What NVML answers; None where this GPU, this driver or this container's rights have no answer."""
        nvml = self._nvml
        try:
            return getattr(nvml, function)(*args)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NotFound,
            nvml.NVMLError_InvalidArgument,
        ):
            return None

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise NvmlFailed(f"NVML does not answer: {error}") from error


def _why_missing(nvml: Any, error: Exception) -> str:
    if isinstance(error, nvml.NVMLError_LibraryNotFound):
        return _NO_DRIVER
    if isinstance(error, nvml.NVMLError_DriverNotLoaded):
        return "the NVIDIA driver is installed and not loaded: `nvidia-smi` on the node says why"
    if isinstance(error, nvml.NVMLError_NoPermission):
        return "this user may not ask the NVIDIA driver: look at the rights of /dev/nvidiactl"
    return f"the NVIDIA driver does not answer ({error}): compare the library's version with the loaded driver's (nvidia-smi)"
