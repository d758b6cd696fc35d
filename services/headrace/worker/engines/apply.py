"""The operations of a spec, applied to one decoded image with one row of the batch's parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from headrace.core.augment import (
    BatchParams,
    BlurParams,
    CropParams,
    CropResizeParams,
    EraseParams,
    FlipParams,
    GrayParams,
    JitterParams,
    OpParams,
    ResizeParams,
)
from headrace.core.pipeline_spec import Op, PipelineSpec, RandomErasing, VerticalFlip
from headrace.worker.engines import color_ops
from headrace.worker.engines.pixels import Pixels
from headrace.worker.engines.resample import crop

# Scales uint8[h, w, 3] to (height, width); where nothing changes it may give its input.
Resize: TypeAlias = Callable[[Pixels, int, int], Pixels]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a spec from the one at `first` on, with a way to resize. Any thread."""

    spec: PipelineSpec
    resize: Resize
    first: int = 0

    def __call__(self, pixels: Pixels, params: BatchParams, row: int) -> Pixels:
        """Apply them in order. Returns uint8 of spec.out_size by 3, of any strides, maybe read-only."""
        for op, drawn in zip(self.spec.ops[self.first :], params.ops[self.first :], strict=True):
            pixels = self._apply(pixels, op, drawn, row)
        return pixels

    def _apply(self, pixels: Pixels, op: Op, drawn: OpParams, row: int) -> Pixels:
        if isinstance(drawn, ResizeParams):
            return self.resize(pixels, int(drawn.height[row]), int(drawn.width[row]))
        if isinstance(drawn, CropParams):
            return crop(pixels, _box(drawn, row), self.spec.decode.background)
        if isinstance(drawn, CropResizeParams):
            cut = crop(pixels, _box(drawn, row), self.spec.decode.background)
            return self.resize(cut, drawn.out_height, drawn.out_width)
        return _recolor(pixels, op, drawn, row)


def _recolor(pixels: Pixels, op: Op, drawn: OpParams, row: int) -> Pixels:
    """An operation that leaves the size as it is."""
    match drawn:
        case FlipParams() if drawn.flip[row]:
            pixels = pixels[::-1] if isinstance(op, VerticalFlip) else pixels[:, ::-1]
        case JitterParams():
            factors = (float(drawn.brightness[row]), float(drawn.contrast[row]), float(drawn.saturation[row]))
            pixels = color_ops.jitter(pixels, factors, float(drawn.hue[row]), drawn.order[row].tolist())
        case GrayParams() if drawn.gray[row]:
            pixels = color_ops.grayscale(pixels)
        case BlurParams():
            pixels = color_ops.gaussian_blur(pixels, drawn.kernel, float(drawn.sigma[row]))
        case EraseParams():
            assert isinstance(op, RandomErasing)
            pixels = color_ops.erase(pixels, _box(drawn, row), op.value)
    return pixels


def _box(drawn: CropParams | CropResizeParams | EraseParams, row: int) -> tuple[int, int, int, int]:
    return int(drawn.y[row]), int(drawn.x[row]), int(drawn.height[row]), int(drawn.width[row])
