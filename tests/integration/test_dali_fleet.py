"""Workers with engine `dali` keep the promises, bad samples and all: equal batches from one worker and from two, one killed."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import ColorJitter, HorizontalFlip, PipelineSpec, RandomResizedCrop
from headrace.datasets.build import build_index
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.job_run import RunResult, StepEvent, run_job
from tests.contract import engine_entries

SAMPLES = 288
PIPELINE = PipelineSpec(ops=(RandomResizedCrop((224, 224), scale=(0.35, 1.0)), HorizontalFlip(), ColorJitter(brightness=0.05)))

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(engine_entries.why_not("dali")), reason=engine_entries.why_not("dali") or "it runs"),
]


def run(cluster: Cluster, job: JobSpec, out: Path, transports: list[str], on_step=lambda event: None) -> RunResult:
    return run_job(
        job, cluster.addresses, transports, out, samples=SAMPLES, dropped=0, epochs=2, deadline_s=150, on_step=on_step
    )


def damage(dataset: Path) -> int:
    """A marker in the midst of the scan of every 30th image; returns how many."""
    damaged = 0
    for shard in sorted(dataset.parent.glob("*.tar")):
        with tarfile.open(shard) as tar:
            images = [member for member in tar if member.name.endswith(".jpg")][::30]
        with shard.open("r+b") as file:
            for member in images:
                file.seek(member.offset_data + member.size // 2)
                file.write(b"\xff\xd8\xff\xd8")
        damaged += len(images)
    asyncio.run(build_index(str(dataset.parent)))
    return damaged


def test_batches_of_dali_are_the_same_from_one_worker_and_from_two_of_which_one_dies(tmp_path: Path) -> None:
    dataset = make_demo_dataset(tmp_path / "set", samples=SAMPLES, shards=3)
    damaged = damage(dataset)
    assert damaged > 10
    job = JobSpec("dali", str(dataset), 32, PIPELINE, seed=7, tail="pad")
    with Cluster(tmp_path / "one", workers=1, worker_args=("--engine", "dali")) as cluster:
        one = run(cluster, job, tmp_path / "one" / "ranks", ["shm", "shm"])
    assert one.clean, one.audits
    assert all(audit.substituted >= damaged for audit in one.audits), "each damaged sample has its substitute"
    killed = []

    def kill(event: StepEvent) -> None:
        if not killed and event.epoch == 1 and event.step >= event.steps // 3:
            killed.append(event)
            cluster.kill_worker(0)

    with Cluster(tmp_path / "two", workers=2, worker_args=("--engine", "dali")) as cluster:
        two = run(cluster, job, tmp_path / "two" / "ranks", ["shm", "grpc"], kill)
    assert killed and two.clean, two.audits
    assert one.hashes == two.hashes
    assert {batch for _, batch in one.hashes} >= set(range(SAMPLES // 32))
