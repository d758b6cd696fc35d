"""How long a training step takes of how long its input's stages take: the arithmetic of `headrace plan`. Pure.

A batch is read, decoded, augmented, moved to its rank, picked up and trained on. *Serial* is one after the other: what a
trainer without a loader would have. *Overlapped* is what Headrace does: while one batch is trained on, later ones are made, up
to `window` ahead. Then a step takes as long as the slowest of

```
 read       read * ranks / (workers * reads)        reads: batches that one worker reads at a time
 engine     (decode + augment) / threads * ranks / workers
 transfer   transfer                                each rank has a way of its own
 trainer    copy + step
 window     (all of them one after the other) / window
```

A GPU engine replaces decode and augment, and makes one batch at a time whatever the threads. On the trainer's own GPU it also
lengthens the step, since both want the same processors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from headrace.core.defaults import BATCHES_IN_FLIGHT
from headrace.core.errors import ConfigInvalid

READ, ENGINE, TRANSFER, TRAINER, WINDOW = "read", "engine", "transfer", "trainer", "window"
LIMITS: tuple[str, ...] = (TRAINER, ENGINE, READ, TRANSFER, WINDOW)  # of equals the first is named
_MOST_WORKERS = 100_000


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds of one batch in each stage. decode_s, augment_s: of one thread. step_s: of training on it."""

    read_s: float
    decode_s: float
    augment_s: float
    transfer_s: float
    copy_s: float
    step_s: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise ConfigInvalid(f"{field.name} must be a time of at least 0, not {value}", field=field.name)
        if not self.step_s + self.copy_s:
            raise ConfigInvalid("the training step must take some time: say how long it takes", field="step_s")


