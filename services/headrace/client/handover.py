"""From a slot that arrived to a batch that is the trainer's: checked against the plan, its wait explained, counted once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.client.batch import Batch, pixel_view
from headrace.client.link import Link
from headrace.client.progress import Bad, Progress
from headrace.client.transports.protocol import TakenSlot
from headrace.core.batch import BAD_REASONS, PADDED, SUBSTITUTED
from headrace.core.errors import HeadraceError, ProtocolMismatch
from headrace.core.job import ANY_FINGERPRINT, Session
from headrace.core.pipeline_spec import ITEM_BYTES
from headrace.core.session_plan import Position, SessionPlan
from headrace.core.starvation import CAUSES, ClockOffset, split_wait

MAX_CLOCKS = 4096
_PLACE = ("index", "epoch", "step", "batch", "lane", "header index", "header token")


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch that is here and checked but not yet handed over; `transport` as the intake names it."""

    batch: Batch
    taken: TakenSlot


class HandOver:
    """The trainer's end of a session: arrivals in plan order, one at a time. For the trainer's thread alone.

    dropped: samples that no rank got, in the epochs that this session went through.
    """

    def __init__(self, link: Link, rank: int, progress: Progress) -> None:
        self._link = link
        self._rank = rank
        self._progress = progress
        self._clocks: dict[tuple[str, bool], ClockOffset] = {}
        self._waits: list[tuple[float, float]] = []
        self._constant = _constants(link.session, rank)
        self._expected = tuple(self._constant.values())
        self._located: tuple[int, Position | None] = (-1, None)
        self.plan = SessionPlan(link.session)
        self.next_index = 0
        self.dropped = 0
        if self.plan.epoch > link.session.epoch:  # nothing was left for the session in the epoch that it was to go on with
            self._epoch_ends(link.session.epoch)

    def position(self) -> Position | None:
        """Of the next batch to be handed over; None after the last."""
        return self._locate(self.next_index)

    def _locate(self, index: int) -> Position | None:
        if self._located[0] != index:
            self._located = index, self.plan.locate(self._rank, index)
        return self._located[1]

    def wait(self, index: int, deadline_s: float) -> Arrived:
        """Block until a batch is here. Raises WaitTimeout, what failed the batch, or what ended the session."""
        start_s = time.monotonic()
        self._progress.wait_begins(start_s)
        try:
            taken = self._link.intake.take(index, deadline_s)
        finally:
            end_s = time.monotonic()
            self._progress.wait_ends(end_s)
            # Also where it failed: if the trainer asks again, this time counts as waited for the same batch.
            self._waits.append((start_s, end_s))
        return self._arrived(index, taken)

    def peek(self, index: int) -> Arrived | None:
        """A batch if it is here already; None if not, and where asking failed, since the error then comes from `wait`."""
        try:
            return self._arrived(index, self._link.intake.take(index, 0.0))
        except HeadraceError:
            # Not there yet, or failed; the latter is not lost: `wait` asks for the same index and raises it to the trainer.
            return None

    def deliver(self, arrived: Arrived) -> Batch:
        """The batch is the trainer's from now on: explain its wait, count it."""
        batch, taken = arrived.batch, arrived.taken
        parts = self._explain(taken, batch.worker)
        self._waits.clear()
        bad = _bad_samples(taken)
        images = len(taken.meta.status) - taken.meta.status.tobytes().count(PADDED)
        self._progress.handed_over(images, taken.transport, parts, bad)
        self.next_index = taken.index + 1
        if taken.meta.step + 1 == self.plan.steps_in(taken.meta.epoch):
            self._epoch_ends(taken.meta.epoch)
        return batch

    def _epoch_ends(self, epoch: int) -> None:
        from structlog import get_logger  # here, since it loads much that a script for a pipeline spec does not need

        dropped = self.plan.dropped_in(epoch)
        self.dropped += dropped
        job = self._link.session.job.name
        get_logger().debug("epoch_ends", job=job, rank=self._rank, epoch=epoch, samples_dropped=dropped)

    def release(self, next_index: int) -> None:
        """All slots below `next_index` go back."""
        self._link.intake.release(next_index)

    def _explain(self, taken: TakenSlot, worker: str) -> Mapping[str, float]:
        shared = self._link.shares_clock(worker)
        if len(self._clocks) > MAX_CLOCKS:  # workers come and go over weeks
            self._clocks.clear()
        clock = self._clocks.get((worker, shared))
        if clock is None:
            clock = self._clocks[worker, shared] = ClockOffset(shared)
        line = clock.shift(taken.meta.milestones, taken.received_s)
        line["received"] = taken.received_s
        if len(self._waits) == 1:
            return split_wait(*self._waits[0], line)
        parts = dict.fromkeys(CAUSES, 0.0)
        for start_s, end_s in self._waits:
            for cause, seconds in split_wait(start_s, end_s, line).items():
                parts[cause] += seconds
        return parts

    def _arrived(self, index: int, taken: TakenSlot) -> Arrived:
        self._check(index, taken)
        return Arrived(Batch(taken.meta, taken.header, pixel_view(taken.slot, taken.header), taken.transport), taken)

    def _check(self, index: int, taken: TakenSlot) -> None:
        """The last guard of 'exactly once': what is handed over is the plan's very batch, whatever a worker believed."""
        meta, header = taken.meta, taken.header
        planned = self._locate(index)
        if planned is None:
            raise ProtocolMismatch("a batch beyond the session's end arrived", job=meta.job, index=index)
        place = (index, planned.epoch, planned.step, planned.batch, planned.lane, index, meta.token)
        got_place = (meta.index, meta.epoch, meta.step, meta.batch, meta.lane, header.index, header.token)
        got = (
            meta.job,
            meta.attempt,
            meta.rank,
            meta.plan_hash,
            len(meta.sample_ids),
            header.shape,
            header.dtype,
            header.layout,
            header.pixel_bytes,
            meta.fingerprint if self._constant["fingerprint"] is not None else None,
        )
        if got == self._expected and got_place == place:
            return
        for name, found, wanted in zip((*self._constant, *_PLACE), got + got_place, self._expected + place, strict=True):
            if found != wanted:
                raise ProtocolMismatch(
                    f"worker {meta.worker!r} sent a batch whose {name} is {found!r} where the plan has {wanted!r}: "
                    "its version or its engine differs from the session's",
                    job=self._link.session.job.name,
                    rank=self._rank,
                    index=index,
                    worker=meta.worker,
                )


def _constants(session: Session, rank: int) -> dict[str, Any]:
    """What every batch of a rank's session has; made once, since hashing the plan takes longer than all checks of a batch."""
    job = session.job
    shape = job.pipeline.shape(job.batch_size)
    constant: dict[str, Any] = {
        "job": job.name,
        "attempt": session.attempt,
        "rank": rank,
        "plan_hash": job.plan_hash,
        "samples": job.batch_size,
        "shape": shape,
        "dtype": job.pipeline.output.dtype,
        "layout": job.pipeline.output.layout,
        "pixel_bytes": math.prod(shape) * ITEM_BYTES[job.pipeline.output.dtype],
    }
    constant["fingerprint"] = None if job.fingerprint in ("", ANY_FINGERPRINT) else job.fingerprint
    return constant


def _bad_samples(taken: TakenSlot) -> list[Bad]:
    meta = taken.meta
    if not meta.bad_keys:  # one for each substituted sample
        return []
    rows = np.flatnonzero(meta.status == SUBSTITUTED).tolist()
    return [
        Bad(meta.epoch, int(meta.sample_ids[row]), key, BAD_REASONS[int(meta.reasons[row])])
        for row, key in zip(rows, meta.bad_keys, strict=True)
    ]
