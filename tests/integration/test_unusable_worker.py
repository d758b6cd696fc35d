"""A fleet with a worker that lives and beats, but that a trainer cannot reach: its lanes go to the other one."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

import headrace
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.datasets.build import build_index
from headrace.testing.cluster import Cluster
from headrace.testing.processes import free_address

SAMPLES = 96
BATCH = 4
SIDE = 8
LAG_S = 2.0


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """A folder of small PNGs."""
    root = tmp_path / "dataset"
    (root / "class0").mkdir(parents=True)
    for number in range(SAMPLES):
        Image.new("RGB", (SIDE, SIDE), (number, number, number)).save(root / "class0" / f"{number:04d}.png")
    asyncio.run(build_index(str(root)))
    return str(root)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers; the second advertises an address that nobody listens on, and its socket is gone."""
    cluster = Cluster(tmp_path, workers=2, coordinator_args=["--lag-s", str(LAG_S)])
    arguments = cluster.workers[1].arguments
    sockets = tempfile.mkdtemp(prefix="headrace-")  # not in tmp_path: a socket's path must be short
    for flag, value in (("--advertise", free_address()), ("--socket-dir", sockets)):
        arguments[arguments.index(flag) + 1] = value
    with cluster:
        shutil.rmtree(sockets)
        yield cluster


@pytest.mark.parametrize("world", [1, 2])
def test_every_batch_comes_although_one_worker_cannot_be_reached(fleet: Cluster, dataset: str, world: int) -> None:
    registered = fleet.workers[1].running
    registered.wait_until(lambda: "registered" in fleet.logs()["worker-1"], "registered", 20)
    with headrace.connect(fleet.addresses, deadline_s=20) as client:
        pipeline = PipelineSpec((CenterCrop((SIDE, SIDE)),))
        job = client.job("job", dataset=dataset, batch_size=BATCH, pipeline=pipeline, world=world)

    def train(rank: int) -> tuple[list[int], set[str], headrace.StreamStats]:
        seen: list[int] = []
        workers: set[str] = set()
        with job.stream(rank=rank, world=world, epochs=2, wait_deadline_s=60) as stream:
            for _ in stream.epochs():
                for batch in stream:
                    seen += batch.sample_ids.tolist()
                    workers.add(batch.worker)
            return seen, workers, stream.stats()

    with ThreadPoolExecutor(world) as pool:
        ranks = list(pool.map(train, range(world)))
    assert sorted(sample for seen, _, _ in ranks for sample in seen) == sorted(2 * list(range(SAMPLES)))
    assert {worker for _, workers, _ in ranks for worker in workers} == {"worker-0"}
    assert "unreached" in fleet.logs()["coordinator-0"], "it had lanes at first"
    for _, _, stats in ranks:
        assert stats.wait_s == pytest.approx(sum(stats.wait_s_by_cause.values()))
