"""The transforms of torchvision for Pillow images, which torchvision itself does by Pillow: crop, resize, transpose."""

from __future__ import annotations

import io
import random

import numpy as np
from cuts import CENTER, Box, center, random_box, resized
from PIL import Image

BILINEAR = Image.Resampling.BILINEAR  # Pillow's is always antialiased


def load(data: bytes) -> Image.Image:
    """As torchvision's ImageFolder loads it."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def cut(image: Image.Image, box: Box, mirrored: bool, size: int) -> np.ndarray:
    """resized_crop and hflip; uint8[size, size, 3]."""
    top, left, height, width = box
    out = image.crop((left, top, left + width, top + height)).resize((size, size), BILINEAR)
    return np.array(out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else out)


def train(data: bytes, size: int) -> np.ndarray:
    """Random-resized-crop and flip."""
    image = load(data)
    return cut(image, random_box(image.height, image.width), random.random() < 0.5, size)


def evaluate(data: bytes) -> np.ndarray:
    """Resize and centre crop."""
    image = load(data)
    height, width = resized(image.height, image.width)
    image = image.resize((width, height), BILINEAR)
    top, left = center(height, width)
    return np.array(image.crop((left, top, left + CENTER, top + CENTER)))


def make(data: bytes, work: str, size: int) -> np.ndarray:
    """What `work` asks for."""
    return train(data, size) if work == "train" else evaluate(data)


def given(data: bytes, box: Box, mirrored: int, work: str, size: int) -> np.ndarray:
    """The check's: a given cut, or evaluation, which draws nothing."""
    return cut(load(data), box, bool(mirrored), size) if work == "train" else evaluate(data)
