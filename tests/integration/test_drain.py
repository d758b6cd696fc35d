"""SIGTERM to a worker: what is nearly done is finished, its lanes go to the others at once, and it ends in time."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headrace.testing.cluster import Cluster
from tests.integration.bad_input_rig import Seen, admin, assert_no_trace, indexed, open_job, until, write_shards

SAMPLES = 160

pytestmark = pytest.mark.timeout(180)


def slow(decode_s: float) -> tuple[str, ...]:
    delay = {"stage": "decode", "seconds": decode_s, "since": 6, "until": 10**6, "ranks": []}
    return ("--slow", json.dumps({"delays": [delay]}))


def owners(fleet: Cluster, job: str) -> set[str]:
    return {each["worker"] for each in admin(fleet, f"/api/jobs/{job}")["lane_owners"]}


def not_ready(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


@pytest.mark.parametrize("transport", ["shm", "grpc"])
@pytest.mark.parametrize("decode_s", [0.3, 8.0])
def test_a_worker_that_is_told_to_leave(tmp_path: Path, transport: str, decode_s: float) -> None:
    """0.3 s a batch: what it is at is finished. 8 s: ranks would wait for all its lanes; others make it, and nobody waits."""
    write_shards(tmp_path / "set", 2, SAMPLES // 2)
    dataset = indexed(tmp_path / "set")
    with Cluster(tmp_path, workers=2, worker_module="headrace.testing.slow_worker", worker_args=slow(decode_s)) as fleet:
        until(lambda: len(admin(fleet, "/api/workers")) == 2, "both workers are known")
        job = open_job(fleet, "job", dataset)
        leaving = fleet.workers[0]
        with job.stream(epochs=1, transport=transport, wait_deadline_s=60) as stream:  # type: ignore[arg-type]
            batches, seen = iter(stream), Seen()
            for _ in range(4):
                seen.take(next(batches))
            until(lambda: owners(fleet, "job") == {"worker-0", "worker-1"}, "both have lanes")
            until(lambda: _making(leaving.admin_address), "it is at a batch")
            told_s = time.monotonic()
            leaving.kill(signal.SIGTERM)
            until(lambda: "drains" in not_ready(leaving.admin_address), "it says so", 1.0)
            until(lambda: owners(fleet, "job") == {"worker-1"}, "its lanes are the other's", 6.0)
            assert leaving.running.wait(15.0) == 0
            left_s = time.monotonic() - told_s
            fleet.workers[1].kill(signal.SIGKILL)  # all that is slow ends here
            fleet.workers[1].module, fleet.workers[1].arguments = "headrace", fleet.workers[1].arguments[: -len(slow(0.0))]
            fleet.restart_worker(1)
            for batch in batches:
                seen.take(batch)
        assert sorted(seen.ids) == list(range(SAMPLES))
        assert left_s < 7.0, "it did not wait for a batch that another worker makes"
        log = leaving.log.read_text()
        assert '"lanes_handed_back": true' in log
        assert ("left_at_work" in log) is (decode_s > 1)
        assert_no_trace(fleet.logs().items())


def _making(address: str) -> bool:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return any(line.startswith("headrace_batches_in_flight") and float(line.split()[-1]) > 0 for line in lines)
