"""Sampling of augmentation parameters: once, on the CPU, for all engines.

Parameters of a row depend on (seed, epoch, planned sample id, the operation's place and name in the spec) and on the
image's size: never on the batch, the row or the engine. The distributions are those of torchvision's transforms. All is exact
integer and IEEE add, multiply, divide and square root, so a batch gets the same numbers on every machine.

Coordinates: pixels of the image as it is when the operation applies (after EXIF orientation and the operations before it);
y counts rows from the top, x columns from the left. A box is [y, y + height) by [x, x + width).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.core.exact_math import exp, log
from headrace.core.pipeline_spec import (
    OP_NAMES,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    Op,
    PipelineSpec,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from headrace.core.rng import uniforms

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
BOX_TRIES = 10


@dataclass(frozen=True, slots=True)
class ResizeParams:
    """Of Resize: scale the whole image to (height, width). height, width: int64[B], at least 1."""

    height: Ints
    width: Ints


@dataclass(frozen=True, slots=True)
class CropParams:
    """Of CenterCrop and RandomCrop: cut the box. y, x, height, width: int64[B].

    height and width are the spec's. Where the image is smaller than the box, the box reaches over its edges (y or x below
    0, or the far edge beyond the image): pixels outside the image are `Decode.background`.
    """

    y: Ints
    x: Ints
    height: Ints
    width: Ints


@dataclass(frozen=True, slots=True)
class CropResizeParams:
    """Of RandomResizedCrop: cut the box, then scale it to (out_height, out_width).

    y, x, height, width: int64[B], the box, always within the image and at least 1 by 1. out_height, out_width: the spec's size.
    """

    y: Ints
    x: Ints
    height: Ints
    width: Ints
    out_height: int
    out_width: int


@dataclass(frozen=True, slots=True)
class FlipParams:
    """Of HorizontalFlip and VerticalFlip (which one: the spec's operation). flip: bool[B]."""

    flip: Bools


@dataclass(frozen=True, slots=True)
class JitterParams:
    """Of ColorJitter. brightness, contrast, saturation: float64[B] factors, exactly 1.0 where the spec has 0.

    hue: float64[B], turns in [-0.5, 0.5], exactly 0.0 where the spec has 0. order: int64[B, 4], a permutation of BRIGHTNESS,
    CONTRAST, SATURATION, HUE (0..3): the adjustment order[i, 0] is applied first.
    """

    brightness: Floats
    contrast: Floats
    saturation: Floats
    hue: Floats
    order: Ints


@dataclass(frozen=True, slots=True)
class GrayParams:
    """Of Grayscale. gray: bool[B]."""

    gray: Bools


@dataclass(frozen=True, slots=True)
class BlurParams:
    """Of GaussianBlur. sigma: float64[B] in pixels, 0.0 for no blur. kernel: odd size in pixels, the spec's."""

    sigma: Floats
    kernel: int


@dataclass(frozen=True, slots=True)
class EraseParams:
    """Of RandomErasing. y, x, height, width: int64[B], the box, within the image; all 0 where nothing is erased."""

    y: Ints
    x: Ints
    height: Ints
    width: Ints


OpParams: TypeAlias = (
    ResizeParams | CropParams | CropResizeParams | FlipParams | JitterParams | GrayParams | BlurParams | EraseParams
)


@dataclass(frozen=True, slots=True)
class BatchParams:
    """Parameters of a batch of B rows.

    ops: one for each of spec.ops, in its order. in_sizes: per operation int64[B, 2], (height, width) of the image that it
    is applied to; in_sizes[0] are the sizes of the decoded images.
    """

    ops: tuple[OpParams, ...]
    in_sizes: tuple[Ints, ...]


@dataclass(frozen=True, slots=True)
class _Draw:
    """The stream of one operation: `draw(count, first_block)` gives float64[B, count]."""

    seed: int
    purpose: str
    epochs: Ints
    sample_ids: Ints

    def __call__(self, count: int, first_block: int = 0) -> Floats:
        return uniforms(self.seed, self.epochs, self.purpose, self.sample_ids, count, first_block=first_block)

    def rows(self, rows: Ints) -> _Draw:
        return _Draw(self.seed, self.purpose, self.epochs[rows], self.sample_ids[rows])


def sample_params(spec: PipelineSpec, seed: int, keys: tuple[Ints, Ints], sizes: Ints) -> BatchParams:
    """Draw all parameters of a batch.

    keys: (epoch int64[B], planned sample id int64[B]). sizes: int64[B, 2], (height, width) after EXIF orientation; a row
    whose size is unknown (a bad sample) may hold any numbers: sizes below 1 count as 1, and no other row is touched.
    """
    epochs, sample_ids = (np.ascontiguousarray(part, dtype=np.int64) for part in keys)
    sizes = np.maximum(np.asarray(sizes, dtype=np.int64), 1)
    ops: list[OpParams] = []
    in_sizes: list[Ints] = []
    for place, op in enumerate(spec.ops):
        draw = _Draw(seed, f"augment/{place}/{OP_NAMES[type(op)]}", epochs, sample_ids)
        in_sizes.append(sizes)
        ops.append(_sample(op, draw, sizes))
        sizes = _out_sizes(ops[-1], sizes)
    return BatchParams(tuple(ops), tuple(in_sizes))


def too_large(spec: PipelineSpec, params: BatchParams) -> Bools:
    """bool[B]: rows that a resize by the shorter side would make larger than `Decode.max_pixels` on the way.

    The header's check bounds the decoded image alone: a strip of 1 by 16384 pixels passes it, and would grow to a Gpx. Engines
    give these rows the reason `too_large` before they allocate anything.
    """
    large = np.zeros(len(params.in_sizes[0]), np.bool_)
    for op, drawn in zip(spec.ops, params.ops, strict=True):
        if isinstance(op, Resize) and isinstance(op.size, int) and isinstance(drawn, ResizeParams):
            large |= drawn.height * drawn.width > spec.decode.max_pixels
    return large


def _sample(op: Op, draw: _Draw, sizes: Ints) -> OpParams:  # noqa: PLR0911 - one return a kind of operation
    match op:
        case Resize():
            return _resize(op, sizes)
        case CenterCrop():
            return _center_crop(op, sizes)
        case RandomCrop():
            return _random_crop(op, draw, sizes)
        case RandomResizedCrop():
            return CropResizeParams(*_crop_boxes(op, draw, sizes), *op.size)
        case HorizontalFlip() | VerticalFlip():
            return FlipParams(draw(1)[:, 0] < op.p)
        case ColorJitter():
            return _jitter(op, draw)
        case Grayscale():
            return GrayParams(draw(1)[:, 0] < op.p)
        case GaussianBlur():
            chance, place = draw(2).T
            return BlurParams(np.where(chance < op.p, _between(place, *op.sigma), 0.0), op.kernel)
        case RandomErasing():
            return _erase(op, draw, sizes)


def _out_sizes(params: OpParams, sizes: Ints) -> Ints:
    match params:
        case ResizeParams() | CropParams():
            return np.stack([params.height, params.width], axis=1)
        case CropResizeParams():
            return np.broadcast_to(np.array([params.out_height, params.out_width], dtype=np.int64), sizes.shape)
    return sizes


def _between(place: Floats, low: float, high: float) -> Floats:
    return low + (high - low) * place


def _whole_between(place: Floats, low: Ints, high: Ints) -> Ints:
    """Whole numbers in [low, high], both ends included."""
    return np.minimum(low + (place * (high - low + 1)).astype(np.int64), high)


def _resize(op: Resize, sizes: Ints) -> ResizeParams:
    if not isinstance(op.size, int):
        return ResizeParams(*(np.full(len(sizes), side, dtype=np.int64) for side in op.size))
    # torchvision: the longer side is cut to whole pixels, not rounded.
    shorter = sizes.min(axis=1, keepdims=True)
    out = op.size * sizes // shorter
    return ResizeParams(out[:, 0], out[:, 1])


def _center_crop(op: CenterCrop, sizes: Ints) -> CropParams:
    size = np.array(op.size, dtype=np.int64)
    # torchvision: rounds half to even where it cuts, and pads the smaller half first where it pads.
    corner = np.where(sizes >= size, np.rint((sizes - size) / 2).astype(np.int64), -((size - sizes) // 2))
    height, width = np.broadcast_to(size, sizes.shape).T
    return CropParams(corner[:, 0], corner[:, 1], height, width)


def _random_crop(op: RandomCrop, draw: _Draw, sizes: Ints) -> CropParams:
    spare = sizes - np.array(op.size, dtype=np.int64)
    corner = _whole_between(draw(2), np.minimum(spare, 0), np.maximum(spare, 0))
    height, width = np.broadcast_to(np.array(op.size, dtype=np.int64), sizes.shape).T
    return CropParams(corner[:, 0], corner[:, 1], height, width)


def _jitter(op: ColorJitter, draw: _Draw) -> JitterParams:
    places = draw(8)
    brightness, contrast, saturation = (
        _between(places[:, i], max(0.0, 1.0 - spread), 1.0 + spread) if spread else np.ones(len(places))
        for i, spread in enumerate((op.brightness, op.contrast, op.saturation))
    )
    hue = _between(places[:, 3], -op.hue, op.hue) if op.hue else np.zeros(len(places))
    return JitterParams(
        brightness, contrast, saturation, hue, np.argsort(places[:, 4:], axis=1, kind="stable").astype(np.int64)
    )


def _draw_boxes(
    op: RandomResizedCrop | RandomErasing, draw: _Draw, sizes: Ints, first_block: int, margin: int
) -> tuple[Ints, Bools]:
    """Boxes int64[B, 4] (y, x, height, width) of random area and shape that leave `margin` pixels free; bool[B]: found.

    Try t of a row always takes block first_block + t of its stream, so rows that need no further try cost nothing.
    """
    tall = isinstance(op, RandomErasing)  # torchvision: aspect is height/width here, width/height in crops
    log_low, log_high = log(op.ratio[0]), log(op.ratio[1])
    boxes = np.zeros((len(sizes), 4), dtype=np.int64)
    todo = np.arange(len(sizes))
    for attempt in range(BOX_TRIES):
        area, shape, y, x = draw.rows(todo)(4, first_block + attempt).T
        pixels = sizes[todo, 0] * sizes[todo, 1] * _between(area, *op.scale)
        aspect = exp(_between(shape, log_low, log_high))
        along, across = np.rint(np.sqrt(pixels * aspect)), np.rint(np.sqrt(pixels / aspect))
        box = np.stack([along, across] if tall else [across, along], axis=1).astype(np.int64)
        spare = sizes[todo] - box
        fits = (box > 0).all(axis=1) & (spare >= margin).all(axis=1)
        corner = _whole_between(np.stack([y, x], axis=1)[fits], np.zeros_like(spare[fits]), spare[fits])
        boxes[todo[fits]] = np.concatenate([corner, box[fits]], axis=1)
        todo = todo[~fits]
        if not len(todo):
            break
    found = np.ones(len(sizes), dtype=np.bool_)
    found[todo] = False
    return boxes, found


def _crop_boxes(op: RandomResizedCrop, draw: _Draw, sizes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    boxes, found = _draw_boxes(op, draw, sizes, first_block=0, margin=0)
    if not found.all():
        # torchvision's fallback: the largest centred box of an allowed shape.
        height, width = sizes[~found].T
        low, high = op.ratio
        narrow, wide = width / height < low, width / height > high
        box_height = np.where(narrow, np.maximum(np.rint(width / low), 1), height).astype(np.int64)
        box_width = np.where(wide, np.maximum(np.rint(height * high), 1), width).astype(np.int64)
        boxes[~found] = np.stack([(height - box_height) // 2, (width - box_width) // 2, box_height, box_width], axis=1)
    y, x, height, width = boxes.T
    return y, x, height, width


def _erase(op: RandomErasing, draw: _Draw, sizes: Ints) -> EraseParams:
    boxes = np.zeros((len(sizes), 4), dtype=np.int64)
    rows = np.flatnonzero(draw(1)[:, 0] < op.p)
    boxes[rows], _ = _draw_boxes(op, draw.rows(rows), sizes[rows], first_block=1, margin=1)
    return EraseParams(*boxes.T)
