"""The DALI pipelines of the `dali` engines: decode, and the fused geometry, each fed with our bytes and our numbers.

They are apart because a decode may fail and a resize may not: of a batch that fails only the decode is tried again. What comes
out of the first is given to the second where it lies, without a copy. No number is drawn by DALI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorListCPU, TensorListGPU
from nvidia.dali.types import DALIDataType, DALIImageType, DALIInterpType

from headrace.core.errors import GpuLost, GpuMemoryFull
from headrace.core.gpu_faults import loses_gpu
from headrace.core.pipeline_spec import Output
from headrace.worker.engines.output import tables
from headrace.worker.engines.pixels import Pixels

Images: TypeAlias = TensorListCPU | TensorListGPU
Feed: TypeAlias = Images | Sequence[NDArray[Any]] | NDArray[Any]
# A pipeline is made for so many rows at first: substitutes come one by one, whole batches soon after.
LEAST_ROOM = 8
# How DALI says that there is no memory, on the CPU and on a GPU.
_NO_MEMORY = ("bad_alloc", "out of memory", "memory allocation", "memoryallocation", "cannot allocate")


class StageFailed(Exception):
    """DALI failed on a batch; its text is DALI's. Internal to the engine: the stage is usable again."""


class Stage:
    """One DALI pipeline of any number of rows: built when it is first run, and again for more rows or after a failure.

    One thread at a time. What `run` gave is overwritten by the next `run`.
    """

    def __init__(self, graph: Callable[[], DataNode], threads: int, gpu: int | None) -> None:
        self._graph = graph
        self._threads = threads
        self._gpu = gpu
        self._room = LEAST_ROOM
        self._pipeline: Pipeline | None = None

    def run(self, count: int, inputs: Mapping[str, Feed]) -> Images:
        """Run a batch of `count` rows, at least 1, to its end. Raises StageFailed, GpuLost, GpuMemoryFull, MemoryError."""
        try:
            if self._pipeline is None or count > self._room:
                self._room = max(self._room, 1 << (count - 1).bit_length())
                self._pipeline = self._build()
            for name, feed in inputs.items():
                self._pipeline.feed_input(name, feed)
            (out,) = self._pipeline.run()
        except (RuntimeError, MemoryError) as error:
            self._pipeline = None  # DALI: no longer valid
            raise self._failure(error) from error
        return out

    def close(self) -> None:
        """Free its memory and threads; idempotent."""
        self._pipeline = None

    def _failure(self, error: RuntimeError | MemoryError) -> Exception:
        said = str(error)
        if self._gpu is not None and loses_gpu(said):
            return GpuLost(f"DALI failed: {_essence(said)}: this process can use its GPU no more", reason=_essence(said))
        if not isinstance(error, MemoryError) and not any(words in said.lower() for words in _NO_MEMORY):
            return StageFailed(_essence(said))
        if self._gpu is None:
            return MemoryError(said)
        return GpuMemoryFull(f"GPU {self._gpu} has no memory for a batch: {_essence(said)}")

    def _build(self) -> Pipeline:
        # A queue of one and no pipelining: what was fed is what comes out.
        pipeline = Pipeline(
            batch_size=self._room,
            num_threads=self._threads,
            device_id=self._gpu,
            exec_async=False,
            exec_pipelined=False,
            prefetch_queue_depth=1,
        )
        with pipeline:
            pipeline.set_outputs(self._graph())
        pipeline.build()
        return pipeline


