"""Workers whose GPU is lost, played without one: each ends, is started anew, and no rank hears of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.cluster import Cluster
from tests.integration.bad_input_rig import Seen, assert_no_trace, indexed, open_job, write_shards

SAMPLES = 400
LOST_AFTER = 12  # batches of 8: each worker ends some times

pytestmark = pytest.mark.timeout(180)


class Supervisor:
    """Starts workers that ended again, as a Deployment does. ends: (worker, exit status) of each."""

    def __init__(self, fleet: Cluster) -> None:
        self.ends: list[tuple[str, int | None]] = []
        self._fleet = fleet
        self._over = threading.Event()

    def watch(self) -> None:
        while not self._over.wait(0.05):
            for number, member in enumerate(self._fleet.workers):
                if not member.running.alive:
                    self.ends.append((member.name, member.running.popen.returncode))
                    self._fleet.restart_worker(number)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_workers_whose_gpu_is_lost_end_and_no_batch_is_lost(tmp_path: Path, transport: str) -> None:
    write_shards(tmp_path / "set", 2, SAMPLES // 2)
    dataset = indexed(tmp_path / "set")
    slow = json.dumps({"delays": [], "gpu_lost_after": LOST_AFTER})
    with Cluster(tmp_path, workers=2, worker_module="headrace.testing.slow_worker", worker_args=("--slow", slow)) as fleet:
        supervisor = Supervisor(fleet)
        job = open_job(fleet, "job", dataset)
        with supervisor.at_work(), job.stream(epochs=1, transport=transport, wait_deadline_s=40) as stream:  # type: ignore[arg-type]
            seen = Seen()
            begun_s = time.monotonic()
            for batch in stream:
                seen.take(batch)
            took_s = time.monotonic() - begun_s
        assert sorted(seen.ids) == list(range(SAMPLES))
        logs = fleet.logs()
    assert len(supervisor.ends) >= 2 and {status for _, status in supervisor.ends} == {1}, supervisor.ends
    told = "".join(logs.values())
    assert told.count("lanes_handed_back=True") + told.count('"lanes_handed_back": true') >= 2, "no lease had to run out"
    assert told.count("gpu_lost") >= 2 and "batch_failed" not in told
    assert_no_trace(logs.items())
    assert took_s < 40 * len(supervisor.ends)
