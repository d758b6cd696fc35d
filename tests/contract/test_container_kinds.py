"""Every kind of container of docs/decode_contract.md: indexed, read back, and decoded by every engine that runs here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from headrace.core.batch import BAD_REASONS
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.datasets.build import IndexOptions, build_report
from headrace.datasets.report import IndexReport
from headrace.testing.container_kinds import ROWS, SIDE, ContainerKind, container_kinds, pixels
from headrace.worker.engines.protocol import Engine
from headrace.worker.sources.protocol import ReadBatch
from headrace.worker.sources.sharded import open_source
from tests.contract.engine_entries import Entry

SPEC = PipelineSpec(ops=(CenterCrop((SIDE, SIDE)),))
KINDS = container_kinds()


async def indexed(directory: Path, options: IndexOptions) -> tuple[IndexReport, ReadBatch]:
    report = await build_report(str(directory), options)
    source = await open_source(str(directory))
    try:
        return report, await source.read(range(source.samples))
    finally:
        await source.close()


@pytest.mark.parametrize("checksums", [False, True], ids=["plain", "checksums"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.row}-{kind.name}".replace(" ", "_"))
def test_each_container_gives_its_samples(
    kind: ContainerKind, checksums: bool, engine: Engine, entry: Entry, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    kind.build(root)
    there = set(tmp_path.rglob("*"))
    options = IndexOptions(checksums=checksums, **kind.options)
    if kind.error is not None:
        with pytest.raises(kind.error) as caught:
            asyncio.run(build_report(str(root), options))
        assert all(word in str(caught.value) for word in kind.says), caught.value
        assert not list(tmp_path.rglob("manifest*")), "no data set comes of it"
        return
    report, batch = asyncio.run(indexed(root, options))
    told = "\n".join([*report.tally.warnings, *(" ".join(detail) for detail in report.tally.details)])
    assert all(word in told for word in kind.says), told
    assert kind.says or not report.tally.warnings, "a word about what is as it should be"
    slot = bytearray(SPEC.pixel_bytes(len(batch.samples)))
    prepared = engine.prepare(SPEC, 1)
    result = prepared.run(batch.samples, [(0, i) for i in range(len(batch.samples))], memoryview(slot))
    prepared.close()
    images = np.frombuffer(slot, np.uint8).reshape(SPEC.shape(len(batch.samples)))
    found = {}
    for row, sample in enumerate(batch.samples):
        reason = BAD_REASONS[result.reasons[row]]
        wanted = kind.samples.get(sample.key)
        if reason == "none" and isinstance(wanted, int):
            assert np.abs(images[row].astype(int) - pixels(wanted)).mean() <= entry.decode_levels, (
                f"not the image of {sample.key!r}"
            )
        found[sample.key] = wanted if reason == "none" else reason
    assert found == dict(kind.samples)
    assert len(batch.samples) == len(found) == report.manifest.samples
    if batch.labels is not None and kind.labels:
        labels = dict(zip([sample.key for sample in batch.samples], batch.labels.tolist(), strict=True))
        assert {key: labels[key] for key in kind.labels} == dict(kind.labels)
    beside = {path for path in set(tmp_path.rglob("*")) - there if root not in path.parents}
    assert not beside, "nothing is written outside of the data set"


def test_each_row_is_tried() -> None:
    assert {kind.row for kind in KINDS} == set(ROWS)
    assert len({(kind.row, kind.name) for kind in KINDS}) == len(KINDS)
