"""An upgrade whose decoders differ, as the chart does it: workers with the variables of its classes, on a real fleet.

The old class is marked `retiring` and rolled; it serves the training that began with it to its end, and no new one.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.client.stream import Stream
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.worker.engines.registry import create
from tests.chart.helm import containers, pods, with_values
from tests.chart.test_settings import env_of

BEFORE = "workers: {cpu: {engine: cpu-libs}}"
AFTER = "workers: {cpu: {engine: cpu-libs, retiring: true}, cpu-b: {engine: cpu}}"
OLD, NEW = "demo-headrace.cpu", "demo-headrace.cpu-b"
FAST = ("--scaling-interval-s", "1", "--session-idle-s", "1", "--tick-s", "0.2")
DEADLINE_S = 60.0


def flags(values: str, owner: str) -> list[str]:
    """What a class's pods are told of themselves, as flags."""
    (container,) = [c for name, _, spec in pods(with_values(values)) if name.endswith(owner) for c in containers(spec)]
    env = env_of(container)
    retiring = "--retiring" if env["HEADRACE_WORKER_RETIRING"] == "true" else "--no-retiring"
    return ["--pool", env["HEADRACE_WORKER_POOL"], "--engine", env["HEADRACE_WORKER_ENGINE"], retiring]


class Fleet:
    """What the tests ask and do."""

    def __init__(self, cluster: Cluster, dataset: str) -> None:
        self.cluster = cluster
        self.dataset = dataset

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.cluster.coordinators[0].admin_address}/api/{path}", timeout=20) as answer:
            return json.load(answer)

    def train(self, name: str) -> Stream:
        with headrace.connect(self.cluster.addresses) as client:
            job = client.job(name, dataset=self.dataset, batch_size=4)
        return job.stream()

    def pools_of(self, job: str) -> set[str]:
        """Of the workers that hold its lanes."""
        pool = {worker["worker"]: worker["pool"] for worker in self.ask("workers")}
        return {pool[lane["worker"]] for lane in self.ask(f"jobs/{job}")["lane_owners"] if lane["worker"]}

    def wanted(self) -> dict[str, int]:
        return {each["pool"]: each["workers_desired"] for each in self.ask("scaling")}

    def until(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not ready():
            assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}; wanted {self.wanted()}"
            time.sleep(0.1)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    if create("cpu", 1).fingerprint == create("cpu-libs", 1).fingerprint:
        pytest.skip(
            "the native core is not built here, so that both engines are one: a C compiler and libjpeg's headers are needed"
        )
    dataset = make_demo_dataset(tmp_path / "data", samples=200, shards=2)
    with Cluster(tmp_path / "fleet", workers=0, coordinator_args=FAST) as cluster:
        yield Fleet(cluster, str(dataset))


def taken(stream: Stream, batches: int) -> int:
    """Train for so many batches, over epochs without end."""
    count = 0
    while count < batches:
        for batch in stream:
            count += len(batch) > 0
            if count == batches:
                break
    return count


def test_the_old_class_serves_its_training_to_its_end_and_the_new_class_the_new_one(fleet: Fleet) -> None:
    cluster = fleet.cluster
    for _ in range(2):
        cluster.add_worker(more=flags(BEFORE, "-worker-cpu"))
    with fleet.train("old") as old:
        assert taken(old, 5) == 5
        assert fleet.pools_of("old") == {OLD}
        bound = fleet.ask("jobs/old")["fingerprint"]
        # `helm upgrade`: the new class comes, and the old one's pods go one by one, each after its successor is there.
        for _ in range(2):
            cluster.add_worker(more=flags(AFTER, "-worker-cpu-b"))
        for number in range(2):
            cluster.add_worker(more=flags(AFTER, "-worker-cpu"))
            cluster.kill_worker(number, 15)
            assert taken(old, 5) == 5
        fleet.until(lambda: sum(worker["live"] for worker in fleet.ask("workers")) == 4, "the old pods have gone")
        with fleet.train("new") as new:
            assert taken(new, 5) == 5
            assert taken(old, 5) == 5
            assert (fleet.pools_of("old"), fleet.pools_of("new")) == ({OLD}, {NEW})
            assert fleet.ask("jobs/old")["fingerprint"] == bound != fleet.ask("jobs/new")["fingerprint"]
            fleet.until(lambda: min(fleet.wanted().values()) >= 1, "both classes are wanted")
            old.close()
            fleet.until(lambda: taken(new, 1) == 1 and fleet.wanted()[OLD] == 0, "the old class is wanted no more")
            assert fleet.wanted()[NEW] >= 1
            for number in (4, 5):  # the old class is taken out of the values
                cluster.kill_worker(number, 15)
            assert taken(new, 5) == 5
