"""How many workers would feed the trainers so that they never wait. Pure.

    desired = demand / throughput of one worker

*Demand* is what a job's ranks would take if next() returned at once: batches over the time *not* spent in next(). Ranks of
one session take equal steps, and in training with all_reduce the time between two calls of next() holds the wait for the
slowest rank. So the demand of a job is that of its quickest rank times the world: the rank that starves most is the one whose
step is least inflated. *Throughput* is what workers measured of themselves at full load. Both are told apart from how things
stand now, so that one decision gets there: nothing is raised step by step.

Workers are scaled by *class*: a pool (what is scaled together, a Deployment say) and an engine fingerprint. A job counts
only for classes that may serve it, so an old pool is wanted until the jobs that are bound to its fingerprint end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.core.fleet import can_serve, choose_fingerprint
from headrace.core.job import JobSpec
from headrace.core.records import WorkerRecord

# A little more than the bare need, or every uneven batch would make a rank wait.
HEADROOM = 1.1
# Workers are taken away only if the rest could still bear this much more, by this decision's need and the one's before:
# measures that wobble by 8% then change nothing, nor does a checkpoint or an evaluation that is over by the next decision.
SPARE = 1.3
# A rank that was blocked for more than this share of its time and took nothing says nothing of how fast it would be.
BLOCKED = 0.5
# A rank that does no work between batches would take any number: as much as this share of its time counts as work.
LEAST_BUSY = 0.001

Class = tuple[str, str]  # (pool, engine fingerprint)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rank did between two decisions. waited_s: of elapsed_s, the time blocked in next()."""

    elapsed_s: float
    waited_s: float
    batches: int


@dataclass(frozen=True, slots=True)
class JobDemand:
    """A job that trains. samples_per_s: what its ranks would take; None where nobody knows yet."""

    spec: JobSpec
    lanes: int
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Scale:
    """A class's decision. desired: workers. need: the bare number, in parts of a worker.

    live: workers that serve now. speed: samples/s of one, 0 while unknown. demand: samples/s. most: lanes that they may hold.
    jobs: names of those counted.
    """

    desired: int
    need: float = 0.0
    live: int = 0
    speed: float = 0.0
    demand: float = 0.0
    most: int = 0
    jobs: tuple[str, ...] = ()


def demand(ranks: Iterable[Taken], world: int, batch_size: int) -> float | None:
    """Samples a second that a job's ranks would take; None if none of them tells (all were blocked throughout)."""
    rates = [
        taken.batches / max(taken.elapsed_s - taken.waited_s, LEAST_BUSY * taken.elapsed_s)
        for taken in ranks
        if taken.elapsed_s > 0 and (taken.batches or taken.waited_s < BLOCKED * taken.elapsed_s)
    ]
    return max(rates) * world * batch_size if rates else None


def class_of(worker: WorkerRecord) -> Class:
    """What it is scaled with."""
    return worker.pool, worker.fingerprint


def decide(before: Scale | None, need: float, least: int, most: int, live: int) -> Scale:
    """The next number of workers of one class. need: in parts of a worker, infinite for 'as many as can be'.

    Up at once when what is wanted cannot bear the need; down when fewer would bear `SPARE` times the need of this decision
    and of the one before. before: None for the first decision, which goes from the live ones.
    """
    last = before or Scale(live)
    high = max(need, last.need if before else math.inf)
    desired = last.desired
    if need > desired:
        desired = _workers(need * HEADROOM, most)
    elif _workers(high * SPARE, most) < desired:
        desired = _workers(high * HEADROOM, most)
    return Scale(min(max(desired, least), max(most, least)), need=need)


def _workers(need: float, most: int) -> int:
    return most if need >= most else math.ceil(need - 1e-9)


_Kinds = Mapping[tuple[Class, tuple[str, ...]], tuple[WorkerRecord, float]]


