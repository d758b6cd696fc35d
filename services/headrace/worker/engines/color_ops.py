"""Operations on colour, on uint8[H, W, 3] RGB; each returns a new array, or its input where nothing changes.

The definitions are torchvision's and Pillow's and are written out in docs/decode_contract.md. Between operations pixels
are uint8, so that an engine working in any precision is within a level of this one for each operation. Arithmetic is on
integers and IEEE add and multiply in a fixed order: the same bits on every machine and for every neighbour.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headrace.core.augment import BRIGHTNESS, CONTRAST, HUE, SATURATION
from headrace.worker.engines.pixels import Pixels, contiguous

_LEVELS = np.arange(256, dtype=np.float64)


def luma(pixels: Pixels) -> Pixels:
    """uint8[H, W]: (19595 R + 38470 G + 7471 B + 32768) >> 16, ITU-R 601-2 as Pillow rounds it."""
    # Its type is named: numpy 1 looks at the value of a factor, finds that 16 bits hold it, and overflows.
    total = np.multiply(pixels[..., 0], 19595, dtype=np.uint32)
    total += np.multiply(pixels[..., 1], 38470, dtype=np.uint32)
    total += np.multiply(pixels[..., 2], 7471, dtype=np.uint32)
    total += np.uint32(32768)
    total >>= np.uint32(16)
    return total.astype(np.uint8)


def grayscale(pixels: Pixels) -> Pixels:
    """Three channels of luma."""
    return np.repeat(luma(pixels)[..., None], 3, axis=2)


def jitter(pixels: Pixels, factors: tuple[float, float, float], hue: float, order: list[int]) -> Pixels:
    """Adjust brightness, contrast, saturation (factors; 1 is no change) and hue (turns; 0 is none) in the order given."""
    pixels = contiguous(pixels)
    for step in order:
        if step == HUE:
            pixels = shift_hue(pixels, hue)
        elif step == BRIGHTNESS:
            pixels = adjust_brightness(pixels, factors[BRIGHTNESS])
        elif step == CONTRAST:
            pixels = adjust_contrast(pixels, factors[CONTRAST])
        elif step == SATURATION:
            pixels = adjust_saturation(pixels, factors[SATURATION])
    return pixels


def adjust_brightness(pixels: Pixels, factor: float) -> Pixels:
    """Blend with black: factor * x, clipped, cut to a whole number."""
    return pixels if factor == 1.0 else _towards(pixels, 0, factor)


def adjust_contrast(pixels: Pixels, factor: float) -> Pixels:
    """Blend with one gray, the mean luma rounded half up."""
    if factor == 1.0:
        return pixels
    gray = luma(pixels)
    mean = (2 * int(gray.sum(dtype=np.int64)) + gray.size) // (2 * gray.size)
    return _towards(pixels, mean, factor)


def _towards(pixels: Pixels, level: int, factor: float) -> Pixels:
    """level + factor * (x - level), clipped to 0..255, cut to a whole number: one table look-up a value."""
    table = np.clip(level + factor * (_LEVELS - level), 0, 255).astype(np.uint8)
    # A byte cannot be out of the table's bounds: `clip` only spares the check.
    return np.take(table, pixels, mode="clip")


def adjust_saturation(pixels: Pixels, factor: float) -> Pixels:
    """Blend each pixel with its luma."""
    if factor == 1.0:
        return pixels
    gray = luma(pixels).astype(np.float32)
    out = np.empty(pixels.shape, np.uint8)
    for channel in range(3):
        mixed = pixels[..., channel] - gray
        mixed *= np.float32(factor)
        mixed += gray
        np.clip(mixed, 0, 255, out=mixed)
        out[..., channel] = mixed
    return out


def shift_hue(pixels: Pixels, turns: float) -> Pixels:
    """Turn the hue in HSV, computed in float32, rounded half up."""
    if turns == 0.0:
        return pixels
    hue, saturation, value = _to_hsv(pixels)
    hue += np.float32(turns)
    hue -= np.floor(hue)
    hue *= np.float32(6)
    out = np.empty(pixels.shape, np.float32)
    # Channel n is v - v*s*max(0, min(k, 4 - k, 1)) with k = (n + 6h) mod 6: n = 5, 3, 1 for red, green, blue.
    chroma = value * saturation
    for channel, n in enumerate((5, 3, 1)):
        k = hue + np.float32(n)
        k -= np.float32(6) * np.floor(k * np.float32(1 / 6))
        np.minimum(k, np.float32(4) - k, out=k)
        np.clip(k, 0, 1, out=k)
        k *= chroma
        np.subtract(value, k, out=out[..., channel])
    out += np.float32(0.5)
    return np.clip(out, 0, 255, out=out).astype(np.uint8)


def _to_hsv(pixels: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Hue in turns, saturation in 0..1, value in 0..255; hue and saturation are 0 for gray pixels."""
    red, green, blue = (pixels[..., channel].astype(np.float32) for channel in range(3))
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    # Where a pixel is gray or black this divides 0 by 1.
    inverse = np.reciprocal(np.maximum(spread, np.float32(1)))
    hue = (red - green) * inverse + np.float32(4)
    np.copyto(hue, (blue - red) * inverse + np.float32(2), where=value == green)
    np.copyto(hue, (green - blue) * inverse, where=value == red)
    hue *= np.float32(1 / 6)
    hue -= np.floor(hue)
    spread *= np.reciprocal(np.maximum(value, np.float32(1)))
    return hue, spread, value


def gaussian_kernel(size: int, sigma: float) -> NDArray[np.float32]:
    """float32[size] weights exp(-x^2 / (2 sigma^2)) at whole x around 0, summing to 1."""
    half = size // 2
    weights = [math.exp(-0.5 * (x / sigma) ** 2) for x in range(-half, half + 1)]
    total = math.fsum(weights)
    return np.array([weight / total for weight in weights], dtype=np.float32)


def gaussian_blur(pixels: Pixels, size: int, sigma: float) -> Pixels:
    """Convolve rows, then columns, with the kernel; edges are mirrored without repeating the edge; rounded half to even."""
    if sigma == 0.0 or size == 1:
        return pixels
    weights = gaussian_kernel(size, sigma)
    half = size // 2
    padded = np.pad(pixels, ((half, half), (half, half), (0, 0)), mode="reflect").astype(np.float32)
    across = _convolve(padded, weights, pixels.shape[1], axis=1)
    out = _convolve(across, weights, pixels.shape[0], axis=0)
    np.rint(out, out=out)
    return np.clip(out, 0, 255, out=out).astype(np.uint8)


def _convolve(values: NDArray[np.float32], weights: NDArray[np.float32], length: int, axis: int) -> NDArray[np.float32]:
    def shifted(start: int) -> NDArray[np.float32]:
        return values[:, start : start + length] if axis else values[start : start + length]

    # The weights are symmetric: two neighbours at the same distance are added first, then weighted once.
    half = len(weights) // 2
    total: NDArray[np.float32] = shifted(half) * weights[half]
    term = np.empty_like(total)
    for distance in range(1, half + 1):
        np.add(shifted(half - distance), shifted(half + distance), out=term)
        term *= weights[half - distance]
        total += term
    return total


def erase(pixels: Pixels, box: tuple[int, int, int, int], value: tuple[int, int, int]) -> Pixels:
    """Fill the box (y, x, height, width)."""
    y, x, height, width = box
    if not height or not width:
        return pixels
    out = pixels.copy()
    out[y : y + height, x : x + width] = value
    return out
