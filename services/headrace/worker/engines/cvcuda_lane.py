"""The calls of CV-CUDA: lanes on a real GPU (cvcuda_port.Lane). Of the engine this file alone needs one to be imported.

All that these calls are told is worked out before, in cvcuda_plan.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import cvcuda
import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec

from headrace.core.errors import EngineUnsupported, GpuLost, GpuMemoryFull
from headrace.core.gpu_faults import loses_gpu
from headrace.worker.engines import cuda_runtime, region_probe
from headrace.worker.engines.codec import Codec, Device
from headrace.worker.engines.cuda_runtime import DeviceBuffer, PinnedBuffer, Timer
from headrace.worker.engines.cvcuda import CvcudaEngine, first_gpu
from headrace.worker.engines.cvcuda_plan import ALIGN, GpuPlan, Target
from headrace.worker.engines.pixels import Pixels

# CV-CUDA keeps what it allocated for calls to come; as shapes vary it would keep ever more.
CACHE_BYTES = 256 << 20
# Set to 1 it has images decoded no further than their cuts. Not by default: nvImageCodec 0.9 is reported to crash at it.
REGIONS = "HEADRACE_CVCUDA_REGIONS"


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array on the GPU, as CV-CUDA takes it. strides: in bytes; None: C-contiguous. stream: whose order its bytes follow."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    stream: int
    strides: tuple[int, ...] | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "data": (self.pointer, False),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": np.dtype(self.dtype).str,
            "stream": self.stream,
        }


def engine_on_first_gpu(threads: int) -> CvcudaEngine:
    """The engine on the first GPU that this process may use, tried out. Raises EngineUnsupported (id: engine)."""
    facts = first_gpu()
    device = Device(0, facts.jpeg_engine)
    if os.environ.get(REGIONS) == "1":
        why_not = region_probe.why_not(device)
        if why_not:
            raise EngineUnsupported(f"{REGIONS} is set, and this GPU fails its test: {why_not}; unset it", engine="cvcuda")
        device = replace(device, regions=True)
    engine = CvcudaEngine(threads, facts, GpuLanes(0, device))
    engine.try_out()
    return engine


class GpuLanes:
    """Lanes of a GPU of this process."""

    def __init__(self, gpu: int, device: Device) -> None:
        self.gpu = gpu
        self.device = device

    def use(self) -> None:
        """Make the GPU the calling thread's."""
        cuda_runtime.use(self.gpu)

    def probe(self) -> None:
        """See cvcuda_port.Lanes."""
        cuda_runtime.probe()

    def new(self, threads: int) -> GpuLane:
        """A lane; what CV-CUDA keeps on this GPU is bounded. Raises GpuMemoryFull."""
        try:
            cvcuda.set_cache_limit_inbytes(CACHE_BYTES)
            return GpuLane(self.device, threads)
        except (RuntimeError, MemoryError) as error:
            raise as_headrace(error) from error

    def forget(self) -> None:
        """Empty CV-CUDA's cache."""
        cvcuda.clear_cache()


