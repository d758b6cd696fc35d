"""With checksums in the index all damage is found, also what no decoder sees; and indexes of before are read as ever."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.core.batch import BAD_REASONS
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.datasets import shard_index
from headrace.datasets.build import IndexOptions, build_index
from headrace.testing.image_variants import image_variants
from headrace.testing.tars import tar_bytes, write_tar
from headrace.worker.engines.protocol import Sample
from headrace.worker.sources.sharded import open_source
from tests.contract import engine_entries

# What a shard's edges would tell already: see datasets.edges.
PAD = np.random.default_rng(3).integers(0, 256, 20_000, np.uint8).tobytes()
DAMAGE = [kind for kind in image_variants() if kind.or_decoded]


async def read(directory: Path) -> list[Sample]:
    source = await open_source(str(directory))
    try:
        return (await source.read(range(source.samples))).samples
    finally:
        await source.close()


def members(images: dict[str, bytes]) -> list[tuple[str, bytes]]:
    parts = [(f"{key}.{ending}", data) for key, image in images.items() for ending, data in (("jpg", image), ("cls", b"1"))]
    return [("0.bin", PAD), *parts, ("z.bin", PAD)]


@pytest.mark.parametrize("layout", ["tar", "folder"])
def test_damage_of_every_kind_and_format_is_a_bad_sample_by_its_checksum(layout: str, tmp_path: Path) -> None:
    sound = {kind.name: bytes(len(kind.data)) for kind in DAMAGE}  # any bytes of that length: nobody decodes them here
    damaged = {kind.name: kind.data for kind in DAMAGE}
    if layout == "tar":
        write_tar(tmp_path / "a.tar", members(sound))
    else:
        for name, data in sound.items():
            (tmp_path / f"{name}.jpg").write_bytes(data)
    asyncio.run(build_index(str(tmp_path), IndexOptions(checksums=True)))
    assert {sample.reason for sample in asyncio.run(read(tmp_path)) if sample.key not in ("0", "z")} == {"none"}
    if layout == "tar":
        assert len(tar_bytes(members(damaged))) == (tmp_path / "a.tar").stat().st_size
        write_tar(tmp_path / "a.tar", members(damaged))
    else:
        for name, data in damaged.items():
            (tmp_path / f"{name}.jpg").write_bytes(data)
    found = [sample for sample in asyncio.run(read(tmp_path)) if sample.key not in ("0", "z")]
    assert len(found) == len(DAMAGE) >= 40
    assert {(sample.reason, sample.data) for sample in found} == {("checksum", None)}


@pytest.mark.parametrize("entry", engine_entries.runnable(), ids=lambda entry: entry.name)
def test_without_them_an_engine_passes_some_of_it(entry: engine_entries.Entry) -> None:
    """Why there are checksums: should decoders ever find all damage, this test and the page's words are out of date."""
    engine = engine_entries.make(entry)
    spec = PipelineSpec(ops=(CenterCrop((8, 8)),))
    slot = memoryview(bytearray(spec.pixel_bytes(len(DAMAGE))))
    samples = [Sample(i, kind.name, kind.data) for i, kind in enumerate(DAMAGE)]
    result = engine.prepare(spec, 0).run(samples, [(0, i) for i in range(len(samples))], slot)
    engine.close()
    reasons = Counter(BAD_REASONS[code] for code in result.reasons)
    print(f"engine {entry.name}: of {len(DAMAGE)} damaged files {dict(reasons)}")
    assert reasons["none"] > 0
    assert set(reasons) <= {"none", "corrupt", "truncated"}


def test_an_index_without_checksums_has_the_same_records_and_is_read_by_the_same_reader(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", members({"k": os.urandom(500)}))
    for checksums in (False, True):
        manifest = asyncio.run(build_index(str(tmp_path), IndexOptions(checksums=checksums)))
        block = shard_index.decode_index((tmp_path / manifest.shards[0].index).read_bytes(), "index")
        assert manifest.checksums is checksums
        assert {bool(record["flags"] & shard_index.HAS_CRC) for record in block.records if record["length"]} == {checksums}
        assert manifest.shards[0].index_bytes == 64 + 40 * len(block.records) + len(block.blob)
        assert [sample.reason for sample in asyncio.run(read(tmp_path))] == ["missing_part", "none", "missing_part"]
