"""`headrace.diagnose(step, stream)`: is it the input that holds the training up? Measured, on the user's own step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace.client.batch import Batch
from headrace.client.contention import measure, rest_steps
from headrace.client.stream import Stream
from headrace.core.batch import MILESTONES
from headrace.core.bottleneck import Diagnosis, Measured, diagnosis
from headrace.core.errors import ConfigInvalid
from headrace.core.placement import GPU_ENGINES, engine_of
from headrace.core.starvation import CAUSES
from headrace.core.step_plan import Stages

Step = Callable[[Batch], object]
STEPS = 50
WARMUP = 5


def diagnose(
    step: Step,
    stream: Stream,
    *,
    steps: int = STEPS,
    warmup: int = WARMUP,
    sync: Callable[[], object] | None = None,
    beside: bool | None = None,
) -> Diagnosis:
    """Run `step` on one cached batch, then on the stream's, and say what input costs. print() it, or read its fields.

    step: takes a Batch and trains on it, as in the training loop: with the copy to the device. steps: measured in each part;
    warmup: run before each and not measured, as is what was made ahead meanwhile. sync: waits until the device has done its
    work; None takes torch's where torch uses a GPU. For jax, let `step` block until its result is ready. beside: measure, too,
    the cached step beside busy and beside idle workers; None: where one works on the GPU of the only rank.

    It trains on batches of the stream, which count as taken: use a job of its own, or a model that you throw away. Of several
    ranks, all call it with the same numbers. Raises ConfigInvalid where the stream ends too early, and what next() raises.
    """
    if steps < 1 or warmup < 0:
        raise ConfigInvalid(f"steps must be at least 1 and warmup at least 0, not {steps} and {warmup}", field="steps")
    settle = sync or _torch_sync
    session = stream.join()
    window = session.window
    needed = 1 + window + warmup + steps + (steps if beside else 0)
    batches = _batches(stream, needed)
    kept = next(batches).copy()
    cached_s = _cached_s(step, kept, steps, warmup, settle)
    for _ in range(window + warmup):  # the window was filled while the cached batch was trained on
        step(next(batches))
    settle()
    before, begun_s, times = stream.stats(), time.perf_counter(), _StageTimes()
    for _ in range(steps):
        batch = next(batches)
        times.add(batch)
        step(batch)
    settle()
    live_s, after = (time.perf_counter() - begun_s) / steps, stream.stats()
    waits_s = {cause: (after.wait_s_by_cause[cause] - before.wait_s_by_cause[cause]) / steps for cause in CAUSES}
    transports = after.transports
    found = Measured(
        steps=steps,
        batch_size=len(kept),
        cached_s=cached_s,
        live_s=live_s,
        waits_s=waits_s,
        workers=max(1, len(times.workers) or len(transports)),
        lanes=session.lanes,
        window=window,
        transport=after.transport,
        stages=times.stages(waits_s, cached_s),
    )
    on_gpu = times.on_gpu or any(rung == "cuda_ipc" for rung, _ in transports.values())
    # Of several ranks each might find another: they must all take the same steps.
    if beside or (beside is None and on_gpu and session.world == 1):
        rest = rest_steps(window, session.world, cached_s, live_s)
        cost = measure(step, kept, lambda: next(batches), steps=steps, rest=rest, settle=settle, on_gpu=on_gpu)
        found = replace(found, contention=cost)
    return diagnosis(found)


def _cached_s(step: Step, batch: Batch, steps: int, warmup: int, settle: Callable[[], object]) -> float:
    for _ in range(warmup):
        step(batch)
    settle()
    begun_s = time.perf_counter()
    for _ in range(steps):
        step(batch)
    settle()
    return max((time.perf_counter() - begun_s) / steps, 1e-9)


def _batches(stream: Stream, needed: int) -> Iterator[Batch]:
    taken = 0
    for _ in stream.epochs():
        for batch in stream:
            taken += 1
            yield batch
    raise ConfigInvalid(
        f"the stream ended after {taken} batches, and this takes {needed}: open it with more epochs (0 has no end), or take "
        "fewer steps",
        field="steps",
    )


class _StageTimes:
    """Means of what workers measured of the batches that came. workers: who made them. on_gpu: one worked on a GPU here."""

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.on_gpu = False
        self._sums = dict.fromkeys(("read", "decode", "augment"), 0.0)
        self._count = 0

    def add(self, batch: Batch) -> None:
        """Take one in."""
        moments = batch.milestones
        self.workers.add(batch.worker)
        # Through shared memory it comes from this node, whose GPUs the worker's may be one of.
        self.on_gpu = self.on_gpu or (batch.transport != "grpc" and engine_of(batch.fingerprint) in GPU_ENGINES)
        if set(MILESTONES) - moments.keys():
            return
        self._count += 1
        for name, begin, end in (
            ("read", "started", "read"),
            ("decode", "engine", "decoded"),
            ("augment", "decoded", "augmented"),
        ):
            self._sums[name] += max(0.0, moments[end] - moments[begin])

    def stages(self, waits_s: dict[str, float], step_s: float) -> Stages | None:
        """For `headrace plan`: of engine's time with all its threads."""
        if not self._count:
            return None
        means = {name: total / self._count for name, total in self._sums.items()}
        return Stages(means["read"], means["decode"], means["augment"], waits_s["transfer"], waits_s["copy"], step_s)


def _torch_sync() -> None:
    """Waits for the GPU where this process trains with torch on one: its calls return before the work is done."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
