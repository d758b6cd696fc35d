"""The demo's data set: the same each time, kept when made, and its ids are those of the manifest."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.core.errors import ConfigInvalid
from headrace.datasets.manifest import load_manifest
from headrace.testing import barcode, photos
from headrace.testing.demo_dataset import class_of, make_demo_dataset
from headrace.worker.sources.protocol import ReadBatch
from headrace.worker.sources.sharded import open_source


def read_all(manifest: Path) -> ReadBatch:
    async def read() -> ReadBatch:
        source = await open_source(str(manifest))
        try:
            return await source.read(range(source.samples))
        finally:
            await source.close()

    return asyncio.run(read())


def test_ids_in_the_pixels_are_the_manifests(tmp_path: Path) -> None:
    seen: list[int] = []
    path = make_demo_dataset(tmp_path, samples=150, shards=4, progress=seen.append)
    assert seen[-1] == 150 and seen == sorted(seen)
    manifest = asyncio.run(load_manifest(str(path)))
    assert (manifest.samples, len(manifest.shards), manifest.num_classes, manifest.bad) == (150, 4, 10, 0)
    batch = read_all(path)
    images = [Image.open(io.BytesIO(sample.data or b"")) for sample in batch.samples]
    pixels = np.stack([np.asarray(image.convert("RGB").resize((224, 224))) for image in images])
    assert barcode.read_batch(pixels).tolist() == list(range(150))
    assert batch.labels is not None and batch.labels.tolist() == [class_of(i) for i in range(150)]
    assert {image.mode for image in images} == {"RGB", "L"}
    assert any(image.info.get("progressive") for image in images)


def test_made_once_and_the_same_from_the_same_seed(tmp_path: Path) -> None:
    first = make_demo_dataset(tmp_path / "a", samples=30, shards=2)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert make_demo_dataset(tmp_path / "a", samples=30, shards=2) == first
    assert times == {path: path.stat().st_mtime_ns for path in times}, "found made"
    assert make_demo_dataset(tmp_path / "b", samples=30, shards=2).name == first.name
    assert make_demo_dataset(tmp_path / "b", samples=30, shards=2, seed=1).name != first.name
    (tmp_path / "a" / "photos-0001.tar").write_bytes(b"")
    assert make_demo_dataset(tmp_path / "a", samples=30, shards=2) == first, "an unfinished one is made anew"
    assert read_all(first).samples[29].data


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigInvalid, match=r"thesis\.txt"):
        make_demo_dataset(tmp_path, samples=8, shards=2)
    assert (tmp_path / "thesis.txt").exists()
    with pytest.raises(ConfigInvalid):
        make_demo_dataset(tmp_path / "x", samples=3, shards=4)


def test_all_photos_are_in_the_wheels() -> None:
    for name in photos.CLASSES:
        photo = photos.load_photo(name)
        assert photo.ndim == 3 and min(photo.shape[:2]) >= 300 and photo.std() > 10
