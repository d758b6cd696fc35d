"""The first operations of a spec as one cut, scale, cut and mirror, which the native core does while it decodes.

Fused are: a scaling operation (random-resized-crop, resize), then a crop (centre, random), each if it is there, then any
flips; at least one of the first two must fix the size. What a row gets is the same as from the operations one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.augment import BatchParams, CropParams, CropResizeParams, FlipParams, Ints, ResizeParams
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


def fused_count(spec: PipelineSpec) -> int:
    """How many of the spec's first operations are fused; 0 if they don't begin so."""
    ops, at, fixed = spec.ops, 0, False
    first = ops[0]
    if isinstance(first, RandomResizedCrop | Resize):
        fixed = not isinstance(first.size, int)
        at = 1
    if at < len(ops) and isinstance(ops[at], CenterCrop | RandomCrop):
        fixed = True
        at += 1
    while fixed and at < len(ops) and isinstance(ops[at], HorizontalFlip | VerticalFlip):
        at += 1
    return at if fixed else 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of B rows.

    numbers: int64[B, 10]: box y, x, height, width; size height, width; window y, x; mirror; flip: see native.COLUMNS.
    size: (height, width) of each window. inside: bool[B], whether the window lies within the scaled box: what reaches over its
    edge needs the background, and takes the operations one by one.
    """

    numbers: NDArray[np.int64]
    size: tuple[int, int]
    inside: NDArray[np.bool_]


def geometry(spec: PipelineSpec, params: BatchParams, count: int) -> Geometry:
    """Of the first `count` operations, which fused_count gave, at least 1."""
    sizes = params.in_sizes[0]
    rows = len(sizes)
    zero = np.zeros(rows, np.int64)
    box: list[Ints] = [zero, zero, sizes[:, 0], sizes[:, 1]]
    scaled: list[Ints] = box[2:]
    corner: list[Ints] = [zero, zero]
    mirrors = [np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)]
    out = (0, 0)
    for op, drawn in zip(spec.ops[:count], params.ops[:count], strict=True):
        match drawn:
            case CropResizeParams():
                box = [drawn.y, drawn.x, drawn.height, drawn.width]
                scaled = [zero + drawn.out_height, zero + drawn.out_width]
                out = (drawn.out_height, drawn.out_width)
            case ResizeParams():
                scaled = [drawn.height, drawn.width]
                out = _fixed(op)
            case CropParams():
                corner = [drawn.y, drawn.x]
                out = _fixed(op)
            case FlipParams():
                mirrors[isinstance(op, VerticalFlip)] ^= drawn.flip
    numbers = np.stack([*box, *scaled, *corner, *(flips.astype(np.int64) for flips in mirrors)], axis=1)
    inside = np.ones(rows, np.bool_)
    for start, length, whole in zip(corner, out, scaled, strict=True):
        inside &= (start >= 0) & (start + length <= whole)
    return Geometry(numbers, out, inside)


def _fixed(op: Op) -> tuple[int, int]:
    """The size that the operation makes; (0, 0) where it isn't the same for all."""
    return op.size if isinstance(op, Resize | CenterCrop | RandomCrop) and not isinstance(op.size, int) else (0, 0)
