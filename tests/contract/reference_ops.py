"""The decode contract done plainly, with Pillow and float64 numpy, one image at a time: what engines are compared with."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
from PIL import Image, ImageOps

from headrace.core import augment as drawn
from headrace.core.pipeline_spec import PipelineSpec, VerticalFlip


def decode(data: bytes, background=(255, 255, 255)):
    """uint8[H, W, 3] by docs/decode_contract.md."""
    with Image.open(io.BytesIO(data)) as opened:
        opened.seek(0)
        opened.load()
        image = ImageOps.exif_transpose(opened)
    pixels = np.asarray(image)
    if image.mode.startswith("I;16"):
        return np.stack([pixels.astype(np.int64) // 256] * 3, axis=2).astype(np.uint8)
    if image.mode == "CMYK":
        ink = 255 - pixels.astype(np.float64)
        return np.floor(ink[..., :3] * ink[..., 3:] / 255 + 0.5).astype(np.uint8)
    if "A" in image.mode or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA")).astype(np.float64)
        alpha = rgba[..., 3:] / 255
        return np.floor(rgba[..., :3] * alpha + np.array(background) * (1 - alpha) + 0.5).astype(np.uint8)
    return np.asarray(image.convert("RGB"))


def resize(pixels, height, width):
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), Image.Resampling.BILINEAR))


def crop(pixels, box, background):
    y, x, height, width = box
    rows, columns = pixels.shape[:2]
    margin = max(height, width) + max(abs(y), abs(x))
    canvas = np.empty((rows + 2 * margin, columns + 2 * margin, 3), np.uint8)
    canvas[...] = background
    canvas[margin : margin + rows, margin : margin + columns] = pixels
    return canvas[margin + y : margin + y + height, margin + x : margin + x + width]


def luma(pixels):
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L")).astype(np.float64)


def blend(pixels, other, factor):
    return np.trunc(np.clip(other + factor * (pixels.astype(np.float64) - other), 0, 255)).astype(np.uint8)


def hue(pixels, turns):
    def shift(red, green, blue):
        h, s, v = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        return [math.floor(value * 255 + 0.5) for value in colorsys.hsv_to_rgb((h + turns) % 1.0, s, v)]

    flat = [shift(*pixel) for pixel in pixels.reshape(-1, 3).tolist()]
    return np.array(flat, np.uint8).reshape(pixels.shape)


def jitter(pixels, params, row):
    for step in params.order[row]:
        if step == drawn.BRIGHTNESS:
            pixels = blend(pixels, 0.0, params.brightness[row])
        elif step == drawn.CONTRAST:
            pixels = blend(pixels, math.floor(luma(pixels).mean() + 0.5), params.contrast[row])
        elif step == drawn.SATURATION:
            pixels = blend(pixels, luma(pixels)[..., None], params.saturation[row])
        elif params.hue[row]:
            pixels = hue(pixels, params.hue[row])
    return pixels


def blur(pixels, kernel, sigma):
    half = kernel // 2
    offsets = np.arange(-half, half + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights /= weights.sum()
    padded = np.pad(pixels.astype(np.float64), ((half, half), (half, half), (0, 0)), mode="reflect")
    height, width = pixels.shape[:2]
    rows = sum(weight * padded[:, i : i + width] for i, weight in enumerate(weights))
    return np.rint(sum(weight * rows[i : i + height] for i, weight in enumerate(weights))).astype(np.uint8)


def apply(pixels, spec: PipelineSpec, params: drawn.BatchParams, row: int):
    """All operations of a spec with a row's parameters."""
    for op, p in zip(spec.ops, params.ops, strict=True):
        match p:
            case drawn.ResizeParams():
                pixels = resize(pixels, p.height[row], p.width[row])
            case drawn.CropParams():
                pixels = crop(pixels, (p.y[row], p.x[row], p.height[row], p.width[row]), spec.decode.background)
            case drawn.CropResizeParams():
                cut = pixels[p.y[row] : p.y[row] + p.height[row], p.x[row] : p.x[row] + p.width[row]]
                pixels = resize(cut, p.out_height, p.out_width)
            case drawn.FlipParams():
                if p.flip[row]:
                    pixels = np.flip(pixels, 0 if isinstance(op, VerticalFlip) else 1)
            case drawn.JitterParams():
                pixels = jitter(pixels, p, row)
            case drawn.GrayParams():
                if p.gray[row]:
                    pixels = np.stack([luma(pixels).astype(np.uint8)] * 3, axis=2)
            case drawn.BlurParams():
                if p.sigma[row]:
                    pixels = blur(pixels, p.kernel, p.sigma[row])
            case drawn.EraseParams():
                pixels = pixels.copy()
                pixels[p.y[row] : p.y[row] + p.height[row], p.x[row] : p.x[row] + p.width[row]] = op.value
    return pixels
