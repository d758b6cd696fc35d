"""The DALI stages of one job's spec: JPEGs to boxes of pixels, and boxes to the pixels of the fused operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError
from headrace.core.pipeline_spec import (
    CenterCrop,
    HorizontalFlip,
    Op,
    PipelineSpec,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from headrace.worker.engines.dali_stages import Feed, Images, Stage, StageFailed, Work, decode_graph, pairs
from headrace.worker.engines.geometry import Geometry
from headrace.worker.engines.pixels import Pixels

AnyImages: TypeAlias = Images | list[Pixels]

# Columns of Geometry.numbers.
_BOX, _SIZE, _WINDOW_AT, _MIRROR, _FLIP = slice(0, 4), slice(4, 6), slice(6, 8), 8, 9


class Line:
    """Makes one batch at a time of a spec whose first `fused` operations are DALI's. One thread at a time.

    threads: of each stage. gpu: None: all on the CPU, without a driver.
    """

    def __init__(self, spec: PipelineSpec, fused: int, threads: int, gpu: int | None) -> None:
        self._ops = spec.ops[:fused]
        self._output = spec.output
        self._threads = threads
        self._gpu = gpu
        self._decode = Stage(lambda: decode_graph(gpu), threads, gpu)
        # The same library without the GPU, for one image at a time: its word on what fails on the GPU.
        self._second = Stage(lambda: decode_graph(None), 1, None)
        self._stages: dict[Work, Stage] = {}

    def boxes(self, geometry: Geometry, rows: Sequence[int]) -> NDArray[np.int64]:
        """int64[B, 4]: y, x, height, width of what is decoded of these rows. Where nothing is scaled that is the window."""
        numbers = geometry.numbers[list(rows)]
        if self._has(Resize, RandomResizedCrop):
            return numbers[:, _BOX]
        size = np.broadcast_to(np.array(geometry.size, np.int64), (len(numbers), 2))
        return np.concatenate([numbers[:, _BOX][:, :2] + numbers[:, _WINDOW_AT], size], axis=1)

    def decode(self, jpegs: Sequence[bytes], boxes: NDArray[np.int64]) -> Images:
        """The boxes of the upright images, uint8 HWC, on the GPU if there is one. Raises StageFailed, if for one alone."""
        return _decoded(self._decode, jpegs, boxes)

    def refuses(self, jpeg: bytes, box: NDArray[np.int64]) -> bool:
        """Whether the library refuses an image on the CPU, too: what it says there lies in the image's bytes alone."""
        if self._gpu is None:
            return True
        try:
            _decoded(self._second, [jpeg], box)
        except StageFailed:
            return True
        return False

    def fault(self) -> str:
        """Why not even a sound image can be decoded, so that no sample is to blame; empty where it can."""
        try:
            self.decode([_sound_jpeg()], np.array([[0, 0, 8, 8]], np.int64))
        except StageFailed as failed:
            return str(failed)
        return ""

    def transform(self, images: AnyImages, geometry: Geometry, rows: Sequence[int], formatted: bool) -> AnyImages:
        """The fused operations on the rows' boxes, in host memory (list) or where `decode` put them.

        formatted: in the output's dtype and layout, else uint8 HWC. Gives its very input where nothing is to be done. Raises
        GpuMemoryFull, MemoryError and HeadraceError: whatever fails here is no sample's fault.
        """
        numbers = geometry.numbers[list(rows)]
        resized = self._has(Resize, RandomResizedCrop)
        work = Work(
            resized=resized,
            windowed=resized and self._has(CenterCrop, RandomCrop),
            mirrored=self._has(HorizontalFlip, VerticalFlip),
            gpu=self._gpu,
            source="cpu" if isinstance(images, list) or self._gpu is None else "gpu",
            output=self._output if formatted else None,
        )
        feeds: dict[str, Feed] = {}
        if work.resized:
            feeds["size"] = pairs(numbers[:, _SIZE])
        if work.windowed:
            feeds["window_at"] = pairs(numbers[:, _WINDOW_AT])
            feeds["window_size"] = pairs(np.broadcast_to(np.array(geometry.size, np.int64), (len(rows), 2)))
        if work.mirrored:
            feeds["mirror"], feeds["flip"] = (np.ascontiguousarray(numbers[:, at], np.int32) for at in (_MIRROR, _FLIP))
        return self._through(work, images, feeds)

    def format(self, finished: list[Pixels]) -> AnyImages:
        """Finished pixels, uint8 HWC of the output's size, in its dtype and layout, on the GPU if there is one."""
        work = Work(resized=False, windowed=False, mirrored=False, gpu=self._gpu, output=self._output)
        return self._through(work, finished, {})

    def close(self) -> None:
        """Free memory and threads; idempotent."""
        for stage in (self._decode, self._second, *self._stages.values()):
            stage.close()

    def _through(self, work: Work, images: AnyImages, feeds: Mapping[str, Feed]) -> AnyImages:
        if work.nothing:
            return images
        stage = self._stages.get(work)
        if stage is None:
            # On a GPU nothing of it is the CPU's.
            stage = self._stages[work] = Stage(work.graph, self._threads if self._gpu is None else 1, self._gpu)
        try:
            return stage.run(len(images), {"images": images, **feeds})
        except StageFailed as failed:
            raise HeadraceError(f"DALI could not scale a batch: restart the worker. It says: {failed}") from failed

    def _has(self, *kinds: type[Op]) -> bool:
        return any(isinstance(op, kinds) for op in self._ops)


def _decoded(stage: Stage, jpegs: Sequence[bytes], boxes: NDArray[np.int64]) -> Images:
    data = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
    return stage.run(len(data), {"data": data, "box_at": pairs(boxes[:, :2]), "box_size": pairs(boxes[:, 2:])})


@cache
def _sound_jpeg() -> bytes:
    """8 by 8 pixels."""
    jpeg: bytes = simplejpeg.encode_jpeg(np.full((8, 8, 3), 128, np.uint8))
    return jpeg
