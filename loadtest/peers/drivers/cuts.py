"""Where to cut: torchvision's rules for random-resized-crop and centre crop, in plain Python. Standard library only."""

from __future__ import annotations

import math
import random

SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
SHORTER, CENTER = 256, 224

Box = tuple[int, int, int, int]


def random_box(height: int, width: int) -> Box:
    """(top, left, height, width), as torchvision's RandomResizedCrop draws it."""
    area = height * width
    for _ in range(TRIES):
        part = area * random.uniform(*SCALE)
        aspect = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(part * aspect)), round(math.sqrt(part / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    aspect = width / height
    w, h = width, height
    if aspect < RATIO[0]:
        h = round(w / RATIO[0])
    elif aspect > RATIO[1]:
        w = round(h * RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w


def resized(height: int, width: int) -> tuple[int, int]:
    """(height, width) once the shorter side is SHORTER, as torchvision's Resize rounds."""
    if width <= height:
        return int(SHORTER * height / width), SHORTER
    return SHORTER, int(SHORTER * width / height)


def center(height: int, width: int) -> tuple[int, int]:
    """(top, left) of the CENTER square, as torchvision's CenterCrop rounds."""
    return round((height - CENTER) / 2.0), round((width - CENTER) / 2.0)
