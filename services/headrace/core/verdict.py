"""What the ranks' waits mean for a job: starving or not, who most, why, and what to do first. Pure.

In training with all_reduce a rank that waits for input makes every other rank's step last as long as its own: they wait for it
inside the step and not in next(), so they look busy. Hence the job's verdict is that of its worst rank and never a mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.starvation import CAUSES

INPUT_BOUND, BALANCED, COMPUTE_BOUND, UNKNOWN = "input-bound", "balanced", "compute-bound", "unknown"
VERDICTS: tuple[str, ...] = (INPUT_BOUND, BALANCED, COMPUTE_BOUND, UNKNOWN)
RISING, FALLING, FLAT = "rising", "falling", "flat"

# Of a rank's recent time in next(). A tenth of a GPU is worth a person's look; a fiftieth is noise that no measure removes.
INPUT_BOUND_AT = 0.10
COMPUTE_BOUND_AT = 0.02
# The newer half of the recent time against the older: less is within what a slow batch or two make.
TREND_AT = 0.05
# A rank's first batch is always waited for: nothing is said of less time than this.
LEAST_S = 5.0

# What a cause is called in a sentence, and what to do first about it. docs/starvation.md says more.
MEANING: Mapping[str, str] = {
    "lane_wait": "no worker that it was connected to held the lane of its next batch",
    "slot_wait": "all slots of its window were in use",
    "worker_busy": "the workers were making other ranks' batches",
    "read": "reads of the shards were slow",
    "decode": "decoding took that long",
    "augment": "augmentation took that long",
    "transfer": "the batch was on its way from worker to trainer",
    "copy": "the batch was there, and the trainer's process took that long to pick it up",
}
ACTION: Mapping[str, str] = {
    "lane_wait": "see that workers run which can serve this job, that ranks reach them, and that leases do not keep moving "
    "(headrace status names them)",
    "slot_wait": "allow a larger window: raise the coordinator's max_rank_bytes, or use smaller batches",
    "worker_busy": "add workers (headrace_desired_workers says how many in all)",
    "read": "bring the data nearer or make reads fewer: a faster store, a larger shuffle.run, more batches_in_flight",
    "decode": "add workers or threads, or move decoding to workers with a GPU engine",
    "augment": "add workers or threads, or take the costliest operation out of the pipeline",
    "transfer": "put workers on the trainers' nodes (shared memory), or make batches smaller: uint8, a smaller output size",
    "copy": "free the trainer's CPU cores: less Python work between batches, fewer threads, no other process on them",
}
LEAVE_ALONE = "leave the loader alone: the training step is the limit"
NOTHING = "nothing yet: look again if it rises"
NO_VERDICT = "wait until ranks have trained for some seconds"


@dataclass(frozen=True, slots=True)
class RankWait:
    """A rank's recent time. ratio: share spent in next(); older, newer: of the two halves of that time.

    waits: seconds by cause over about that time. measured_s: how long that time is.
    """

    rank: int
    ratio: float
    older: float
    newer: float
    measured_s: float
    waits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """What is said of one rank. cause: the largest part of its wait, empty where it hardly waits; share: that part, 0 to 1."""

    rank: int
    ratio: float
    verdict: str
    trend: str
    cause: str
    share: float


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """What is said of a job: its worst rank's verdict, trend, ratio, cause. worst_rank: -1 while unknown.

    why: one sentence. action: what to do first. ranks: worst first.
    """

    verdict: str
    trend: str
    ratio: float
    worst_rank: int
    cause: str
    why: str
    action: str
    ranks: tuple[RankVerdict, ...]


def verdict_of(ratio: float) -> str:
    """By the thresholds alone: what it was before does not count."""
    if ratio >= INPUT_BOUND_AT:
        return INPUT_BOUND
    return COMPUTE_BOUND if ratio <= COMPUTE_BOUND_AT else BALANCED


def trend_of(older: float, newer: float) -> str:
    """Whether the share of time waited grows."""
    if newer - older >= TREND_AT:
        return RISING
    return FALLING if older - newer >= TREND_AT else FLAT


def judge_rank(wait: RankWait) -> RankVerdict:
    """One rank by itself."""
    if wait.measured_s < LEAST_S:
        return RankVerdict(wait.rank, wait.ratio, UNKNOWN, FLAT, "", 0.0)
    verdict = verdict_of(wait.ratio)
    known = {cause: wait.waits.get(cause, 0.0) for cause in CAUSES}
    total = sum(known.values())
    cause = max(known, key=lambda name: known[name]) if total > 0 and verdict != COMPUTE_BOUND else ""
    return RankVerdict(
        wait.rank, wait.ratio, verdict, trend_of(wait.older, wait.newer), cause, known[cause] / total if cause else 0.0
    )


def judge(waits: Sequence[RankWait]) -> JobVerdict:
    """A job by its live ranks' waits."""
    ranks = tuple(sorted(map(judge_rank, waits), key=lambda rank: (rank.verdict == UNKNOWN, -rank.ratio, rank.rank)))
    if not ranks or ranks[0].verdict == UNKNOWN:
        why = f"no rank has been measured for {LEAST_S:g} s yet" if ranks else "no rank is live"
        return JobVerdict(UNKNOWN, FLAT, 0.0, -1, "", why, NO_VERDICT, ranks)
    worst = ranks[0]
    action = {COMPUTE_BOUND: LEAVE_ALONE, BALANCED: NOTHING}.get(worst.verdict) or ACTION.get(worst.cause, NOTHING)
    return JobVerdict(worst.verdict, worst.trend, worst.ratio, worst.rank, worst.cause, _why(ranks), action, ranks)


def _why(ranks: Sequence[RankVerdict]) -> str:
    worst, world = ranks[0], len(ranks)
    waits = f"waits {worst.ratio:.0%} of its time"
    if worst.verdict == COMPUTE_BOUND:
        return f"rank {worst.rank} waits most, {worst.ratio:.1%} of its time: input is not what holds the training up"
    if worst.cause:
        waits += f", {worst.share:.0%} of that since {MEANING[worst.cause]}"
    if worst.verdict == BALANCED:
        return f"rank {worst.rank} {waits}"
    starving = sum(rank.verdict == INPUT_BOUND for rank in ranks)
    text = f"rank {worst.rank} starves: it {waits}"
    if world == 1:
        return text
    if starving == world:
        return f"{text}; all {world} ranks starve"
    more = f"; so do {starving - 1} more" if starving > 1 else ""
    others = "the other waits" if world - starving == 1 else f"the other {world - starving} wait"
    return f"{text}{more}; {others} for it in the step, where it looks like work"
