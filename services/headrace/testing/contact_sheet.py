"""One PNG of a batch, so that a person sees that the pixels are right."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_GAP = 4
_CAPTION = 14


def save(path: Path, pixels: NDArray[np.uint8], captions: list[str], title: str, columns: int = 8) -> None:
    """Write `pixels` (uint8[N, H, W, 3]) as a grid with a caption below each image and a title above."""
    from PIL import Image, ImageDraw

    count, height, width, _ = pixels.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    top = _CAPTION + 2 * _GAP
    sheet = Image.new("RGB", (columns * (width + _GAP) + _GAP, top + rows * (height + _CAPTION + _GAP)), (24, 24, 24))
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _GAP), title, fill=(255, 255, 255))
    for i in range(count):
        x = _GAP + (i % columns) * (width + _GAP)
        y = top + (i // columns) * (height + _CAPTION + _GAP)
        sheet.paste(Image.fromarray(pixels[i]), (x, y))
        draw.text((x, y + height), captions[i], fill=(200, 200, 200))
    sheet.save(path)