def decode_graph(gpu: int | None) -> DataNode:
    """JPEGs `data` to the boxes `box_at`, `box_size` of them; boxes: float32 (y, x), (height, width) of the upright image.

    Output: uint8 HWC, RGB, on the GPU if there is one.
    """
    data, at, size = _source("data"), _source("box_at"), _source("box_size")
    if gpu is None:
        return fn.decoders.image_slice(
            data,
            at,
            size,
            axis_names="HW",
            normalized_anchor=False,
            normalized_shape=False,
            device="cpu",
            output_type=DALIImageType.RGB,
            jpeg_fancy_upsampling=True,
            use_fast_idct=False,
        )
    # Whole images: the decode of a region on a GPU has known faults. All that the JPEG engine can take goes there, whatever
    # else is in the batch: by a share of the batch an image's decoder would depend on its neighbours.
    whole = fn.decoders.image(
        data,
        device="mixed",
        output_type=DALIImageType.RGB,
        jpeg_fancy_upsampling=True,
        use_fast_idct=False,
        hw_decoder_load=1.0,
        affine=False,
    )
    return _cut(whole, at, size)


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage does with its `images`, uint8 HWC.

    resized: scale to `size`, float32 (height, width). windowed: then cut `window_at` (y, x) and `window_size`. Then mirror by
    `mirror` and `flip`, int32. source: where the images lie; gpu: where the work is done. output: None: uint8 HWC; else in
    that dtype (float16 and bfloat16 as their bits, uint16) and layout, as output.Writer makes it.
    """

    resized: bool
    windowed: bool
    mirrored: bool
    gpu: int | None = None
    source: str = "cpu"
    output: Output | None = None

    @property
    def nothing(self) -> bool:
        """Whether images come out as they went in."""
        on_gpu = self.gpu is not None and self.source == "cpu"
        return not (self.resized or self.windowed or self.mirrored or self.output or on_gpu)

    def graph(self) -> DataNode:
        """The pipeline's only output."""
        images: DataNode = fn.external_source(name="images", device=self.source, layout="HWC", no_copy=True)
        if self.gpu is not None and self.source == "cpu":
            images = images.gpu()
        if self.resized:
            resized = fn.resize(images, size=_source("size"), interp_type=DALIInterpType.INTERP_LINEAR, antialias=True)
            assert isinstance(resized, DataNode)
            images = resized
        if self.windowed:
            images = _cut(images, _source("window_at"), _source("window_size"))
        if self.mirrored:
            images = fn.flip(images, horizontal=_source("mirror"), vertical=_source("flip"))
        return in_format(images, self.output) if self.output else images


def in_format(images: DataNode, output: Output) -> DataNode:
    """uint8 HWC in the output's dtype and layout: by the same tables as on the CPU, so of the same bits."""
    found = tables(output)
    if found is not None:
        dtype = DALIDataType.FLOAT if output.dtype == "float32" else DALIDataType.UINT16
        bits = [table if output.dtype == "float32" else table.view(np.uint16) for table in found]
        planes = [
            fn.lookup_table(
                fn.slice(images, channel, 1, axes=[2], normalized_anchor=False, normalized_shape=False),
                keys=list(range(256)),
                values=[float(value) for value in bits[channel]],
                dtype=dtype,
            )
            for channel in range(3)
        ]
        images = fn.cat(*planes, axis=2)
    return fn.transpose(images, perm=[2, 0, 1]) if output.layout == "NCHW" else images


def pairs(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Pairs of pixels as DALI takes them: exact up to 16 million."""
    return np.ascontiguousarray(numbers, np.float32)


def host_images(images: Images | list[Pixels]) -> list[Pixels]:
    """Each row in host memory: views where they lie there, valid until the stage runs again."""
    if isinstance(images, list):
        return images
    there = images if isinstance(images, TensorListCPU) else images.as_cpu()
    if there.is_dense_tensor():
        return list(np.asarray(there.as_tensor()))
    return [np.asarray(there[row]) for row in range(len(there))]


def copy_to_gpu(images: Images | list[Pixels], pointer: int, row_bytes: int, places: Sequence[int]) -> None:
    """Copy rows that lie on a GPU to their places in a slot there, at `pointer`; returns once they are there."""
    assert isinstance(images, TensorListGPU)
    first = places[0]
    if list(places) == list(range(first, first + len(places))) and images.is_dense_tensor():
        images.as_tensor().copy_to_external(ctypes.c_void_p(pointer + first * row_bytes))
        return
    for row, place in enumerate(places):
        images.at(row).copy_to_external(ctypes.c_void_p(pointer + place * row_bytes))


def _essence(said: str) -> str:
    """What DALI says, in one line, without where in which pipeline."""
    _, _, fault = said.rpartition("encountered:")
    return " ".join(fault.partition("C++ context:")[0].partition("Current pipeline object")[0].split())[:300] or "nothing"


def _source(name: str) -> DataNode:
    return fn.external_source(name=name, device="cpu", no_copy=True)


def _cut(images: DataNode, at: DataNode, size: DataNode) -> DataNode:
    return fn.slice(images, at, size, axis_names="HW", normalized_anchor=False, normalized_shape=False)
