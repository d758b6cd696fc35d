"""What counts as a leak: counts that do not come back to their level between rounds, and numbers that rise. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.testing.leaks import Allowance, Leak, Measure, ProcessMeasure, compare
from headrace.testing.soak.sampler import Series
from headrace.testing.trend import Trend, trend

MIB: Final = 2.0**20
# What is bounded and made when first needed stays: threads of asyncio's pool (6 on two cores) and of gRPC's, a channel to each
# replica or worker and its other end. Shared memory and children must come back exactly. Memory is judged by its slope alone.
ALLOWED: Final = Allowance(descriptors=8, threads=8, memory_bytes=1 << 60)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a measure may do. per_hour: slope. floor: a rise in all that is no leak yet: noise and late caches make it."""

    per_hour: float
    floor: float


# gRPC has seven descriptors of its own that come and go with the first and last channel of a process, and keeps the socket of a
# channel that was closed before the other side (a paused worker) answered for up to 20 s: no leak, but a rise in a short run.
LIMITS: Final[Mapping[str, Limit]] = {
    "memory_bytes": Limit(24 * MIB, 16 * MIB),
    "pss_bytes": Limit(24 * MIB, 24 * MIB),
    "rss_bytes": Limit(24 * MIB, 24 * MIB),
    "shared_bytes": Limit(2 * MIB, 1 * MIB),
    "descriptors": Limit(2, 16),
    "threads": Limit(2, 8),
}
STORE_LIMITS: Final[Mapping[str, Limit]] = {
    "stray_keys": Limit(0, 0),
    "keys_a_job": Limit(0, 0),
    "lasting_bytes": Limit(32 * 1024, 16 * 1024),
    "bytes_a_job": Limit(8 * 1024, 4 * 1024),
    "used_bytes": Limit(24 * MIB, 4 * MIB),
}
LATENCY_LIMITS: Final[Mapping[str, Limit]] = {"p50_s": Limit(0.02, 0.02), "p95_s": Limit(1.0, 0.5)}
PERCENTILES: Final = {"p50_s": 50, "p95_s": 95, "p99_s": 99}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One series, judged. level: median of the first tenth after warm-up; now: of the last."""

    name: str
    kind: str
    level: float
    now: float
    trend: Trend
    limit: Limit

    @property
    def word(self) -> str:
        """leak, level, or too short."""
        return "leak" if self.trend.rising else "too short" if self.trend.too_short else "level"

    @property
    def seen_per_hour(self) -> float:
        """The smallest slope that would have been called a leak."""
        return max(self.limit.per_hour, self.limit.floor * 3600 / self.trend.seconds) if self.trend.seconds else float("inf")

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} rises by {shown(self.kind, self.trend.slope_per_hour)} an hour"


def shown(kind: str, value: float) -> str:
    """A number of this kind for people."""
    if kind.endswith("_s"):
        return f"{value * 1000:.1f} ms"
    if kind.endswith("bytes") or kind.startswith("bytes"):
        return f"{value / MIB:.1f} MiB" if abs(value) >= MIB / 4 else f"{value / 1024:.1f} KiB"
    return f"{value:.1f}"


def judge(series: Series, limits: Mapping[str, Limit], warm_until_s: float) -> list[Verdict]:
    """Judge all measures of a series. warm_until_s: monotonic; a process is given a minute from its own beginning too."""
    found = []
    times = np.asarray(series.times_s)
    for kind, limit in limits.items():
        values = np.asarray(series.values.get(kind, []))
        begin = max(warm_until_s, times[0] + 60 if series.pid and times[0] > warm_until_s else 0.0) if len(times) else 0.0
        kept = times >= begin
        judged = trend(
            times[kept].tolist(), values[kept].tolist(), warm_up_s=0.0, allowed_per_hour=limit.per_hour, floor=limit.floor
        )
        part = values[kept] if kept.any() else values
        tenth = max(1, len(part) // 10)
        found.append(Verdict(series.name, kind, float(np.median(part[:tenth])), float(np.median(part[-tenth:])), judged, limit))
    return found


def latencies(waits: Sequence[tuple[float, float]], begun_s: float, width_s: float = 60.0) -> Series:
    """p50, p95 and p99 of each minute that had twenty calls; times_s: the minute's end."""
    series = Series("next()", 0)
    times, values = np.array([time for time, _ in waits]), np.array([wait for _, wait in waits])
    for minute in range(int((times[-1] - begun_s) // width_s) + 1 if len(times) else 0):
        part = values[(times - begun_s) // width_s == minute]
        if len(part) >= 20:
            quantiles = {name: float(np.percentile(part, share)) for name, share in PERCENTILES.items()}
            series.add(begun_s + (minute + 1) * width_s, quantiles)
    return series


class Levels:
    """Counts at quiet moments: each process against its own second one, when all that is made late has been made."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._base: dict[int, ProcessMeasure] = {}
        self._names: frozenset[str] | None = None

    def leaks(self, taken: Measure) -> list[Leak]:
        """What is above its level now."""
        before = {name: self._base[now.pid] for name, now in taken.processes.items() if now.pid in self._base}
        after = {name: taken.processes[name] for name in before}
        names = taken.shm_names if self._names is None else self._names
        return compare(Measure(before, names), Measure(after, taken.shm_names), ALLOWED)

    def note(self, taken: Measure) -> int:
        """A quiet moment is over; returns how many processes were compared."""
        compared = sum(now.pid in self._base for now in taken.processes.values())
        for now in taken.processes.values():
            self._seen[now.pid] = self._seen.get(now.pid, 0) + 1
            if self._seen[now.pid] == 2:
                self._base[now.pid] = now
        self._names = self._names if self._names is not None else taken.shm_names
        return compared
