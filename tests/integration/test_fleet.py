"""The promises on a fleet of real processes: exactly once and bit-identical, whatever serves, dies or moves.

One reference run (one worker, shared memory, nothing broken) gives the hash of every batch: pixels, ids, labels, mask, taken
in the trainer's process. Every other run must give the same, and its audit, by the barcodes in the pixels, must be clean.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.epoch_plan import EpochPlan, batch_count
from headrace.core.job import JobSpec, Shuffle
from headrace.core.pipeline_spec import CenterCrop, ColorJitter, HorizontalFlip, PipelineSpec, RandomResizedCrop, Resize
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.job_run import RunResult, StepEvent, run_job

SAMPLES = 900
BATCH = 32
EPOCHS = 2
DEADLINE_S = 150.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_dataset(tmp_path_factory.mktemp("data") / "set", samples=SAMPLES, shards=3)


@pytest.fixture(scope="module")
def job(dataset: Path) -> JobSpec:
    pipeline = PipelineSpec(
        ops=(RandomResizedCrop((224, 224), scale=(0.35, 1.0)), HorizontalFlip(), ColorJitter(brightness=0.05))
    )
    return JobSpec("fleet", str(dataset), BATCH, pipeline, seed=7, tail="pad")


def run(
    cluster: Cluster,
    job: JobSpec,
    out: Path,
    transports: list[str],
    on_step: Callable[[StepEvent], None] = lambda event: None,
    *,
    epochs: int = EPOCHS,
    **task: object,
) -> RunResult:
    return run_job(
        job,
        cluster.addresses,
        transports,
        out,
        samples=SAMPLES,
        dropped=0,
        epochs=epochs,
        deadline_s=DEADLINE_S,
        on_step=on_step,
        **task,
    )


@pytest.fixture(scope="module")
def reference(job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], str]:
    """Hash of every batch of both epochs."""
    directory = tmp_path_factory.mktemp("reference")
    with Cluster(directory, workers=1) as cluster:
        result = run(cluster, job, directory / "ranks", ["shm", "shm"])
    assert result.clean, result.audits
    batches = batch_count(SAMPLES, BATCH, job.tail)
    assert {batch for _, batch in result.hashes} >= set(range(batches))
    return result.hashes


class Once:
    """Calls `fault` when any rank is in the middle of the second epoch, once."""

    def __init__(self, fault: Callable[[], None]) -> None:
        self._fault = fault
        self.done = False

    def __call__(self, event: StepEvent) -> None:
        if not self.done and event.epoch == 1 and event.step >= event.steps // 3:
            self.done = True
            self._fault()


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("transports", [["shm", "shm"], ["grpc", "grpc"]], ids=["shm", "grpc"])
def test_batches_are_the_same_for_any_fleet(
    job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path, workers: int, transports: list[str]
) -> None:
    with Cluster(tmp_path, workers=workers) as cluster:
        result = run(cluster, job, tmp_path / "ranks", transports)
    assert result.clean, result.audits
    assert result.hashes == reference


def kill_worker(cluster: Cluster) -> None:
    cluster.kill_worker(0)
    cluster.add_worker(wait=False)


def drain_worker(cluster: Cluster) -> None:
    cluster.kill_worker(0, signal.SIGTERM)


def pause_worker_past_its_lease(cluster: Cluster) -> None:
    cluster.kill_worker(0, signal.SIGSTOP)
    threading.Timer(6.0, cluster.kill_worker, (0, signal.SIGCONT)).start()


def restart_coordinator(cluster: Cluster) -> None:
    cluster.restart_coordinator(0)


def kill_one_coordinator_for_good(cluster: Cluster) -> None:
    cluster.kill_coordinator(0)


def restart_store(cluster: Cluster) -> None:
    cluster.restart_store()


def restart_store_without_its_last_second(cluster: Cluster) -> None:
    assert cluster.restart_store(cut_last_second=True) > 0


def store_away_for_a_while(cluster: Cluster) -> None:
    cluster.kill_store()
    time.sleep(4)
    cluster.restart_store()


FAULTS = [
    kill_worker,
    drain_worker,
    pause_worker_past_its_lease,
    restart_coordinator,
    kill_one_coordinator_for_good,
    restart_store,
    restart_store_without_its_last_second,
    store_away_for_a_while,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_exactly_once_and_the_same_batches_through(
    fault: Callable[[Cluster], None], job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path
) -> None:
    with Cluster(tmp_path, workers=2, coordinators=2) as cluster:
        once = Once(lambda: fault(cluster))
        result = run(cluster, job, tmp_path / "ranks", ["auto", "grpc"], once, step_s=0.02)
        logs = cluster.logs()
    assert once.done
    assert result.clean, result.audits
    assert result.hashes == reference
    assert not [name for name, text in logs.items() if "Traceback" in text], logs


@pytest.mark.parametrize("down", ["coordinator", "store"])
def test_an_outage_moves_no_lane_and_remakes_nothing(
    down: str, job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path
) -> None:
    with Cluster(tmp_path, workers=2, coordinators=1) as cluster:

        def fault() -> None:
            before.append(seen())  # the second worker to come took lanes from the first, and may have remade a batch
            if down == "coordinator":
                cluster.kill_coordinator(0)
            else:
                cluster.kill_store()
            time.sleep(5)  # longer than a worker that is silent counts as alive
            if down == "coordinator":
                cluster.restart_coordinator(0)
            else:
                cluster.restart_store()

        def seen() -> tuple[int, int]:
            address = f"http://{cluster.coordinators[0].admin_address}/api/jobs/{job.name}"
            with urllib.request.urlopen(address, timeout=10) as answer:
                found = json.load(answer)
            return found["lanes_moved"], found["batches_remade"]

        before: list[tuple[int, int]] = []

        def on_step(event: StepEvent) -> None:
            if not before and event.step >= 5:  # 12 s before the end
                fault()

        result = run(cluster, job, tmp_path / "ranks", ["shm", "grpc"], on_step, step_s=0.5)
        after = seen()
    assert result.clean, result.audits
    assert result.hashes == reference
    assert after == before[0]


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_world_size_may_change_within_an_epoch(job: JobSpec, tmp_path: Path, tail: str) -> None:
    """2 ranks, then 3, then 1, each resumed from the state of the one before: every sample once but for the counted drop."""
    job = replace(job, name=f"resize-{tail}", tail=tail)  # type: ignore[arg-type]
    phases = [(["shm", "grpc"], 5), (["grpc", "shm", "shm"], 3), (["shm"], 0)]
    ids: list[int] = []
    hashes: dict[tuple[int, int], str] = {}
    state = None
    with Cluster(tmp_path, workers=2) as cluster:
        for number, (transports, steps) in enumerate(phases):
            result = run_job(
                job, cluster.addresses, transports, tmp_path / f"ranks-{number}", samples=SAMPLES, dropped=0, epochs=1,
                deadline_s=DEADLINE_S, state=state, stop_after=steps, commit=False,
            )  # fmt: skip
            assert all(other == result.states[0] for other in result.states)
            state = result.states[0]
            assert not set(hashes) & set(result.hashes)
            hashes |= result.hashes
            ids += result.planned[0].tolist()
    plan = EpochPlan(SAMPLES, BATCH, job.seed, 0, job.shuffle, job.tail)
    dropped = SAMPLES - plan.batches * BATCH if tail == "drop" else 0
    assert len(ids) == len(set(ids)) == SAMPLES - dropped
    assert {batch for _, batch in hashes} >= set(range(plan.batches))
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 0)


def test_a_killed_trainer_goes_on_from_what_was_committed(
    job: JobSpec, reference: dict[tuple[int, int], str], tmp_path: Path
) -> None:
    """Without a state the next attempt begins after the least committed batch, and gets the very same batches."""
    job = replace(job, name="fleet")
    with Cluster(tmp_path, workers=2) as cluster:
        first = run(cluster, job, tmp_path / "first", ["shm", "grpc"], stop_after=[6, 4])
        second = run_job(
            job,
            cluster.addresses,
            ["grpc", "shm"],
            tmp_path / "second",
            samples=SAMPLES,
            dropped=0,
            epochs=EPOCHS,
            deadline_s=DEADLINE_S,
        )
    begun = min(batch for epoch, batch in second.hashes if epoch == 0)
    assert begun == 4 * 2
    assert {**first.hashes, **second.hashes} == reference
    ids = np.concatenate([second.planned[1]])
    assert sorted(ids) == list(range(SAMPLES))


def test_an_evaluation_shares_the_worker_with_a_training(job: JobSpec, tmp_path: Path) -> None:
    """Neither starves the other; the evaluation comes in manifest order with nothing dropped."""
    evaluation = replace(
        job,
        name="eval",
        pipeline=PipelineSpec(ops=(Resize(256), CenterCrop((224, 224)))),
        shuffle=Shuffle(mode="none"),
        tail="pad",
    )
    order: list[str] = []
    training: list[RunResult] = []
    with Cluster(tmp_path, workers=1) as cluster:

        def train() -> None:
            # Long enough to go on when the evaluation has begun, which first has to import what it needs.
            training.append(run(cluster, job, tmp_path / "train", ["shm"], lambda event: order.append("train"), epochs=6))

        thread = threading.Thread(target=train)
        thread.start()
        while len(order) < 4:
            time.sleep(0.05)
        result = run_job(
            evaluation,
            cluster.addresses,
            ["shm"],
            tmp_path / "eval",
            samples=SAMPLES,
            dropped=0,
            epochs=1,
            deadline_s=DEADLINE_S,
            on_step=lambda event: order.append("eval"),
        )
        thread.join(DEADLINE_S)
    assert training and training[0].clean
    assert result.clean, result.audits
    assert result.planned[0].tolist() == list(range(SAMPLES))
    # While the evaluation ran, the training had its share too, and did not have to end first.
    first, last = order.index("eval"), len(order) - 1 - order[::-1].index("eval")
    during = order[first:last].count("train")
    assert during >= 5
    assert order[last:].count("train") >= 5
