"""The demo's data set: an ImageNet-like WebDataset cut from real photos, each sample's id drawn in as a barcode.

Ten classes, one for each photo. Sizes, qualities, a few progressive and a few gray JPEGs are drawn from a seed, so the same
recipe gives the same data set. A sample's id is its place in the manifest: shards in order of name, members in order of place.
"""

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
import PIL
from PIL import Image

from headrace.core.errors import ConfigInvalid, HeadraceError
from headrace.datasets.build import build_index
from headrace.datasets.manifest import load_manifest
from headrace.datasets.storage_local import translate, write_atomic
from headrace.testing import barcode, photos

RECIPE_FILE = "recipe.json"
GRAY_SHARE = 0.03
PROGRESSIVE_SHARE = 0.05
QUALITIES = (75, 97)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the data set's bytes."""

    samples: int
    shards: int
    seed: int
    version: int = 1
    pillow: str = PIL.__version__
    numpy: str = np.__version__


def make_demo_dataset(
    directory: Path,
    *,
    samples: int = 4000,
    shards: int = 8,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Path:
    """Make the data set below `directory`, or find it made; returns the path of its manifest.

    Some 2 ms a sample on a core, 60 kB each. progress: called with the samples done, from this thread. Not for a running event
    loop. Raises ConfigInvalid (a directory with other things in it) or DiskFull.
    """
    if not 1 <= shards <= samples <= barcode.MAX_ID:
        raise ConfigInvalid(f"{samples} samples in {shards} shards: at least one in each, at most {barcode.MAX_ID} in all")
    recipe = Recipe(samples, shards, seed)
    made = _made_before(directory, recipe)
    if made is not None:
        progress(samples)
        return made
    _clear(directory)
    bounds = np.linspace(0, samples, shards + 1).astype(int).tolist()
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="headrace-demo") as threads:
        for shard in range(shards):
            ids = range(bounds[shard], bounds[shard + 1])
            _write_tar(directory / f"photos-{shard:04d}.tar", ids, seed, threads, progress)
    progress(samples)
    manifest = asyncio.run(build_index(str(directory)))
    write_atomic(directory / RECIPE_FILE, json.dumps(asdict(recipe)).encode())
    return directory / manifest.file_name


def class_of(sample_id: int, seed: int = 0) -> int:
    """Class of a sample: drawn, so that no shard is sorted by class."""
    return int(np.random.default_rng([seed, sample_id]).integers(len(photos.CLASSES)))


def encode_sample(sample_id: int, seed: int = 0) -> bytes:
    """One JPEG with its id drawn in; a function of its arguments alone."""
    rng = np.random.default_rng([seed, sample_id])
    pixels = photos.random_crop(photos.CLASSES[int(rng.integers(len(photos.CLASSES)))], rng)
    if rng.random() < GRAY_SHARE:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    image = Image.fromarray(barcode.draw(pixels, sample_id))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=int(rng.integers(*QUALITIES)), progressive=bool(rng.random() < PROGRESSIVE_SHARE))
    return out.getvalue()


def _write_tar(path: Path, ids: range, seed: int, threads: ThreadPoolExecutor, progress: Callable[[int], None]) -> None:
    try:
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample_id, jpeg in zip(ids, threads.map(lambda i: encode_sample(i, seed), ids), strict=True):
                _add(tar, f"{sample_id:07d}.jpg", jpeg)
                _add(tar, f"{sample_id:07d}.cls", b"%d\n" % class_of(sample_id, seed))
                if sample_id % 20 == 19:
                    progress(sample_id + 1)
    except OSError as error:
        raise translate(error, path) from error


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _made_before(directory: Path, recipe: Recipe) -> Path | None:
    """Path of the manifest if that very recipe was finished there."""
    try:
        if json.loads((directory / RECIPE_FILE).read_text()) != asdict(recipe):
            return None
        manifest = asyncio.run(load_manifest(str(directory)))
        whole = all((directory / shard.name).stat().st_size == shard.bytes for shard in manifest.shards)
    except (OSError, ValueError, HeadraceError):
        return None  # unfinished, or not ours: made anew
    return directory / manifest.file_name if whole else None


def _clear(directory: Path) -> None:
    """Remove an earlier, other recipe's files, and nothing that is not ours."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.iterdir()):
            if path.name == RECIPE_FILE or path.match("photos-*.tar") or path.match("manifest*.json"):
                path.unlink()
            elif path.name == ".index":
                shutil.rmtree(path)
            elif not path.name.startswith("."):
                raise ConfigInvalid(
                    f"{directory} holds {path.name}, which is not the demo's: choose another --out", path=str(path)
                )
    except OSError as error:
        raise translate(error, directory) from error
