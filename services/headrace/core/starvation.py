"""Why a rank waited: the seconds blocked in `next()`, split by cause. Pure.

A batch passes milestones in a fixed order: the worker's (core.batch.MILESTONES), then `received` (the client knew it to
be complete) and `handed_over` (the trainer got it). What lies between two milestones has one cause. A wait is laid over
this line and cut at the milestones, so the parts are never negative and add up to the wait:

```
           leased   slot_free      started  read       engine  decoded  augmented  published  received  handed_over
 lane_wait   | slot_wait | worker_busy | read | worker_busy | decode | augment | transfer | transfer |   copy
```
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.batch import MILESTONES

CAUSES: tuple[str, ...] = ("lane_wait", "slot_wait", "worker_busy", "read", "decode", "augment", "transfer", "copy")

RECEIVED = "received"
HANDED_OVER = "handed_over"
LINE: tuple[str, ...] = (*MILESTONES, RECEIVED, HANDED_OVER)

# The cause of the time that ends at a milestone.
CAUSE_BEFORE: dict[str, str] = {
    "leased": "lane_wait",
    "slot_free": "slot_wait",
    "started": "worker_busy",
    "read": "read",
    "engine": "worker_busy",  # read ahead, while the engine made other batches
    "decoded": "decode",
    "augmented": "augment",
    "published": "transfer",
    RECEIVED: "transfer",
    HANDED_OVER: "copy",
}


def split_wait(wait_start_s: float, wait_end_s: float, milestones: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the wait by cause; every cause is named, the parts are >= 0 and add up to max(0, end - start).

    milestones: times by the names of LINE on the clock of the wait (see `ClockOffset`). Missing ones add nothing of their
    own: their time goes to the next one that is there. One that lies before its predecessor counts as equal to it. What
    lies after the last is `copy`.
    """
    parts = dict.fromkeys(CAUSES, 0.0)
    cursor = wait_start_s
    for name, cause in CAUSE_BEFORE.items():  # in the order of LINE
        moment = milestones.get(name, cursor)
        if moment > cursor:
            moment = min(moment, wait_end_s)
            parts[cause] += max(0.0, moment - cursor)
            cursor = max(cursor, moment)
    if wait_end_s > cursor:
        parts["copy"] += wait_end_s - cursor
    return parts


def starvation_ratio(wait_s: float, elapsed_s: float) -> float:
    """Share of the time that a rank was blocked in next(), 0 to 1."""
    return min(1.0, max(0.0, wait_s / elapsed_s)) if elapsed_s > 0 else 0.0


class ClockOffset:
    """Seconds to add to a worker's monotonic times to have them on the client's clock.

    Processes of one kernel share the clock (offset 0). For a worker elsewhere the offset is the least (received - published)
    seen: an upper bound, too large by the fastest transfer. That fastest transfer's time is thus missing from `transfer` and
    found in the stages before it; what slower batches took beyond it is in `transfer`.
    """

    __slots__ = ("_offset_s", "_shared")

    def __init__(self, shared_clock: bool) -> None:
        self._shared = shared_clock
        self._offset_s: float | None = None

    def shift(self, milestones: Mapping[str, float], received_s: float) -> dict[str, float]:
        """The worker's milestones of a batch received at `received_s` (client's clock), on the client's clock."""
        if self._shared:
            return dict(milestones)
        published = milestones.get("published")
        if published is not None:
            seen = received_s - published
            self._offset_s = seen if self._offset_s is None else min(self._offset_s, seen)
        if self._offset_s is None:
            return {}
        return {name: moment + self._offset_s for name, moment in milestones.items()}
