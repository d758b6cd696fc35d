"""A fleet whose ranks take batches by `cuda_ipc`, on memory of this machine that stands for a GPU.

All but the driver's calls is what runs on a GPU: worker and ranks are processes, one of which is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import HorizontalFlip, PipelineSpec, RandomResizedCrop
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.job_run import RankFailed, RunResult, StepEvent, run_job

SAMPLES, BATCH, DEADLINE_S = 408, 16, 90.0
MEMFD = {"worker_module": "headrace.testing.memfd_worker"}

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    dataset = make_demo_dataset(tmp_path_factory.mktemp("data") / "set", samples=SAMPLES, shards=2)
    pipeline = PipelineSpec(ops=(RandomResizedCrop((224, 224), scale=(0.35, 1.0)), HorizontalFlip()))
    return JobSpec("gpu", str(dataset), BATCH, pipeline, seed=7, tail="pad")


def run(
    cluster: Cluster, job: JobSpec, out: Path, transports: list[str], on_step: Callable[[StepEvent], None] = lambda _: None
) -> RunResult:
    return run_job(
        job, cluster.addresses, transports, out, samples=SAMPLES, dropped=0, epochs=1, deadline_s=DEADLINE_S, on_step=on_step,
        memfd_gpu=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference(job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], str]:
    directory = tmp_path_factory.mktemp("reference")
    with Cluster(directory, workers=1) as cluster:
        result = run(cluster, job, directory / "ranks", ["shm"])
    assert result.clean, result.audits
    return result.hashes


def test_the_pixels_are_those_of_shared_memory_also_when_a_worker_is_killed(
    job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path
) -> None:
    with Cluster(tmp_path, workers=2, worker_args=["--gpu", "0"], **MEMFD) as cluster:
        killed = []

        def on_step(event: StepEvent) -> None:
            if event.step == event.steps // 2 and not killed:
                killed.append(cluster.kill_worker(0))

        result = run(cluster, replace(job, name="killed"), tmp_path / "ranks", ["cuda_ipc", "cuda_ipc"], on_step)
    assert killed and result.clean, result.audits
    assert result.hashes == reference
    assert {rung for stats in result.stats for rung, _ in stats["transports"].values()} == {"cuda_ipc"}


def test_without_a_driver_the_ladder_goes_on_to_shared_memory_and_says_why(
    job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path
) -> None:
    """The worker is the real one, and asks the real driver, which no machine of the tests has."""
    with Cluster(tmp_path, workers=1, worker_args=["--gpu", "0"]) as cluster:
        result = run(cluster, replace(job, name="ladder"), tmp_path / "ranks", ["auto"])
        assert result.clean and result.hashes == reference
        ((rung, reason),) = result.stats[0]["transports"].values()
        assert rung == "shm" and "cuda_ipc: " in reason
        with pytest.raises(RankFailed, match="cannot be reached by cuda_ipc"):  # strict: no downgrade
            run(cluster, replace(job, name="strict"), tmp_path / "strict", ["cuda_ipc"])
