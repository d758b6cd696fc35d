"""The decisive experiment of input-bound training, as arithmetic: a step on one cached batch against one on the stream. Pure.

What the stream makes longer than the cached step is the time that could be won. It is made of the waits by cause
(core.starvation), and of what the step itself takes longer while the stream runs: workers beside it want the same cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.contention import Contention
from headrace.core.errors import ConfigInvalid
from headrace.core.starvation import CAUSES
from headrace.core.step_plan import Stages
from headrace.core.verdict import BALANCED, COMPUTE_BOUND, INPUT_BOUND, MEANING, verdict_of

SLOWED = "slowed_step"
PARTS: tuple[str, ...] = (*CAUSES, SLOWED)
MEANINGS: Mapping[str, str] = {**MEANING, SLOWED: "the step itself takes longer while the stream runs"}

_MORE = "run about {wanted} workers like these instead of {workers}"
_THREADS = "give them more threads"
_MORE_OR_THREADS = f"{_MORE}, or {_THREADS}"
# In place of both where each lane has a worker already.
_FULL = f"{_THREADS}: more workers would idle, as this job has {{lanes}} lanes and {{workers}} workers"
_GPU = "move decoding to workers with a GPU engine (headrace plan says what that would bring)"
_SMALLER = "make batches smaller: uint8 output, normalised on the device, or a smaller image"
_ACTIONS: Mapping[str, tuple[str, str]] = {
    "lane_wait": (
        "see that workers run which can serve this job, and that ranks reach them (headrace status names them)",
        _MORE,
    ),
    "slot_wait": ("allow a larger window, which is {window} batches now: raise the coordinator's max_rank_bytes", _SMALLER),
    "worker_busy": (_MORE, _GPU),
    "read": ("bring the data nearer: a faster store, or one in the same zone", "make reads fewer: a larger shuffle.run"),
    "decode": (_MORE_OR_THREADS, _GPU),
    "augment": (_MORE_OR_THREADS, "take the costliest operation out of the pipeline"),
    "transfer": (
        "put workers on the trainer's node, where batches come through shared memory ({transport} is in use)",
        _SMALLER,
    ),
    "copy": (
        "free the trainer's CPU cores: less Python work between batches, no other process on them",
        "copy ahead to the device: headrace.client.iterators has that for torch and jax",
    ),
    SLOWED: (
        "keep workers off the trainer's CPU cores: another node, or fewer threads here",
        "see what the step does with a new batch that it does not do with the cached one: copies, conversions",
    ),
}
_LATE_BY_SHM = "look at the worker's load: it publishes batches late, though through shared memory"
_LEAVE = ("leave the loader alone: the step is the limit", "speed up the step, or be content: a better loader wins nothing")
_WAIT = "nothing yet: less than a tenth could be won"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the experiment found; times are means of one step, in seconds.

    cached_s: on one batch that stays. live_s: on the stream, from one next() to the following one. waits_s: of live_s, blocked
    in next(), by cause. workers: that made the batches. lanes: of the job, beyond which a worker would idle. window: batches
    made ahead. transport: as StreamStats has it. stages: of a batch as workers and client measured them; None where unknown.
    contention: what the workers cost the step; None where that was not measured.
    """

    steps: int
    batch_size: int
    cached_s: float
    live_s: float
    waits_s: Mapping[str, float]
    workers: int
    lanes: int
    window: int
    transport: str
    stages: Stages | None = None
    contention: Contention | None = None

    def __post_init__(self) -> None:
        if not (0 < self.cached_s < math.inf and 0 < self.live_s < math.inf):
            raise ConfigInvalid(f"a step took {self.cached_s} s cached and {self.live_s} s live: it must take some time")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is to be said. verdict: input-bound, balanced or compute-bound. won_share: of the live step, what would go if input
    were always there, 0 to 1. speedup: the same as a factor. parts: of PARTS, the seconds a step that each adds; they are of
    the measured waits and of the step's own slowing. bottleneck: the largest of them, empty where nothing is to be won.
    workers_wanted: about so many like these, at most the lanes, where workers are what lacks; else 0. actions: the first two
    things to do."""

    measured: Measured
    verdict: str
    won_share: float
    speedup: float
    parts: Mapping[str, float]
    bottleneck: str
    workers_wanted: int
    actions: tuple[str, str]

    def __str__(self) -> str:
        """Plain text of some lines."""
        found = self.measured
        lines = [
            f"{self.verdict}: {self.sentence}",
            f"  step on one cached batch  {_ms(found.cached_s)}   {found.batch_size / found.cached_s:8.0f} samples/s",
            f"  step on the stream        {_ms(found.live_s)}   {found.batch_size / found.live_s:8.0f} samples/s",
        ]
        lines += [f"    of that, {name:<15} {_ms(seconds)}   {MEANINGS[name]}" for name, seconds in self.largest()]
        if found.contention is not None:
            lines.append(f"  {found.contention.sentence}: {found.contention.advice}")
        lines += [f"  {number}. {action}" for number, action in enumerate(self.actions, 1)]
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """What it means."""
        if self.verdict == COMPUTE_BOUND:
            return f"input is not what holds the training up; a perfect loader would win {self.won_share:.1%} of the time"
        return (
            f"{self.won_share:.0%} of the time could be won, training would be {self.speedup:.2f} times as fast; "
            f"the largest part is {self.bottleneck}: {MEANINGS[self.bottleneck]}"
        )

    def largest(self) -> list[tuple[str, float]]:
        """Parts that matter, the largest first."""
        least = 0.01 * self.measured.live_s
        return sorted(((name, part) for name, part in self.parts.items() if part >= least), key=lambda pair: -pair[1])


def diagnosis(found: Measured) -> Diagnosis:
    """Judge an experiment."""
    waits = {cause: max(0.0, found.waits_s.get(cause, 0.0)) for cause in CAUSES}
    slowed_s = max(0.0, found.live_s - math.fsum(waits.values()) - found.cached_s)
    parts = {**waits, SLOWED: slowed_s}
    won_share = max(0.0, 1.0 - found.cached_s / found.live_s)
    verdict = verdict_of(won_share)
    bottleneck = max(PARTS, key=lambda name: parts[name]) if verdict != COMPUTE_BOUND else ""
    wanted = min(found.lanes, max(found.workers + 1, math.ceil(found.workers * found.live_s / found.cached_s - 1e-9)))
    return Diagnosis(
        measured=found,
        verdict=verdict,
        won_share=won_share,
        speedup=max(1.0, found.live_s / found.cached_s),
        parts=parts,
        bottleneck=bottleneck,
        workers_wanted=wanted if any("{wanted}" in action for action in _texts(found, bottleneck)) else 0,
        actions=_actions(found, verdict, bottleneck, wanted),
    )


def _texts(found: Measured, bottleneck: str) -> tuple[str, ...]:
    """What to do against it, as templates: nobody is told to run workers that no lane is left for."""
    texts = _ACTIONS.get(bottleneck, ())
    if found.workers < found.lanes:
        return texts
    return tuple(_FULL if text in (_MORE, _MORE_OR_THREADS) else text for text in texts)


def _actions(found: Measured, verdict: str, bottleneck: str, wanted: int) -> tuple[str, str]:
    if verdict == COMPUTE_BOUND:
        return _LEAVE
    first, second = _texts(found, bottleneck)
    if bottleneck == SLOWED and found.contention is not None and found.contention.noticed:
        first = found.contention.advice
    if bottleneck == "transfer" and found.transport in ("shm", "cuda_ipc"):
        first, second = second, _LATE_BY_SHM
    facts = {
        "wanted": wanted, "workers": found.workers, "lanes": found.lanes, "window": found.window,
        "transport": found.transport or "nothing",
    }  # fmt: skip
    if verdict == BALANCED:
        return _WAIT, f"should it grow: {first.format_map(facts)}"
    assert verdict == INPUT_BOUND
    return first.format_map(facts), second.format_map(facts)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:9.1f} ms"