@dataclass(frozen=True, slots=True)
class Gpu:
    """An engine on a GPU: seconds of one batch. shared: it is the trainer's own GPU."""

    decode_s: float
    augment_s: float
    shared: bool = False

    def __post_init__(self) -> None:
        for name in ("decode_s", "augment_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigInvalid(f"a GPU's {name} must be a time of at least 0, not {getattr(self, name)}", field=name)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are. threads: of one worker's engine. reads: batches that one worker reads at a time. window: batches that
    may be made ahead for a rank; 0: as many as a coordinator gives where memory sets no bound. lanes: most workers that can
    serve the job; 0 sets no bound."""

    ranks: int = 1
    workers: int = 1
    threads: int = 1
    reads: int = BATCHES_IN_FLIGHT
    window: int = 0
    lanes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in ("lanes", "window") else 1
            value = getattr(self, field.name)
            if value < least:
                raise ConfigInvalid(f"{field.name} must be at least {least}, not {value}", field=field.name)

    @property
    def ahead(self) -> int:
        """The window, whoever chose it (core.join.window)."""
        return self.window or max(3, math.ceil(2 * self.useful / self.ranks))

    @property
    def useful(self) -> int:
        """Workers that have something to do."""
        return min(self.workers, self.lanes) if self.lanes else self.workers


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What comes of it. serial_s, overlapped_s: a step's length. alone_s: were input always there. limits: what each of LIMITS
    alone would make of it. bottleneck: the longest of them. workers_wanted: least number with which no rank waits for the
    engine or for reads; 0 where no number would do (other limits are longer than the step, or the lanes do not suffice)."""

    serial_s: float
    overlapped_s: float
    alone_s: float
    limits: Mapping[str, float]
    bottleneck: str
    workers_wanted: int

    @property
    def wait_share(self) -> float:
        """Share of the overlapped step that the trainer waits, 0 to 1."""
        return max(0.0, 1.0 - self.alone_s / self.overlapped_s)


def step_plan(stages: Stages, counts: Counts, gpu: Gpu | None = None) -> StepPlan:
    """The step under these times and counts; gpu: with its engine instead of the CPU's."""
    ways = ways_of(stages, counts, gpu)
    limits = _limits(ways, counts)
    longest = max(limits.values())
    bottleneck = next(name for name in LIMITS if limits[name] == longest)
    return StepPlan(
        serial_s=ways.whole_s,
        overlapped_s=longest,
        alone_s=limits[TRAINER],
        limits=limits,
        bottleneck=bottleneck,
        workers_wanted=_workers_wanted(stages, counts, gpu),
    )


@dataclass(frozen=True, slots=True)
class Ways:
    """Seconds of one batch on its way to its rank, where the rank has its share of the workers. engine_s: with all threads."""

    read_s: float
    engine_s: float
    transfer_s: float
    trainer_s: float
    read_each_s: float
    engine_each_s: float

    @property
    def whole_s(self) -> float:
        """One after the other."""
        return self.read_s + self.engine_s + self.transfer_s + self.trainer_s


def ways_of(stages: Stages, counts: Counts, gpu: Gpu | None = None) -> Ways:
    """read_s, engine_s: of a batch from its begin to its end. *_each_s: between the ends of two batches of one rank."""
    if gpu is None:
        made_s = (stages.decode_s + stages.augment_s) / counts.threads
        more_s = 0.0
    else:
        made_s = gpu.decode_s + gpu.augment_s
        more_s = made_s if gpu.shared else 0.0
    share = counts.ranks / counts.useful  # ranks that one worker feeds
    return Ways(
        # A rank that shares a worker waits for its turn.
        read_s=stages.read_s * max(1.0, share / counts.reads),
        engine_s=made_s * max(1.0, share),
        transfer_s=stages.transfer_s,
        trainer_s=stages.copy_s + stages.step_s + more_s,
        read_each_s=stages.read_s * share / counts.reads,
        engine_each_s=made_s * share,
    )


def _limits(ways: Ways, counts: Counts) -> dict[str, float]:
    return {
        READ: ways.read_each_s,
        ENGINE: ways.engine_each_s,
        TRANSFER: ways.transfer_s,
        TRAINER: ways.trainer_s,
        WINDOW: ways.whole_s / counts.ahead,
    }


def _workers_wanted(stages: Stages, counts: Counts, gpu: Gpu | None) -> int:
    def enough(workers: int) -> bool:
        tried = replace(counts, workers=workers)
        limits = _limits(ways_of(stages, tried, gpu), tried)
        return max(limits.values()) <= limits[TRAINER] * (1 + 1e-9)

    high = min(counts.lanes, _MOST_WORKERS) if counts.lanes else _MOST_WORKERS
    if not enough(high):
        return 0
    low = 1
    while low < high:  # what is enough stays enough with more
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage of a batch on the time line, in seconds from the begin."""

    stage: str
    batch: int
    start_s: float
    end_s: float


def timeline(stages: Stages, counts: Counts, batches: int, gpu: Gpu | None = None, *, overlap: bool = True) -> list[Piece]:
    """When each stage of one rank's first batches begins and ends. overlap: as Headrace does it, else one after the other."""
    ways = ways_of(stages, counts, gpu)
    rows = (
        (READ, ways.read_s, ways.read_each_s), (ENGINE, ways.engine_s, ways.engine_each_s),
        (TRANSFER, ways.transfer_s, ways.transfer_s), (TRAINER, ways.trainer_s, ways.trainer_s),
    )  # fmt: skip
    found, ends, free_s = list[Piece](), list[float](), dict.fromkeys((name for name, *_ in rows), 0.0)
    for batch in range(batches):
        behind = batch - (counts.ahead if overlap else 1)
        at_s = ends[behind] if behind >= 0 else 0.0
        for name, long_s, each_s in rows:
            start_s = max(at_s, free_s[name])
            free_s[name] = start_s + each_s if overlap else start_s
            at_s = start_s + long_s
            found.append(Piece(name, batch, start_s, at_s))
        ends.append(at_s)
    return found
