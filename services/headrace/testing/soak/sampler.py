"""Measures every process and the store all the while, in a thread of its own."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import redis

from headrace.core.errors import PeerGone
from headrace.testing.leaks import Measure, ProcessMeasure, fetchers_of, measure, totals

# What a Headrace store holds (coordinator/store.py, coordinator/job_tables.py); any other key is nobody's.
_KEYS = re.compile(r"headrace:(\{fleet\}:(workers|jobs)|\{job:(?P<job>[^{}]+)\}:(main|lanes|ranks|bad)|ping)")
MEASURES = ("memory_bytes", "pss_bytes", "rss_bytes", "shared_bytes", "descriptors", "threads")
# Other programs' names in /dev/shm are none of ours.
SHM_IGNORED = ("[!h]*", "headrace-test-*")


@dataclass(slots=True)
class Series:
    """One process, or the store's contents, over time. times_s: monotonic."""

    name: str
    pid: int
    times_s: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, time_s: float, values: dict[str, float]) -> None:
        """One more point, of all measures."""
        self.times_s.append(time_s)
        for kind, value in values.items():
            self.values.setdefault(kind, []).append(value)


def numbers(taken: ProcessMeasure) -> dict[str, float]:
    """A process's measures, by name."""
    found = {**totals(taken), "pss_bytes": taken.pss_bytes, "rss_bytes": taken.rss_bytes}
    return {kind: float(found[kind]) for kind in MEASURES}


def living(pids: dict[str, int]) -> Measure:
    """Measure those that have not ended meanwhile."""
    try:
        return measure(pids, shm_ignore=SHM_IGNORED)
    except PeerGone:
        found: dict[str, ProcessMeasure] = {}
        for name, pid in pids.items():
            with contextlib.suppress(PeerGone):
                found |= measure({name: pid}).processes
        return Measure(found, measure({}, shm_ignore=SHM_IGNORED).shm_names)


def with_fetchers(pids: dict[str, int]) -> dict[str, int]:
    """The same, and each rank's fetcher."""
    found = dict(pids)
    for name, pid in pids.items():
        if "rank" in name:
            found.update({f"{name} fetcher": child for child in fetchers_of(pid)})
    return found


class StoreProbe:
    """Looks at the keys of a store, from one thread. lasting: the job that is there all the time."""

    def __init__(self, address: str, lasting: str) -> None:
        self._client = redis.Redis.from_url(address, socket_timeout=2.0, socket_connect_timeout=2.0)
        self._lasting = lasting

    def look(self) -> tuple[dict[str, float], list[str]]:
        """Measures of the contents, and keys that are nobody's. Raises redis.RedisError while the store is away."""
        names = sorted(key.decode() for key in self._client.scan_iter(count=1000))
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.memory_usage(name, samples=0)
        sizes = {name: float(size or 0) for name, size in zip(names, pipe.execute(), strict=True)}
        jobs: Counter[str] = Counter()
        stray, lasting_bytes, others = [], 0.0, Counter[str]()
        for name, size in sizes.items():
            match = _KEYS.fullmatch(name)
            job = match["job"] if match else None
            if not match:
                stray.append(name)
            elif job is None or job == self._lasting:
                lasting_bytes += size
            else:
                others[job] += int(size)
            if job is not None:
                jobs[job] += 1
        found = {
            "keys": float(len(names)),
            "stray_keys": float(len(stray)),
            "keys_a_job": float(max(jobs.values(), default=0)),
            "lasting_bytes": lasting_bytes,
            "bytes_a_job": float(max(others.values(), default=0)),
            "used_bytes": float(self._client.info("memory")["used_memory"]),
        }
        return found, stray


class Sampler:
    """See the module. pids: asked before each look, from this thread."""

    def __init__(self, pids: Callable[[], dict[str, int]], probe: StoreProbe, every_s: float) -> None:
        self._pids = pids
        self._probe = probe
        self._every_s = every_s
        self._stop = threading.Event()
        self.series: dict[tuple[str, int], Series] = {}
        self.store = Series("store's contents", 0)
        self._thread = threading.Thread(target=self._run, name="soak-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            for name, taken in living(with_fetchers(self._pids())).processes.items():
                self.series.setdefault((name, taken.pid), Series(name, taken.pid)).add(time.monotonic(), numbers(taken))
            with contextlib.suppress(redis.RedisError):  # it is being restarted
                found, _ = self._probe.look()
                self.store.add(time.monotonic(), found)
            self._stop.wait(max(0.05, begun + self._every_s - time.monotonic()))
