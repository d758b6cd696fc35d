"""Two ranks that wait for each other at every step, as an all-reduce makes them, on real workers of which one is killed.

A rank that got what it needs must never be held up by another rank that did not: with few slots, a killed worker and a
barrier a step, whatever could deadlock would. The simulation (tests/simulation/test_lock_step.py) plays many seeds; this
plays a few with real processes, sockets and memory.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset

SAMPLES = 480
BATCH = 8
EPOCHS = 2
DEADLINE_S = 60.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_dataset(tmp_path_factory.mktemp("data") / "set", samples=SAMPLES, shards=2)


@pytest.mark.parametrize("round_number", range(3))
def test_ranks_in_lock_step_never_hang(dataset: Path, tmp_path: Path, seed: int, round_number: int) -> None:
    chance = random.Random(seed)
    transports = [chance.choice(["auto", "grpc"]) for _ in range(2)]
    kill_at = chance.randrange(4, SAMPLES // BATCH)
    victim = chance.randrange(2)
    barrier = threading.Barrier(2)
    seen: list[list[int]] = [[], []]
    errors: list[BaseException] = []

    # A bound of two slots a rank: the least that the window can be.
    with Cluster(tmp_path, workers=2, coordinator_args=["--max-rank-bytes", "1"]) as cluster:

        def train(rank: int) -> None:
            try:
                with headrace.connect(cluster.addresses) as client:
                    pipeline = headrace.PipelineSpec(ops=(headrace.RandomResizedCrop((64, 64)),))
                    job = client.job("lock", dataset=str(dataset), batch_size=BATCH, pipeline=pipeline, seed=seed % 1000)
                with job.stream(
                    rank=rank, world=2, epochs=EPOCHS, transport=transports[rank], wait_deadline_s=DEADLINE_S
                ) as stream:
                    assert stream.join().window == 2
                    for _ in stream.epochs():
                        for batch in stream:
                            seen[rank].extend(batch.sample_ids.tolist())
                            if rank == 0 and len(seen[0]) == kill_at * BATCH:
                                cluster.kill_worker(victim)
                            barrier.wait(DEADLINE_S)
            except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
                errors.append(error)
                barrier.abort()

        ranks = [threading.Thread(target=train, args=(rank,), name=f"rank-{rank}") for rank in range(2)]
        for thread in ranks:
            thread.start()
        end = time.monotonic() + 3 * DEADLINE_S
        for thread in ranks:
            thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in ranks), f"hangs: {transports=} {kill_at=} {victim=}"
    assert not errors, errors
    half = SAMPLES // 2
    for epoch in range(EPOCHS):
        ids = [sample for rank in range(2) for sample in seen[rank][epoch * half : (epoch + 1) * half]]
        assert sorted(ids) == list(range(SAMPLES))
