"""Sample ids drawn into pixels, so that what a trainer was handed can be told from the pixels alone.

The picture stays a photo with narrow coloured ribbons from top to bottom. Each ribbon repeats one column of 16 cells: white,
black (the mark), then 14 cells of red, green, blue, cyan, magenta or yellow: base-6 digits of 36 bits, 20 of id and 16 of
check. Nothing varies across a ribbon, so mirroring changes nothing; ribbons repeat across and the column repeats down, so
closely that a random crop of 8% of the area holds a whole column. A white cell above a black one occurs in the mark alone: in
a colour some channel is 0 and some is 255. That gives the phase; the scale is searched. In a picture without colour the digits
are six levels of gray.

Tried: 3,000 colour and 3,000 gray JPEGs of quality 60 to 96, cropped to 8% to 100% of the area, resized to 224x224, half of
them mirrored: all read, none misread. Blur, erasing, grayscale and hue shifts are not survived.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

ID_BITS = 20
MAX_ID = (1 << ID_BITS) - 1
DIGITS = 14
CELLS = DIGITS + 2
UNREAD = -1

# The smallest crop that must hold a whole column and a whole ribbon: RandomResizedCrop's default scale and ratio.
MIN_SCALE = 0.08
MAX_RATIO = 4 / 3
_COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 255, 255], [255, 0, 255], [255, 255, 0]], np.uint8)
_GRAYS = np.array([36, 73, 109, 146, 182, 219], np.uint8)
_DIGIT_OF_CORNER = np.full(8, -1, np.int64)
_DIGIT_OF_CORNER[[4, 2, 1, 3, 5, 6]] = np.arange(6)
_POWERS = 6 ** np.arange(DIGITS, dtype=np.int64)


def _check(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """16 check bits of ids: the high half of two multiplications modulo 2^32, so that near ids have far checks."""
    x = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)
    x = (x ^ (x >> np.uint64(15))) * np.uint64(0x85EBCA6B) & np.uint64(0xFFFFFFFF)
    return (x >> np.uint64(16)).astype(np.int64)


def encode(sample_id: int) -> NDArray[np.int64]:
    """The 14 base-6 digits of an id. Raises ValueError for one over MAX_ID."""
    if not 0 <= sample_id <= MAX_ID:
        raise ValueError(f"id {sample_id} does not fit {ID_BITS} bits")
    word = sample_id | int(_check(np.array([sample_id]))[0]) << ID_BITS
    return word // _POWERS % 6


def column_height(width: int, height: int) -> float:
    """Height in pixels of one column: 94% of the height that the smallest crop of such a picture can have."""
    return 0.94 * math.sqrt(MIN_SCALE * width * height / MAX_RATIO)


def draw(pixels: Pixels, sample_id: int) -> Pixels:
    """A copy of uint8[H, W, 3] (or [H, W] for gray) with the id's ribbons drawn in."""
    height, width = pixels.shape[:2]
    column = column_height(width, height)
    digits = encode(sample_id)
    body = _COLOURS[digits] if pixels.ndim == 3 else _GRAYS[digits]
    ends = np.array([255, 0], np.uint8).reshape((2,) + (1,) * (body.ndim - 1))
    cells = np.concatenate([np.broadcast_to(ends, (2, *body.shape[1:])), body])
    rows = ((np.arange(height) + 0.5) / column * CELLS).astype(np.int64) % CELLS
    ribbon = max(8, round(column * 0.1))
    pitch = round(column) - ribbon // 2
    out = pixels.copy()
    for left in range((width % pitch) // 2, width, pitch):
        out[:, left : left + ribbon] = cells[rows][:, None]
    return out


def read_batch(pixels: Pixels) -> NDArray[np.int64]:
    """Ids drawn into a batch, int64[B], UNREAD (-1) where none is readable; pixels uint8[B, H, W, 3].

    A misread passes the check once in 65,536 guesses. Some 0.2 ms an image of 224x224.
    """
    ids = np.full(len(pixels), UNREAD, np.int64)
    columns, is_gray = _ribbons(pixels)
    for rank in range(columns.shape[1]):
        for gray in (False, True):
            rows = np.flatnonzero((ids == UNREAD) & (is_gray == gray))
            if rows.size:
                profile = pixels[rows, :, columns[rows, rank]].astype(np.float32)
                ids[rows] = _decode(profile, gray)
    return ids


def read_barcode(pixels: Pixels) -> int | None:
    """The id drawn into one picture, uint8[H, W, 3], or None."""
    found = int(read_batch(pixels[None])[0])
    return None if found == UNREAD else found


COLUMNS_TRIED = 8
_ROW_STEP = 7
_SCALE_STEP = 1.025


def _ribbons(pixels: Pixels) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The likeliest ribbon columns of each picture, best first, int64[B, COLUMNS_TRIED]; and which pictures are gray."""
    sparse = pixels[:, ::_ROW_STEP]
    red, green, blue = sparse[..., 0], sparse[..., 1], sparse[..., 2]
    high = np.maximum(np.maximum(red, green), blue)
    low = np.minimum(np.minimum(red, green), blue)
    saturation = (high - low).mean(axis=1, dtype=np.float32)
    steps = (np.maximum(green[:, 1:], green[:, :-1]) - np.minimum(green[:, 1:], green[:, :-1])).mean(axis=1, dtype=np.float32)
    is_gray: NDArray[np.bool_] = saturation.max(axis=1) < 40
    score = saturation + steps
    if is_gray.any():  # no colour to go by: where white turns black most sharply
        luma = pixels[is_gray, :, :, 1].astype(np.float32)
        drop = luma[:, :-3] + luma[:, 1:-2] - luma[:, 2:-1] - luma[:, 3:]
        score[is_gray] = drop.max(axis=1)
    padded = np.pad(score, ((0, 0), (1, 1)), mode="edge")
    score = padded[:, :-2] + padded[:, 2:] + 2 * score
    best = np.empty((len(pixels), COLUMNS_TRIED), np.int64)
    rows = np.arange(len(pixels))
    near = np.arange(-3, 4)
    for rank in range(COLUMNS_TRIED):
        best[:, rank] = score.argmax(axis=1)
        score[rows[:, None], np.clip(best[:, rank, None] + near, 0, score.shape[1] - 1)] = -1
    return best, is_gray


def _decode(profile: NDArray[np.float32], gray: bool) -> NDArray[np.int64]:
    """Ids of float32[N, H, 3] columns of pixels, UNREAD where the check fails at every scale."""
    count, height, _ = profile.shape
    edge, white, black = _find_mark(profile)
    level = (profile - black[:, None]) / np.maximum(white - black, 32)[:, None]
    smallest, largest = 0.18 * height, height
    scales = smallest * _SCALE_STEP ** np.arange(math.ceil(math.log(largest / smallest, _SCALE_STEP)) + 1)
    places = edge[:, None, None] + scales[:, None] * ((np.arange(DIGITS) + 1.5) / CELLS)
    places = np.where(places >= height, places - scales[:, None], places)
    rows = np.clip(places, 0, height - 1).astype(np.int64)
    values = level[np.arange(count)[:, None, None], rows]
    digits, margin = _digits_gray(values) if gray else _digits_colour(values)
    margin[places < 0] = -1.0
    words = (np.maximum(digits, 0) * _POWERS).sum(axis=2)
    found = words & MAX_ID
    good = (words >> ID_BITS == _check(found)) & (digits >= 0).all(axis=2)
    quality = np.where(good, margin.mean(axis=2), -1.0)
    best = quality.argmax(axis=1)
    each = np.arange(count)
    return np.where(quality[each, best] > 0, found[each, best], UNREAD)


def _find_mark(
    profile: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Where white turns black, to a fraction of a row, float32[N], and the two levels, float32[N, 3]."""
    low, high = profile.min(axis=2), profile.max(axis=2)
    height = profile.shape[1]
    drop = low[:, : height - 3] + low[:, 1 : height - 2] - high[:, 2 : height - 1] - high[:, 3:]
    top = drop.argmax(axis=1)
    each = np.arange(len(profile))
    around = profile[each[:, None], top[:, None] + np.arange(4)]
    white, black = around[:, :1].max(axis=1), around[:, 3:].min(axis=1)
    share = (around - black[:, None]) / np.maximum(white - black, 32)[:, None]
    edge = top + np.clip(share.mean(axis=2), 0, 1).sum(axis=1)
    return edge.astype(np.float32), white, black


def _digits_colour(values: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    red, green, blue = values[..., 0], values[..., 1], values[..., 2]
    corner = (red > 0.5) * np.int8(4) + (green > 0.5) * np.int8(2) + (blue > 0.5)
    clear = np.minimum(np.minimum(np.abs(red - 0.5), np.abs(green - 0.5)), np.abs(blue - 0.5))
    return _DIGIT_OF_CORNER[corner], np.minimum(clear, 0.5)


def _digits_gray(values: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    place = (values.mean(axis=3) * 255 - _GRAYS[0]) / (float(_GRAYS[-1] - _GRAYS[0]) / 5)
    digits = np.clip(np.rint(place), 0, 5).astype(np.int64)
    return digits, np.maximum(0.0, 0.5 - np.abs(place - digits)).astype(np.float32)
