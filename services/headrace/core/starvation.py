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
    """What to add to the monotonic times of another host's workers to have them on the client's clock.

    A worker's `slot_free` is when it heard that the client had released a slot, and the client knows when it said so, in a
    message of a few bytes. The largest (released - slot_free) of late is thus the clocks' difference less the fastest such
    message. What is shifted by it lies too early by that fastest message, a fraction of a millisecond within a data center,
    and that much is found in `transfer`, however long the batches themselves are on their way. Before a slot was used a
    second time the least (received - published) is taken, which hides the fastest transfer.
    """

    __slots__ = ("_after_s", "_before_s", "_count", "_last_before_s")

    # Clocks drift apart by some 10 us a second: a bound counts for the samples of this stretch and the next.
    STRETCH = 500

    def __init__(self) -> None:
        self._after_s: float | None = None  # the difference is at most this
        self._before_s: float | None = None  # and at least this, by this stretch and by the last
        self._last_before_s: float | None = None
        self._count = 0

    def note(self, milestones: Mapping[str, float], received_s: float, released_s: float | None = None) -> None:
        """Learn from a batch. received_s, released_s: client's clock; the latter: when its slot was given back, if it was."""
        slot_free, published = milestones.get("slot_free"), milestones.get("published")
        if released_s is not None and slot_free is not None:
            if self._count % self.STRETCH == 0:
                self._last_before_s, self._before_s = self._before_s, None
            self._count += 1
            before = released_s - slot_free
            self._before_s = before if self._before_s is None else max(self._before_s, before)
        if published is not None:
            after = received_s - published
            self._after_s = after if self._after_s is None else min(self._after_s, after)

    def shift(self, milestones: Mapping[str, float], received_s: float) -> dict[str, float]:
        """The worker's milestones of a batch, noted before, on the client's clock; none where nothing is known of its clock."""
        known = [before for before in (self._before_s, self._last_before_s) if before is not None]
        offset_s = max(known) if known else self._after_s
        if offset_s is None:
            return {}
        if "published" in milestones:  # nothing arrives before it was sent, however clocks drift
            offset_s = min(offset_s, received_s - milestones["published"])
        return {name: moment + offset_s for name, moment in milestones.items()}
