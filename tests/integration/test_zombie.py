"""A worker that was stopped past its lease, wakes up and sends its batches is refused by its token; nothing is taken twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.testing.audit import Seen, audit_epoch
from headrace.testing.barcode import read_batch
from headrace.testing.chaos.links import Links
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from tests.integration.bad_input_rig import admin, until

SAMPLES, BATCH = 256, 8
ZOMBIE = "worker-0"

pytestmark = pytest.mark.timeout(300)


class Taker:
    """A training by hand: takes batches one by one and remembers the ids in their pixels."""

    def __init__(self, stream: headrace.Stream) -> None:
        self._batches = iter(stream)
        self.seen: list[Seen] = []
        self.taken = 0

    def take(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            return False
        ids = np.asarray(read_batch(np.asarray(batch.pixels)), np.int64)
        self.seen.append(Seen(ids[batch.mask], np.empty(0, np.int64), int((~batch.mask).sum())))
        self.taken += 1
        return True


def owners(fleet: Cluster, job: str) -> dict[int, str]:
    """Lane -> worker."""
    return {each["lane"]: each["worker"] for each in admin(fleet, f"/api/jobs/{job}")["lane_owners"]}


def shared_out(fleet: Cluster, job: str) -> Callable[[], bool]:
    return lambda: sorted(set(owners(fleet, job).values())) == ["worker-0", "worker-1"]


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_zombie_is_refused_by_its_token(tmp_path: Path, transport: str) -> None:
    dataset = make_demo_dataset(tmp_path / "set", samples=SAMPLES, shards=2)
    job_name = f"zombie-{transport}"
    with Links("zombie") as links, Cluster(tmp_path, workers=2, route=links.route) as fleet:
        until(lambda: len(admin(fleet, "/api/workers")) == 2, "both workers are known, which makes the window 4")
        with headrace.connect(fleet.addresses) as client:
            pipeline = PipelineSpec(ops=(CenterCrop((224, 224)),))
            job = client.job(job_name, dataset=dataset, batch_size=BATCH, pipeline=pipeline, tail="pad")
        with job.stream(epochs=1, transport=transport, wait_deadline_s=60) as stream:  # type: ignore[arg-type]
            taker = Taker(stream)
            lanes = stream.join().lanes
            window = stream.join().window
            until(shared_out(fleet, job_name), "both workers have lanes")
            before = owners(fleet, job_name)
            # In hand: index n - 1. Asking for n releases it, and so admits n - 1 + window, which shall be the zombie's, as one
            # that is here and waits shall be: its link stays up for that.
            while not (
                taker.taken > lanes
                and before[(taker.taken - 1 + window) % lanes] == ZOMBIE
                and any(before[index % lanes] == ZOMBIE for index in range(taker.taken + 1, taker.taken - 1 + window))
            ):
                assert taker.take()
            until(lambda: len(_here(stream)) == window, "the window is full")
            refused = stream.stats().refused
            fleet.kill_worker(0, signal.SIGSTOP)
            until(lambda: ZOMBIE not in owners(fleet, job_name).values(), "its lanes have moved")
            until(lambda: ZOMBIE not in stream._link.intake._arrivals.owners, "the rank knows")  # type: ignore[union-attr]
            for (source, _), proxy in links.proxies.items():
                if source == ZOMBIE:
                    proxy.blackhole()  # it wakes up, and nobody tells it
            # Were the new owner the faster one, the zombie's batch would be one that is there already, and not even looked at.
            fleet.kill_worker(1, signal.SIGSTOP)
            fleet.kill_worker(0, signal.SIGCONT)
            assert taker.take()
            until(lambda: stream.stats().refused > refused, "a batch is refused")
            fleet.kill_worker(1, signal.SIGCONT)
            for proxy in links.proxies.values():
                proxy.heal()
            while taker.take():
                pass
            stats = stream.stats()
        assert "Traceback" not in "".join(fleet.logs().values())
    assert stats.batches == SAMPLES // BATCH
    audit = audit_epoch(0, SAMPLES, 0, taker.seen)
    assert audit.clean, audit


def _here(stream: headrace.Stream) -> tuple[int, ...]:
    """Indexes that have arrived and are not released."""
    time.sleep(0.05)
    link = stream._link
    assert link is not None
    with link.intake._lock:  # type: ignore[attr-defined]
        link.intake._connections.read_local(time.monotonic())  # type: ignore[attr-defined]
        return link.intake._arrivals.have()  # type: ignore[attr-defined,no-any-return]
