"""What a seed decides before a run begins: the fleet, the jobs and how they are trained, and for how long there are faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.core.epoch_plan import batch_count, lane_count, steps
from headrace.core.events import Rules
from headrace.core.job import JobSpec, Shuffle, Tail
from headrace.core.pipeline_spec import PipelineSpec, Resize

PIPELINE = PipelineSpec(ops=(Resize((2, 2)),))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a job takes from its manifest."""

    hash: str
    samples: int
    max_key_bytes: int = 16
    max_label_bytes: int = 0
    label_kind: str = "int"
    label_width: int = 1


@dataclass(frozen=True, slots=True)
class JobScenario:
    """One job. worlds: sizes that its attempts may have. step_s: of the trainer's own work.

    lock_step: ranks wait for one another at each step. explicit: resumed from a checkpoint's state, not from the commit.
    numbered: the launcher numbers the attempts. commit_every: steps.
    """

    spec: JobSpec
    facts: Facts
    epochs: int
    worlds: tuple[int, ...]
    step_s: float
    lock_step: bool
    explicit: bool
    numbered: bool
    commit_every: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    every_s: between heartbeats, and between ticks. faults_s: from the begin on. store_clock_jumps: it is set in between.
    store_s: mean of what a request waits for at the store. restless: somebody starts the jobs over and over.
    """

    seed: int
    replicas: int
    workers: int
    speeds: tuple[float, ...]
    in_flight: int
    jobs: tuple[JobScenario, ...]
    rules: Rules
    every_s: float
    faults_s: float
    fault_every_s: float
    store_forgets: bool
    store_clock_jumps: bool
    store_s: float
    restless: bool


def _job(rng: random.Random, number: int, faults_s: float, restless: bool) -> JobScenario:
    batch_size = rng.choice((2, 2, 3, 4))
    tail: Tail = rng.choice(("drop", "drop", "pad"))
    batches = rng.choice((rng.randint(4, 10), rng.randint(8, 30), rng.randint(20, 48)))
    samples = batches * batch_size + rng.randrange(batch_size)
    most = batch_count(samples, batch_size, tail)
    world = rng.choice((1, 2, 2, 3, 4))
    worlds = [size for size in {world, world, rng.choice((1, 2, 3))} if steps(most, 0, size, tail)]
    worlds = sorted(worlds) or [1]
    bad = tail == "drop" and rng.random() < 0.3
    spec = JobSpec(
        f"job{number}",
        f"/data{number}" + ("/bad" if bad else ""),
        batch_size,
        pipeline=PIPELINE,
        seed=rng.getrandbits(32),
        shuffle=Shuffle(rng.choice(("full", "none", "none")), run=rng.choice((1, 4, 16)), window=rng.choice((8, 64))),
        tail=tail,
    )
    a_epoch = max(1, most // worlds[-1])
    # Long enough to be hit by faults, short enough that a run is cheap.
    wanted = rng.randint(12, 45)
    epochs = max(1, min(6, round(wanted / a_epoch)))
    step_s = rng.choice((0.3, 0.6, 0.9)) * faults_s / (epochs * a_epoch)
    explicit = rng.random() < 0.4
    return JobScenario(
        spec, Facts(f"hash{number}", samples), epochs, tuple(worlds), step_s, explicit or rng.random() < 0.7, explicit,
        restless or rng.random() < 0.3, rng.choice((1, 2, 5, 10)),
    )  # fmt: skip


def scenario(seed: int) -> Scenario:
    """The same for the same seed."""
    rng = random.Random(f"scenario {seed}")  # noqa: S311 - a seed decides all of it
    workers = rng.choice((1, 2, 2, 3, 3, 4))
    faults_s = rng.choice((4.0, 8.0, 12.0))
    restless = rng.random() < 0.15
    jobs = tuple(_job(rng, number, faults_s, restless) for number in range(rng.choice((1, 1, 1, 2))))
    forgets = rng.random() < 0.5
    return Scenario(
        seed=seed,
        replicas=rng.choice((1, 2, 2, 3)),
        workers=workers,
        speeds=tuple(rng.choice((50.0, 100.0, 400.0)) for _ in range(workers)),
        in_flight=rng.choice((1, 2, 3)),
        jobs=jobs,
        every_s=rng.choice((0.5, 0.8, 1.0)),
        rules=Rules(max_rank_bytes=rng.choice((1 << 30, 5 * 8192))),
        faults_s=faults_s,
        fault_every_s=rng.choice((0.7, 1.5, 3.0)),
        store_forgets=forgets,
        store_clock_jumps=not forgets and rng.random() < 0.5,
        store_s=rng.choice((0.0, 0.0, 0.1, 0.4)),
        restless=restless,
    )


def lanes_of(job: JobScenario) -> int:
    """L of a job."""
    return lane_count(job.facts.samples, job.spec.batch_size)
