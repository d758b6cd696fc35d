"""Geometry: crops and the antialiased resize.

The resize is a convolution with a triangle filter whose support grows with the scale, cut off at the crop's edge: what Pillow's
BILINEAR and torchvision's antialias do after a crop. Of the libraries measured (loadtest/results/engine_choice.md)
cykooz-resizer, which is Rust's fast_image_resize, was the fastest that stays within one level of Pillow; it is integer
arithmetic, the same bits with and without AVX2.
"""

from __future__ import annotations

import threading
from importlib.metadata import version

import numpy as np
from cykooz_resizer import (  # type: ignore[import-untyped]
    FilterType,
    ImageData,
    PixelType,
    ResizeAlg,
    ResizeOptions,
    Resizer,
)

from headrace.worker.engines.pixels import Pixels, contiguous


class _Local(threading.local):
    """A resizer a thread: each keeps scratch memory, so that none waits for another."""

    def __init__(self) -> None:
        self.resizer = Resizer()
        self.options = ResizeOptions(resize_alg=ResizeAlg.convolution(FilterType.bilinear))


_LOCAL = _Local()


def versions() -> str:
    """Name and version of what resizes."""
    return f"cykooz-resizer={version('cykooz-resizer')}"


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Scale uint8[h, w, 3] to uint8[height, width, 3], which may be read-only. Any strides."""
    if pixels.shape[:2] == (height, width):
        return pixels
    # The library takes and gives bytes: copies that it forces, 7% of the resize.
    data = (pixels if pixels.strides[1:] == (3, 1) else contiguous(pixels)).tobytes()
    source = ImageData(pixels.shape[1], pixels.shape[0], PixelType.U8x3, data)
    target = ImageData(width, height, PixelType.U8x3)
    _LOCAL.resizer.resize(source, target, _LOCAL.options)
    return np.frombuffer(target.get_buffer(), np.uint8).reshape(height, width, 3)


def crop(pixels: Pixels, box: tuple[int, int, int, int], background: tuple[int, int, int]) -> Pixels:
    """Cut the box (y, x, height, width): a view where it lies within the image, else a copy padded with the background."""
    y, x, height, width = box
    rows, columns = pixels.shape[:2]
    top, left = max(y, 0), max(x, 0)
    inside = pixels[top : min(y + height, rows), left : min(x + width, columns)]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.empty((height, width, 3), np.uint8)
    padded[...] = background
    padded[top - y : top - y + inside.shape[0], left - x : left - x + inside.shape[1]] = inside
    return padded