def _kinds(workers: Mapping[str, WorkerRecord], now_us: int) -> _Kinds:
    """Workers that serve the same jobs, as one of them and the speed of all: jobs are many, and workers too."""
    found: dict[tuple[Class, tuple[str, ...]], tuple[WorkerRecord, float]] = {}
    for worker in workers.values():
        usable = worker.alive(now_us) and not worker.draining
        speed = max(worker.samples_per_s, 1e-6) if usable else 0.0
        key = class_of(worker), worker.ops
        one, total = found.get(key, (worker, 0.0))
        found[key] = one, total + speed
    return found


def shares(job: JobDemand, workers: Mapping[str, WorkerRecord], now_us: int, kinds: _Kinds | None = None) -> dict[Class, float]:
    """Which classes feed a job, each with its part of the whole: one class, but for jobs that any engine may serve.

    kinds: the workers by kind, where they are known already.
    """
    spec = job.spec
    if not spec.fingerprint:  # the one that it will be bound to
        spec = spec.with_fingerprint(choose_fingerprint(spec, workers, now_us) or _last_able(spec, workers))
        if not spec.fingerprint:
            return {}
    speed: dict[Class, float] = defaultdict(float)
    for (name, _), (one, part) in (_kinds(workers, now_us) if kinds is None else kinds).items():
        if can_serve(one, spec):
            speed[name] += part
    total = sum(speed.values())
    return {name: part / total if total else 1 / len(speed) for name, part in sorted(speed.items()) if part or not total}


def _last_able(spec: JobSpec, workers: Mapping[str, WorkerRecord]) -> str:
    """The fingerprint of those that could have served a job last, where none lives now; empty if none is remembered.

    A pool that was scaled to nothing would not come back for a job that nobody has begun to serve.
    """
    able = [worker for worker in workers.values() if can_serve(worker, spec)]
    able = [worker for worker in able if not worker.retiring] or able
    return max(able, key=lambda worker: (worker.alive_until_us, worker.fingerprint)).fingerprint if able else ""


def scale(
    before: Mapping[Class, Scale], jobs: Sequence[JobDemand], workers: Mapping[str, WorkerRecord], now_us: int
) -> dict[Class, Scale]:
    """One decision for all classes that are known: those of remembered workers. jobs: those that train now."""
    live: dict[Class, list[WorkerRecord]] = {class_of(worker): [] for worker in workers.values()}
    for worker in workers.values():
        if worker.alive(now_us) and not worker.draining:
            live[class_of(worker)].append(worker)
    wanted: dict[Class, list[tuple[JobDemand, float, int]]] = defaultdict(list)
    kinds = _kinds(workers, now_us)
    for job in jobs:
        done = 0.0
        for name, part in shares(job, workers, now_us, kinds).items():
            most = round((done + part) * job.lanes) - round(done * job.lanes)  # adds up to the lanes
            done += part
            wanted[name].append((job, part, most))
    return {name: _scale_class(before.get(name), serving, wanted[name]) for name, serving in sorted(live.items())}


def _scale_class(
    before: Scale | None, serving: Sequence[WorkerRecord], wanted: Sequence[tuple[JobDemand, float, int]]
) -> Scale:
    measured = [worker.samples_per_s for worker in serving if worker.samples_per_s > 0]
    speed = sum(measured) / len(measured) if measured else before.speed if before else 0.0
    most = sum(lanes for _, _, lanes in wanted)
    told = [(job.samples_per_s * part, lanes) for job, part, lanes in wanted if job.samples_per_s is not None]
    asked = sum(samples_per_s for samples_per_s, _ in told)
    names = tuple(sorted(job.spec.name for job, _, _ in wanted))
    had = before.desired if before else len(serving)
    if wanted and (not speed or len(told) < len(wanted)):
        # Nothing to reckon with yet: as many as there are wanted.
        kept = replace(before or Scale(0), desired=min(max(had, 1), max(most, 1)))
    else:
        need = sum(min(samples_per_s / speed, lanes) for samples_per_s, lanes in told) if wanted else 0.0
        # Without a job it is let go by the same rules as with one, since its trainers may be starting again.
        kept = decide(before, need, min(1, len(wanted)), most if wanted else had, len(serving))
    return replace(kept, live=len(serving), speed=speed, demand=asked, most=most, jobs=names)
