"""Too many bad samples, through real services: every rank is told, and none is left waiting for another."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import headrace
from headrace.core.errors import TooManyBadSamples
from headrace.testing.cluster import Cluster
from headrace.testing.tars import write_tar
from tests.integration.bad_input_rig import BATCH, admin, indexed, open_job, sample, until

pytestmark = pytest.mark.timeout(180)
SAMPLES = 1200
DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def rotten(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of which every tenth file is a web page."""
    directory = tmp_path_factory.mktemp("rotten")
    page = b"<html>404</html>"
    write_tar(directory / "a.tar", [part for i in range(SAMPLES) for part in sample(i, data=None if i % 10 else page)])
    return indexed(directory)


class Rank(threading.Thread):
    """Takes batches in lock step with the others, as ranks do that reduce their gradients."""

    def __init__(self, job: headrace.Job, rank: int, step: threading.Barrier, step_s: float = 0.0) -> None:
        super().__init__(name=f"rank-{rank}", daemon=True)
        self._step_s = step_s
        self._stream = job.stream(rank=rank, world=step.parties, epochs=0, wait_deadline_s=DEADLINE_S)
        self._step = step
        self.steps = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._stream as stream:
                for _ in stream.epochs():
                    for _ in stream:
                        self.steps += 1
                        self._step.wait(DEADLINE_S)
                        time.sleep(self._step_s)
        except Exception as error:  # noqa: BLE001 - what it was is the test's question
            self.error = error


def test_all_ranks_stop_before_the_same_step(fleet: Cluster, rotten: str) -> None:
    job = open_job(fleet, "rotten", rotten, world=3, tail="drop")
    step = threading.Barrier(3)
    ranks = [Rank(job, rank, step) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(2 * DEADLINE_S)
        assert not rank.is_alive(), f"{rank.name} hangs after {rank.steps} steps"
    for number, rank in enumerate(ranks):
        assert isinstance(rank.error, TooManyBadSamples), rank.error
        assert "unknown_format" in rank.error.message and "headrace quarantine rotten" in rank.error.message
        assert (rank.error.rank, rank.error.index) == (number, rank.steps)
    assert len({rank.steps for rank in ranks}) == 1, "none was left in a step that the others did not take"
    assert ranks[0].steps * 3 * BATCH >= 1000
    assert "session_stops_for_bad_samples" in "".join(fleet.logs().values())
    told = admin(fleet, "/api/jobs/rotten")
    assert (told["stop_index"], told["stop_why"]) == (ranks[0].steps, ranks[0].error.message)  # type: ignore[union-attr]
    until(lambda: admin(fleet, "/api/jobs/rotten")["lanes_unowned"], "its lanes are given back")


@pytest.mark.parametrize("loss", ["store_emptied", "replica_hangs"])
def test_the_index_stays_the_same_whatever_is_lost_after_it_was_named(tmp_path: Path, rotten: str, loss: str) -> None:
    with Cluster(tmp_path, coordinators=2, workers=1) as fleet:
        job = open_job(fleet, "rotten", rotten, world=2, tail="drop")
        step = threading.Barrier(2)
        ranks = [Rank(job, rank, step, step_s=0.03) for rank in range(2)]
        for rank in ranks:
            rank.start()
        until(lambda: "session_stops_for_bad_samples" in "".join(fleet.logs().values()), "an index is named")
        if loss == "store_emptied":
            redis.Redis(port=int(fleet.store.address.rpartition(":")[2])).flushall()
        else:
            fleet.kill_coordinator(0, signal.SIGSTOP)
        try:
            for rank in ranks:
                rank.join(2 * DEADLINE_S)
                assert not rank.is_alive(), f"{rank.name} hangs after {rank.steps} steps"
        finally:
            if loss == "replica_hangs":
                fleet.kill_coordinator(0, signal.SIGCONT)
        for rank in ranks:
            assert isinstance(rank.error, TooManyBadSamples), rank.error
            assert rank.error.index == rank.steps
        assert ranks[0].steps == ranks[1].steps, "none was left in a step that the other did not take"


def test_a_world_of_one_stops_and_a_job_that_expects_it_goes_on(fleet: Cluster, rotten: str) -> None:
    with pytest.raises(TooManyBadSamples), open_job(fleet, "alone", rotten).stream(epochs=1) as stream:
        for _ in stream:
            pass
    state = stream.state_dict()
    assert stream.stats().images >= 1000
    tolerant = open_job(fleet, "tolerant", rotten, max_bad_share=0.2)
    with tolerant.stream(epochs=1, state=state) as stream:
        rest = sum(int(batch.mask.sum()) for batch in stream)
    assert rest == SAMPLES - state["step"] * BATCH, "it went on where the other stopped"
