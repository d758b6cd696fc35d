"""The soak's data set: small, each sample's id drawn in as a barcode, one in a hundred bad."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import ColorJitter, HorizontalFlip, PipelineSpec, RandomResizedCrop
from headrace.datasets.build import build_index
from headrace.testing.demo_dataset import class_of, encode_sample
from headrace.testing.image_kinds import bad_kinds
from headrace.testing.tars import write_tar

SAMPLES = 300
SHARDS = 3
BATCH_SIZE = 12
BAD_IDS = frozenset(range(50, SAMPLES, 100))  # 1%


def make_dataset(directory: Path) -> Path:
    """Write and index it; returns the manifest's path. About a second."""
    kinds = bad_kinds()
    each = SAMPLES // SHARDS
    for shard in range(SHARDS):
        members: list[tuple[str, bytes]] = []
        for number in range(shard * each, (shard + 1) * each):
            bad = kinds[number * 7 % len(kinds)].data if number in BAD_IDS else None
            members += [
                (f"{number:07d}.jpg", encode_sample(number) if bad is None else bad),
                (f"{number:07d}.cls", b"%d\n" % class_of(number)),
            ]
        write_tar(directory / f"photos-{shard:04d}.tar", members)
    return directory / asyncio.run(build_index(str(directory))).file_name


def job_spec(name: str, dataset: Path, seed: int) -> JobSpec:
    """A job on it. Jobs that differ in name only have the same batches, which the soak checks."""
    crop = RandomResizedCrop((224, 224), scale=(0.35, 1.0))
    pipeline = PipelineSpec(ops=(crop, HorizontalFlip(), ColorJitter(brightness=0.05)))
    return JobSpec(name, str(dataset), BATCH_SIZE, pipeline, seed=seed, tail="pad")
