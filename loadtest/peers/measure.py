"""One measurement of one contestant."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.testing.cluster import Cluster
from loadtest.peers import accounting
from loadtest.peers.contestants import Contestant, Work
from loadtest.peers.dataset import Photos
from loadtest.peers.driver import Driver
from loadtest.peers.table import Trial

SIZE = 224
WARM_BATCHES = 3
_START_S = 180.0
_LAST_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure. images, seconds: whichever comes first. cache: environments, photos, logs."""

    cache: Path
    images: int
    seconds: float
    warm_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contestant runs: its Python, and the photos of the work."""

    contestant: Contestant
    work: Work
    photos: Photos
    python: Path


def task_of(place: Place, settings: Settings, **more: Any) -> dict[str, Any]:
    """What the driver is told; see drivers/consumer.py."""
    return {
        "files": str(place.photos.files),
        "tars": str(place.photos.tars),
        "photos": place.photos.count,
        "work": place.work.kind,
        "batch": place.work.batch,
        "size": SIZE,
        "threads": settings.threads,
        "warm_batches": WARM_BATCHES,
        "warm_s": settings.warm_s,
        "images": settings.images,
        "seconds": settings.seconds,
        "options": dict(place.contestant.options),
        "cuts": "",
        **more,
    }


def log_of(place: Place, settings: Settings, what: str) -> Path:
    """Where the driver's errors go; a fleet's own logs beside it."""
    return settings.cache / "logs" / f"{what}-{place.work.name}-{place.contestant.name}.log"


@contextlib.contextmanager
def fleet(place: Place, settings: Settings) -> Iterator[tuple[str, dict[int, str]]]:
    """(coordinators' address, role by process) of a running fleet; nothing where the contestant needs none."""
    if not place.contestant.fleet:
        yield "", {}
        return
    folder = log_of(place, settings, "fleet").with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)  # with its store: no job is known yet
    with Cluster(folder, coordinators=1, workers=1, threads=settings.threads) as cluster:
        roles = {cluster.workers[0].running.pid: "worker", cluster.coordinators[0].running.pid: "coordinator"}
        yield cluster.addresses, roles


def measure(place: Place, settings: Settings, number: int) -> Trial:
    """Start it, let it warm up, measure, end it. number: of the round. Raises DriverFailed."""
    peak = 0

    def look() -> None:
        nonlocal peak
        peak = max(peak, accounting.pss_bytes())

    try:
        with fleet(place, settings) as (coordinators, roles):
            task = task_of(place, settings, coordinators=coordinators)
            started_s = time.monotonic()
            with Driver(place.python, place.contestant.script, task, log_of(place, settings, "measure")) as driver:
                driver.wait_for("first", _START_S)
                first_s = time.monotonic() - started_s
                driver.wait_for("begin", _START_S, look)
                before = accounting.usage()
                end = driver.wait_for("end", settings.seconds + _START_S)
                after = accounting.usage()
                # Memory is not looked at while the clock runs: it takes CPU.
                for _ in range(_LAST_SAMPLES):
                    look()
                    time.sleep(0.1)
                parts = _by_role(before, after, {**roles, driver.pid: "trainer"}) if roles else {}
    finally:
        accounting.end_all()
    cpu_s = after.total_s - before.total_s
    return Trial(place.contestant.name, place.work.name, number, end["images"], end["seconds"], cpu_s, peak, first_s, parts)


def _by_role(before: accounting.Usage, after: accounting.Usage, roles: Mapping[int, str]) -> dict[str, float]:
    """CPU seconds by what a process is; what has no role of its own is a fetcher or the store, by its parent."""
    parts: dict[str, float] = {}
    parents = {stat.pid: stat.parent for stat in accounting.read_stats()}
    for pid, own_s in after.own_s.items():
        role = roles.get(pid) or ("fetcher" if roles.get(parents.get(pid, 0)) == "trainer" else "store")
        parts[role] = parts.get(role, 0.0) + own_s - before.own_s.get(pid, 0.0)
    return parts


def our_python() -> Path:
    """The Python that runs this."""
    return Path(sys.executable)


def threads_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
