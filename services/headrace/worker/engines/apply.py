"""The operations of a spec, applied to one decoded image with one row of the batch's parameters."""

from __future__ import annotations

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
from headrace.worker.engines.resample import crop, resize


def apply_ops(pixels: Pixels, spec: PipelineSpec, params: BatchParams, row: int) -> Pixels:
    """All operations in order. Returns uint8 of spec.out_size by 3, of any strides, maybe read-only."""
    for op, drawn in zip(spec.ops, params.ops, strict=True):
        pixels = _apply(pixels, op, drawn, row, spec.decode.background)
    return pixels


def _apply(pixels: Pixels, op: Op, drawn: OpParams, row: int, background: tuple[int, int, int]) -> Pixels:
    match drawn:
        case ResizeParams():
            pixels = resize(pixels, int(drawn.height[row]), int(drawn.width[row]))
        case CropParams():
            pixels = crop(pixels, _box(drawn, row), background)
        case CropResizeParams():
            pixels = resize(crop(pixels, _box(drawn, row), background), drawn.out_height, drawn.out_width)
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
