"""The photos: cut from real ones (headrace.testing.photos), as plain files and as tars with Headrace's index beside them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from headrace.datasets.build import build_index
from headrace.testing import photos

GRAY_SHARE, PROGRESSIVE_SHARE = 0.03, 0.05
PHOTOS_A_TAR = 512
LARGE, PART = (1600, 1200), (800, 600)
_VERSION = 3

Draw = Callable[[np.random.Generator], Image.Image]


@dataclass(frozen=True, slots=True)
class Photos:
    """A data set on disk. files: NNNNNNN.jpg by number; tars: the same in that order, each with its class, indexed."""

    files: Path
    tars: Path
    count: int
    mean_bytes: int

    def warm(self) -> None:
        """Read all once, so that they lie in the page cache and no loader waits for the disk."""
        for folder in (self.files, self.tars):
            for path in folder.iterdir():
                if path.is_file():
                    path.read_bytes()


def small(rng: np.random.Generator) -> Image.Image:
    """A crop of a photo in a size that is frequent in ImageNet, about 500x375."""
    return Image.fromarray(photos.random_crop(photos.CLASSES[rng.integers(len(photos.CLASSES))], rng))


def large(rng: np.random.Generator) -> Image.Image:
    """1600x1200: four crops of photos side by side, since few of the photos are so large."""
    whole = Image.new("RGB", LARGE)
    for place in range(4):
        name = photos.CLASSES[rng.integers(len(photos.CLASSES))]
        photo = photos.photo_at(name, len(photos.LEVELS) - 1)
        left, top = (int(rng.integers(most - part + 1)) for most, part in zip(photo.size, PART, strict=True))
        crop = photo.crop((left, top, left + PART[0], top + PART[1]))
        whole.paste(crop, (PART[0] * (place % 2), PART[1] * (place // 2)))
    return whole


@dataclass(frozen=True, slots=True)
class Kind:
    """A data set. qualities: of JPEG, from and below. share: of the number of photos that is asked for."""

    name: str
    draw: Draw
    qualities: tuple[int, int]
    share: float


KINDS = {
    kind.name: kind
    for kind in (
        Kind("small", small, (82, 97), 1.0),
        Kind("dense", small, (97, 100), 0.5),
        Kind("large", large, (82, 97), 0.25),
    )
}


def encode(number: int, kind: Kind) -> bytes:
    """Photo `number`: a function of it alone."""
    rng = np.random.default_rng([_VERSION, number])
    image = kind.draw(rng)
    if rng.random() < GRAY_SHARE:
        image = image.convert("L")
    out = io.BytesIO()
    image.save(out, "JPEG", quality=int(rng.integers(*kind.qualities)), progressive=bool(rng.random() < PROGRESSIVE_SHARE))
    return out.getvalue()


def make(directory: Path, count: int, kind: Kind) -> Photos:
    """Make the photos below `directory`, or find them made."""
    recipe = directory / "recipe.json"
    wanted = {"version": _VERSION, "count": count, "kind": kind.name}
    if recipe.exists():
        kept = json.loads(recipe.read_text())
        if kept.pop("mean_bytes") and kept == wanted:
            return Photos(directory / "files", directory / "tars", count, json.loads(recipe.read_text())["mean_bytes"])
    shutil.rmtree(directory, ignore_errors=True)
    made = Photos(directory / "files", directory / "tars", count, 0)
    made.files.mkdir(parents=True)
    made.tars.mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        total = 0
        for first in range(0, count, PHOTOS_A_TAR):
            numbers = range(first, min(first + PHOTOS_A_TAR, count))
            total += _write(made, numbers, pool.map(lambda number: encode(number, kind), numbers))
    asyncio.run(build_index(str(made.tars)))
    recipe.write_text(json.dumps({**wanted, "mean_bytes": total // count}))
    return Photos(**{**asdict(made), "mean_bytes": total // count})


def _write(made: Photos, numbers: range, jpegs) -> int:  # type: ignore[no-untyped-def]
    total = 0
    with tarfile.open(made.tars / f"photos-{numbers[0] // PHOTOS_A_TAR:04d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, jpeg in zip(numbers, jpegs, strict=True):
            name = f"{number:07d}"
            (made.files / f"{name}.jpg").write_bytes(jpeg)
            for suffix, data in (("jpg", jpeg), ("cls", b"%d" % (number % 10))):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            total += len(jpeg)
    return total
