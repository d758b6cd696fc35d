"""A worker's series are bounded by the jobs that it serves, not by all that it ever served."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from headrace.core.batch import REASON_CODE
from headrace.worker.make_batch import Made
from headrace.worker.stats import _FORGET_S, WorkerStats


def jobs(stats: WorkerStats) -> set[str]:
    """Names that any series has as its job."""
    samples = (sample for family in stats.registry.collect() for sample in family.samples)
    return {sample.labels["job"] for sample in samples if "job" in sample.labels}


def work(stats: WorkerStats, job: str) -> None:
    """All that is counted by job."""
    bad = {REASON_CODE["corrupt"]: 1, REASON_CODE["empty"]: 2}
    stats.made(job, 8, "shm", Made(1000, 900, 1, 0.1, 0.1, 0.1, 0.1, bad))
    stats.failed(job, "timeout")
    stats.outrun(job)


def test_jobs_that_are_over_are_no_series_after_a_while() -> None:
    stats = WorkerStats(CollectorRegistry())
    for number in range(50):
        work(stats, f"diagnose-{number}")
    work(stats, "train")
    stats.lanes({"train": 2, "diagnose-0": 1})
    stats.lanes({"train": 2})
    stats.heartbeat(0.01)
    assert len(jobs(stats)) == 51  # a scrape or two still have to see the last batches
    stats._forget(time.monotonic() + _FORGET_S + 1)
    assert jobs(stats) == {"train"}  # held, though nobody asked it for a batch
    assert stats.registry.get_sample_value("headrace_batches_made_total", {"job": "train"}) == 1
    work(stats, "diagnose-0")
    assert stats.registry.get_sample_value("headrace_batches_made_total", {"job": "diagnose-0"}) == 1
    stats.lanes({})
    stats._forget(time.monotonic() + _FORGET_S + 1)
    assert jobs(stats) == set()
    assert not stats._series
    assert not stats._used_s