class GpuLane:
    """See cvcuda_port.Lane. Each call in a thread that uses the GPU."""

    def __init__(self, device: Device, threads: int) -> None:
        self._stream = cvcuda.Stream()
        self.stream = self._stream.handle
        self.codec = Codec(device, threads, cuda_runtime.look_at_memory)
        self._timer = Timer()
        self._numbers = PinnedBuffer()
        self._made = PinnedBuffer()
        self._finished = PinnedBuffer()
        self._on_device = [DeviceBuffer() for _ in range(4)]

    def close(self) -> None:
        """Give back all that it holds on the GPU."""
        self.sync()
        self.codec.close()
        self._timer.close()
        for pinned in (self._numbers, self._made, self._finished):
            pinned.free()
        for buffer in self._on_device:
            buffer.free()

    def sync(self) -> None:
        """Wait for all that was asked."""
        self._stream.sync()

    def mark(self, place: int) -> None:
        """Note moment 0, 1 or 2 in the stream's order."""
        self._timer.mark(place, self.stream)

    def seconds(self) -> tuple[float, float]:
        """Of the stream, between the moments."""
        return self._timer.seconds()

    def scratch(self, nbytes: int) -> int:
        """Device memory for a batch that goes to the host."""
        return self._on_device[3].at_least(nbytes)

    def host(self, nbytes: int) -> memoryview:
        """Pinned host memory for a batch on its way."""
        return self._finished.at_least(nbytes)

    def download(self, out: memoryview, pointer: int) -> None:
        """Copy to the host, in the stream's order."""
        cuda_runtime.download(_address(out), pointer, out.nbytes, self.stream)

    def upload(self, pointer: int, data: memoryview) -> None:
        """Copy to the device, in the stream's order."""
        cuda_runtime.upload(pointer, _address(data), data.nbytes, self.stream)

    def write(
        self,
        plan: GpuPlan,
        target: Target,
        images: Mapping[int, nvimgcodec.Image],
        made: Mapping[int, Pixels],
        pointer: int,
    ) -> None:
        """See cvcuda_port.Lane."""
        try:
            sources = self._sources(plan, images, made)
            scaled = plan.scaled_rows
            if scaled:
                offsets, nbytes = plan.places_of_scaled()
                first = self._on_device[1].at_least(nbytes)
                resized = {row: self._image(first + offset, plan.sizes[row]) for row, offset in offsets.items()}
                # Pillow's filter, as the contract has it; hq_resize repeats an image's outermost pixels, as DALI's resize does.
                cvcuda.pillowresize_into(
                    cvcuda.as_images([resized[row] for row in scaled], cvcuda.Format.RGB8),
                    cvcuda.as_images([sources[row] for row in scaled], cvcuda.Format.RGB8),
                    cvcuda.Interp.LINEAR,
                    stream=self._stream,
                )
                sources |= resized
            self._finish(plan, target, [sources[row] for row in range(len(plan.flips))], pointer)
        except (RuntimeError, MemoryError) as error:
            raise as_headrace(error) from error

    def _finish(self, plan: GpuPlan, target: Target, sources: Sequence[DeviceArray], pointer: int) -> None:
        """The second call: window, flips, normalisation, cast and layout."""
        count = len(sources)
        size = (int(plan.windows[0, 3]), int(plan.windows[0, 2]))
        windows, flips, base, scale = self._upload_numbers([plan.windows, plan.flips, target.base, target.scale])
        out = DeviceArray(pointer, target.shape(size, count), target.dtype, self.stream)
        cvcuda.crop_flip_normalize_reformat_into(
            _tensor(out, target.layout),
            cvcuda.as_images(list(sources), cvcuda.Format.RGB8),
            _tensor(DeviceArray(windows, (count, 1, 1, 4), "int32", self.stream), "NHWC"),
            _tensor(DeviceArray(flips, (count, 1), "int32", self.stream), "NC"),
            _tensor(DeviceArray(base, (1, 1, 1, 3), "float32", self.stream), "NHWC"),
            _tensor(DeviceArray(scale, (1, 1, 1, 3), "float32", self.stream), "NHWC"),
            stream=self._stream,
        )

    def _sources(
        self, plan: GpuPlan, images: Mapping[int, nvimgcodec.Image], made: Mapping[int, Pixels]
    ) -> dict[int, DeviceArray]:
        """Each row's pixels on the GPU: the cut of its decoded image, or what the host made, or anything of the right size."""
        height, width = (int(side) for side in plan.windows[0, :1:-1])
        each = -(-3 * height * width // ALIGN) * ALIGN
        staged = self._made.at_least(each * len(made))
        first = self._on_device[0].at_least(each * (len(made) + 1))
        sources = {row: _cut(image, plan.cuts[row], self.stream) for row, image in images.items()}
        for place, (row, pixels) in enumerate(made.items()):
            np.frombuffer(staged, np.uint8, pixels.size, place * each).reshape(pixels.shape)[...] = pixels
            sources[row] = self._image(first + place * each, plan.sizes[row])
        cuda_runtime.upload(first, self._made.pointer, each * len(made), self.stream)
        nothing = self._image(first + len(made) * each, (height, width))
        return {row: sources.get(row, nothing) for row in range(len(plan.flips))}

    def _image(self, pointer: int, size: Sequence[int] | NDArray[np.int64]) -> DeviceArray:
        return DeviceArray(pointer, (int(size[0]), int(size[1]), 3), "uint8", self.stream)

    def _upload_numbers(self, arrays: Sequence[NDArray[Any]]) -> list[int]:
        """Copy small arrays to the GPU in one piece; returns their addresses."""
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // ALIGN) * ALIGN
        staged = np.frombuffer(self._numbers.at_least(end), np.uint8)
        first = self._on_device[2].at_least(end)
        for start, array in zip(starts, arrays, strict=True):
            staged[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        cuda_runtime.upload(first, self._numbers.pointer, end, self.stream)
        return [first + start for start in starts]


def _address(view: memoryview) -> int:
    """Of writable, contiguous memory."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) if view.nbytes else 0


def _tensor(array: DeviceArray, layout: str) -> cvcuda.Tensor:
    # The stubs name the class that the library makes of whatever has __cuda_array_interface__.
    return cvcuda.as_tensor(cast("cvcuda.ExternalBuffer", array), layout)


def _cut(image: nvimgcodec.Image, cut: NDArray[np.int64], stream: int) -> DeviceArray:
    """A view of a decoded image: no copy."""
    y, x, height, width = cut.tolist()
    interface = image.__cuda_array_interface__
    pitch, step = (interface["strides"] or (3 * image.width, 3))[:2]
    pointer = interface["data"][0] + y * pitch + x * step
    return DeviceArray(pointer, (height, width, 3), "uint8", stream, (pitch, step, 1))


def as_headrace(error: Exception) -> Exception:
    """GpuMemoryFull or GpuLost if that is what a library's error, of no class of its own, says; else the error itself."""
    if loses_gpu(str(error)):
        return GpuLost(f"CV-CUDA failed: {error}: this process can use its GPU no more", reason=str(error))
    text = str(error).lower().replace("_", " ")
    if isinstance(error, MemoryError) or "out of memory" in text or "memory allocation" in text:
        return GpuMemoryFull(
            f"no GPU memory for a batch: {error}; give the worker a GPU of its own, or the job a smaller batch"
        )
    return error
