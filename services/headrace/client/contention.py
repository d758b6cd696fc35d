"""Measures what a worker costs the step beside which it works: the same step on the same batch, the worker busy and idle."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from headrace.client.batch import Batch
from headrace.core.contention import Contention

Step = Callable[[Batch], object]
# Steps of a window's worth, in which a worker that is as fast as the step has ended what it began.
_WINDOWS = 4
_MOST = 1000


def rest_steps(window: int, world: int, cached_s: float, live_s: float) -> int:
    """How many steps pass until workers have filled the window again and are idle. Equal on all ranks: their steps may wait for
    one another, so that of several ranks none goes by its own times."""
    if world > 1:
        return _WINDOWS * window
    return min(_MOST, window * (1 + int(live_s / cached_s)))


def measure(
    step: Step,
    batch: Batch,
    feed: Callable[[], object],
    *,
    steps: int,
    rest: int,
    settle: Callable[[], object],
    on_gpu: bool,
    clock_s: Callable[[], float] = time.perf_counter,
) -> Contention:
    """Time `step` on `batch` so often beside the busy worker and then beside the idle one; the medians count.

    feed: gives the worker a batch to make, which it begins at once; called before each step, so that it is as busy as the
    training would make it. rest: steps between the two. settle: waits for the device.
    """

    def timed() -> float:
        settle()
        begun_s = clock_s()
        step(batch)
        settle()
        return max(clock_s() - begun_s, 1e-9)

    busy = []
    for _ in range(steps):
        feed()
        busy.append(timed())
    for _ in range(rest):
        step(batch)
    idle = [timed() for _ in range(steps)]
    return Contention(statistics.median(idle), statistics.median(busy), len(batch), on_gpu)
