"""The workers that may serve a job: who lives, who fits, how fast each is.

Pure. A pass asks this for every job with one and the same roster of workers, which can be ten thousand: what does not depend
on the job is worked out once and kept with the roster for as long as nobody on it dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.core.job import ANY_FINGERPRINT, JobSpec
from headrace.core.records import WorkerRecord


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that may serve one job now, and what the assignment needs to know of them.

    weights: speed of each that may take lanes. nodes: worker -> node. silent: workers that may live although nothing was heard
    of them; they keep what they have. lagging: (worker, lane) pairs that were behind for too long. barred: (worker, group of
    lanes) pairs whose rank could not use that worker. kept: what core.lease works out of the weights alone, by number of
    lanes; jobs with the same weights share it.
    """

    weights: Mapping[str, float]
    nodes: Mapping[str, str]
    silent: frozenset[str] = frozenset()
    lagging: frozenset[tuple[str, int]] = frozenset()
    barred: frozenset[tuple[str, int]] = frozenset()
    kept: dict[int, float] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Those that fit one kind of job, whatever its name. It is so from `from_us` until before `until_us`."""

    from_us: float
    until_us: float
    ready: Mapping[str, WorkerRecord]
    fleet: Fleet


class Roster(dict[str, WorkerRecord]):
    """Workers' records at one moment, by name; not to be changed once it is made."""

    __slots__ = ("_lagging", "_pools", "_unable")

    def __init__(self, records: Mapping[str, WorkerRecord] | None = None) -> None:
        super().__init__(records or {})
        self._pools: dict[tuple[object, ...], _Pool] = {}
        self._unable: dict[str, set[str]] | None = None
        self._lagging: dict[str, list[tuple[str, int, float]]] = {}

    def told_of(self, job: str) -> tuple[set[str], list[tuple[str, int, float]]]:
        """(workers that cannot open the job, (worker, lane, seconds behind) that lag in it), as they say themselves."""
        if self._unable is None:
            self._unable = {}
            for name, worker in self.items():
                for named in worker.unable:
                    self._unable.setdefault(named, set()).add(name)
                for named, lane, behind_s in worker.lagging:
                    self._lagging.setdefault(named, []).append((name, lane, behind_s))
        return self._unable.get(job, set()), self._lagging.get(job, [])

    def pool(self, job: JobSpec, now_us: int, blind: bool) -> _Pool:
        """The workers that fit the job."""
        key = (job.fingerprint, tuple(job.pipeline.op_names), blind)
        pool = self._pools.get(key)
        if pool is None or not pool.from_us <= now_us < pool.until_us:
            pool = self._pools[key] = _pool(self, job, now_us, blind)
        return pool


def _pool(workers: Mapping[str, WorkerRecord], job: JobSpec, now_us: int, blind: bool) -> _Pool:
    fit = {name: w for name, w in workers.items() if can_serve(w, job)}
    live = {name: w for name, w in fit.items() if w.alive(now_us)}
    silent = frozenset(name for name, w in fit.items() if blind and name not in live and not w.draining)
    ready = {name: w for name, w in live.items() if not w.draining}
    nodes = {name: w.endpoint.node for name, w in live.items()}
    from_us = max((w.alive_until_us for name, w in fit.items() if name not in live), default=float("-inf"))
    until_us = min((w.alive_until_us for w in live.values()), default=float("inf"))
    return _Pool(from_us, until_us, ready, Fleet(speeds(ready.values()), nodes, silent))


def can_serve(worker: WorkerRecord, job: JobSpec) -> bool:
    """True if the worker's engine has all operations and the fingerprint that the job asks for (any while it asks for none)."""
    fits = job.fingerprint in ("", ANY_FINGERPRINT, worker.fingerprint)
    return fits and set(job.pipeline.op_names) <= set(worker.ops)


def speeds(workers: Iterable[WorkerRecord]) -> dict[str, float]:
    """Speed of each worker: measured samples per second, or by threads at the others' mean speed per thread."""
    known = list(workers)
    measured = [w for w in known if w.samples_per_s > 0]
    threads = sum(max(1, w.threads) for w in measured)
    per_thread = sum(w.samples_per_s for w in measured) / threads if threads else 1.0
    return {w.endpoint.worker: w.samples_per_s if w.samples_per_s > 0 else max(1, w.threads) * per_thread for w in known}


def fleet_for(job: JobSpec, workers: Mapping[str, WorkerRecord], now_us: int, lag_s: float, *, blind: bool = False) -> Fleet:
    """The fleet that may serve a job: live, with its operations and fingerprint; without those that say that they cannot.

    blind: the silent ones count as silent, not as dead. workers: best a Roster, which other jobs are asked with too.
    """
    roster = workers if isinstance(workers, Roster) else Roster(workers)
    pool = roster.pool(job, now_us, blind)
    unable, behind = roster.told_of(job.name)
    fleet = pool.fleet
    live = fleet.nodes
    lagging = frozenset((name, lane) for name, lane, behind_s in behind if behind_s >= lag_s and name in live)
    if unable & pool.ready.keys():
        able = [w for name, w in pool.ready.items() if name not in unable]
        return Fleet(speeds(able or pool.ready.values()), fleet.nodes, fleet.silent, lagging)
    return Fleet(fleet.weights, fleet.nodes, fleet.silent, lagging, kept=fleet.kept)


def choose_fingerprint(job: JobSpec, workers: Mapping[str, WorkerRecord], now_us: int) -> str:
    """The fingerprint with the most speed among live workers that have the job's operations; empty if there are none.

    Those that retire count only where there are no others.
    """
    able = [w for w in workers.values() if w.alive(now_us) and not w.draining and can_serve(w, job)]
    able = [w for w in able if not w.retiring] or able
    speed = speeds(able)
    total: Counter[str] = Counter()
    for worker in able:
        total[worker.fingerprint] += speed[worker.endpoint.worker]  # type: ignore[assignment]
    return min(total, key=lambda name: (-total[name], name), default="")
