"""The photos of the proof, JPEGs of 500x375: from a file that came with the wheels, else cut from photos that are installed."""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

# Made by `wheels.py fetch`, for machines without scikit-image and scikit-learn.
FILE_VARIABLE = "HEADRACE_GPU_PHOTOS"
WIDTH, HEIGHT, QUALITY, SEED = 500, 375, 90, 5


@functools.cache
def source() -> str:
    """What `jpegs` gives, in words, for the report."""
    path = os.environ.get(FILE_VARIABLE, "")
    if path and Path(path).exists():
        return f"real photos, from {Path(path).name}"
    try:
        from headrace.testing.photos import CLASSES, photo_at

        for name in CLASSES:
            photo_at(name, 0)
    except Exception as error:  # noqa: BLE001 - whatever is missing: the report says so
        return f"SYNTHETIC pictures, since the real ones cannot be had ({error})"
    return "real photos, of scikit-image and scikit-learn"


def jpegs(count: int) -> list[bytes]:
    """JPEGs of 500x375, quality 90, 4:2:0, some 50 kB each; the same ones in every call and process."""
    where = source()
    if ", from " in where:
        with np.load(os.environ[FILE_VARIABLE]) as held:
            parts = np.split(held["data"], np.cumsum(held["lengths"])[:-1])
        return [parts[i % len(parts)].tobytes() for i in range(count)]
    return [make(i, where.startswith("real")) for i in range(count)]


def make(number: int, real: bool) -> bytes:
    """JPEG `number`."""
    rng = np.random.default_rng([SEED, number])
    image = _cut(rng) if real else _drawn(rng)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def save(path: Path, count: int) -> None:
    """Write real photos for another machine."""
    made = [make(i, real=True) for i in range(count)]
    with path.open("wb") as file:
        np.savez(file, data=np.frombuffer(b"".join(made), np.uint8), lengths=np.array([len(data) for data in made]))


def _cut(rng: np.random.Generator) -> Image.Image:
    from headrace.testing.photos import CLASSES, photo_at

    photo = photo_at(CLASSES[int(rng.integers(len(CLASSES)))], 1)
    left, top = (int(rng.integers(most - side + 1)) for most, side in zip(photo.size, (WIDTH, HEIGHT), strict=True))
    return photo.crop((left, top, left + WIDTH, top + HEIGHT))


def _drawn(rng: np.random.Generator) -> Image.Image:
    """Smooth shapes with some grain: as many bytes as a photo of that size."""
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 9, (HEIGHT, WIDTH, 1))
    return Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8))
