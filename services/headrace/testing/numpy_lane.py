"""Lanes of the `cvcuda` engine without a GPU: what CV-CUDA is told to do is done by Pillow and numpy, plainly.

So all of the engine but CV-CUDA's own calls runs on any machine, and is held to the decode contract there. Device memory is
host memory at its address; nvImageCodec decodes on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from nvidia import nvimgcodec
from PIL import Image

from headrace.core.errors import GpuLost, GpuMemoryFull
from headrace.worker.engines.codec import Codec, Device
from headrace.worker.engines.cvcuda import CvcudaEngine, GpuFacts
from headrace.worker.engines.cvcuda_plan import FLIP_BOTH, FLIP_COLUMNS, FLIP_ROWS, GpuPlan, Target
from headrace.worker.engines.pixels import Pixels
from headrace.worker.engines.protocol import DeviceSlot

FACTS = GpuFacts("a GPU of numpy", "none", jpeg_engine=True, cvcuda="none")


class NumpyLanes:
    """Lanes for as many batches as `room`: one more finds no memory. failing: so many writes find none, either."""

    def __init__(self, room: int = 1000, jpeg_engine: bool = True, regions: bool = False, failing: int = 0) -> None:
        self.gpu = 0
        self.device = Device(None, jpeg_engine, regions)
        self.made = self.open = 0
        self.failing = failing
        self.garbles = self.lost = False
        self._room = room

    def use(self) -> None:
        """There is nothing to choose."""

    def probe(self) -> None:
        """Raises GpuLost where that is to be tried."""
        if self.lost:
            raise GpuLost("CUDA failed to wait for the GPU: cudaErrorIllegalAddress")

    def new(self, threads: int) -> NumpyLane:
        """A lane, if there is room. Raises GpuMemoryFull."""
        if self.open >= self._room:
            raise GpuMemoryFull("no room for another lane")
        self.made += 1
        self.open += 1
        return NumpyLane(self, Codec(self.device, threads))

    def forget(self) -> None:
        """Nothing is kept."""


class NumpyLane:
    """See cvcuda_port.Lane."""

    def __init__(self, lanes: NumpyLanes, codec: Codec) -> None:
        self.stream = 0
        self.codec = codec
        self._lanes = lanes
        self._scratch = bytearray()
        self._host = bytearray()

    def mark(self, place: int) -> None:
        """Moments are not told apart here."""

    def seconds(self) -> tuple[float, float]:
        """Anything above nothing."""
        return 1e-6, 1e-6

    def scratch(self, nbytes: int) -> int:
        """Address of memory that is this lane's."""
        self._scratch = bytearray(max(nbytes, 1))
        return address(self._scratch)

    def host(self, nbytes: int) -> memoryview:
        """Host memory."""
        self._host = bytearray(nbytes)
        return memoryview(self._host)

    def write(
        self,
        plan: GpuPlan,
        target: Target,
        images: Mapping[int, nvimgcodec.Image],
        made: Mapping[int, Pixels],
        pointer: int,
    ) -> None:
        """The plan, row by row; rows without pixels get something."""
        if self._lanes.lost:
            raise RuntimeError("a library's own words")
        if self._lanes.failing:
            self._lanes.failing -= 1
            raise GpuMemoryFull("no room for a batch")
        count = len(plan.flips)
        size = (int(plan.windows[0, 3]), int(plan.windows[0, 2]))
        out = np.frombuffer(_at(pointer, target.nbytes(size, count)), target.dtype).reshape(target.shape(size, count))
        for row in range(count):
            pixels = self._source(plan, row, images, made, size)
            if plan.scaled[row]:
                height, width = plan.sizes[row].tolist()
                pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
            x, y, width, height = plan.windows[row].tolist()
            pixels = pixels[y : y + height, x : x + width]
            if plan.flips[row] in (FLIP_ROWS, FLIP_BOTH):
                pixels = pixels[::-1]
            if plan.flips[row] in (FLIP_COLUMNS, FLIP_BOTH):
                pixels = pixels[:, ::-1]
            if self._lanes.garbles:
                pixels = 255 - pixels
            values = ((pixels.astype(np.float32) - target.base) * target.scale).astype(target.dtype)
            out[row] = values if target.layout == "NHWC" else values.transpose(2, 0, 1)

    def download(self, out: memoryview, pointer: int) -> None:
        """Copy from an address."""
        out[:] = _at(pointer, out.nbytes)

    def upload(self, pointer: int, data: memoryview) -> None:
        """Copy to an address."""
        _at(pointer, data.nbytes)[:] = data

    def sync(self) -> None:
        """All is done at once here."""

    def close(self) -> None:
        """End the decoders."""
        self.codec.close()
        self._lanes.open -= 1

    @staticmethod
    def _source(
        plan: GpuPlan, row: int, images: Mapping[int, nvimgcodec.Image], made: Mapping[int, Pixels], size: tuple[int, int]
    ) -> Pixels:
        if row in images:
            y, x, height, width = plan.cuts[row].tolist()
            cut: Pixels = np.asarray(images[row])[y : y + height, x : x + width]
            assert cut.shape == (height, width, 3), "a cut beyond the decoded image"
            return np.ascontiguousarray(cut)
        return made[row] if row in made else np.full((*size, 3), 77, np.uint8)


def address(memory: bytearray | memoryview) -> int:
    """Where writable memory begins."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


def device_slot(memory: bytearray) -> DeviceSlot:
    """Host memory as a slot on the GPU of numpy."""
    return DeviceSlot(address(memory), len(memory), gpu=0)


def engine(threads: int, lanes: NumpyLanes | None = None) -> CvcudaEngine:
    """The `cvcuda` engine on lanes of numpy."""
    return CvcudaEngine(threads, FACTS, lanes or NumpyLanes())


def _at(pointer: int, nbytes: int) -> memoryview:
    if not nbytes:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")
