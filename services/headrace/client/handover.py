"""From a slot that arrived to a batch that is the trainer's: checked against the plan, its wait explained, counted once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.client.batch import Batch, pixel_view
from headrace.client.link import Link
from headrace.client.progress import Bad, Progress
from headrace.client.transports.protocol import TakenSlot
from headrace.core.bad_share import too_many, why
from headrace.core.batch import BAD_REASONS, SUBSTITUTED, BatchMeta
from headrace.core.errors import HeadraceError, ProtocolMismatch, TooManyBadSamples
from headrace.core.job import ANY_FINGERPRINT, JobSpec
from headrace.core.pipeline_spec import ITEM_BYTES
from headrace.core.session_plan import Position, SessionPlan
from headrace.core.starvation import CAUSES, ClockOffset, split_wait
from headrace.wire.meta_head import KnownStamps, read_milestones

MAX_CLOCKS = 4096
_PLACE = ("attempt", "rank", "index", "epoch", "step", "batch", "lane", "samples")
_FORM = ("dtype", "layout", "shape", "pixel_bytes")
_ONE_KERNEL = frozenset({"shm", "cuda_ipc"})


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
        self._intake = link.intake
        self._rank = rank
        self._progress = progress
        self._clocks: dict[str, ClockOffset] = {}
        self._waits: list[tuple[float, float]] = []
        job = link.session.job
        self._who = (link.session.attempt, rank)
        self._samples = job.batch_size
        self._form = _form(job)
        self._texts = _texts(job)
        self._stamps = KnownStamps()
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

    def check_bad_share(self) -> None:
        """Raise TooManyBadSamples where the next batch is beyond what bad samples leave of the session (core.bad_share)."""
        session, stop = self._link.session, self._link.stop
        if stop is not None and self.next_index >= stop.index:
            text = stop.why
        elif session.world == 1 and self._progress.first_bad and too_many(session.job, *self._progress.bad_share()):
            totals = self._progress.snapshot()
            text = why(session.job, totals.images, totals.bad_counts, self._progress.first_bad)
        else:
            return
        raise TooManyBadSamples(text, job=session.job.name, attempt=session.attempt, rank=self._rank, index=self.next_index)

    def wait(self, index: int, deadline_s: float) -> Arrived:
        """Block until a batch is here. Raises WaitTimeout, what failed the batch, or what ended the session."""
        start_s = time.monotonic()
        self._progress.wait_begins(start_s)
        try:
            return self._arrived(index, self._intake.take(index, deadline_s))
        except BaseException:
            self._progress.wait_ends(time.monotonic())
            raise
        finally:
            # Also where it failed: if the trainer asks again, this time counts as waited for the same batch.
            self._waits.append((start_s, time.monotonic()))

    def peek(self, index: int) -> Arrived | None:
        """A batch if it is here already; None if not, and where asking failed, since the error then comes from `wait`."""
        try:
            return self._arrived(index, self._intake.take(index, 0.0))
        except HeadraceError:
            # Not there yet, or failed; the latter is not lost: `wait` asks for the same index and raises it to the trainer.
            return None

    def deliver(self, arrived: Arrived) -> Batch:
        """The batch is the trainer's from now on: explain its wait, count it."""
        batch, taken = arrived.batch, arrived.taken
        head = taken.head
        if len(self._waits) == 1 and not taken.waited:  # it was here when it was asked for
            start_s, end_s = self._waits.pop()
            parts: Mapping[str, float] = {"copy": end_s - start_s}
            if taken.released_s is not None and taken.transport not in _ONE_KERNEL:
                self._milestones(taken)  # the clocks are compared by every batch that can tell of them
        else:
            parts = self._explain(taken)
            self._waits.clear()
        bad = _bad_samples(batch._meta) if head.substituted else []
        self._progress.handed_over(head.samples - head.padded, taken.transport, parts, bad)
        self.next_index = taken.index + 1
        if head.step + 1 == self.plan.steps_in(head.epoch):
            self._epoch_ends(head.epoch)
        return batch

    def _epoch_ends(self, epoch: int) -> None:
        from headrace.client.logs import log  # here, since it loads much that a script for a pipeline spec does not need

        dropped = self.plan.dropped_in(epoch)
        self.dropped += dropped
        job = self._link.session.job.name
        log.debug("epoch_ends", job=job, rank=self._rank, epoch=epoch, samples_dropped=dropped)

    def release(self, next_index: int) -> None:
        """All slots below `next_index` go back."""
        self._intake.release(next_index)

    def _explain(self, taken: TakenSlot) -> Mapping[str, float]:
        line = self._milestones(taken)
        line["received"] = taken.received_s
        parts = dict.fromkeys(CAUSES, 0.0)
        for start_s, end_s in self._waits:
            for cause, seconds in split_wait(start_s, end_s, line).items():
                parts[cause] += seconds
        return parts

    def _milestones(self, taken: TakenSlot) -> dict[str, float]:
        """The worker's, on this process's clock."""
        milestones = read_milestones(taken.meta)
        name = self._link.clock_of(taken.worker)
        if not name:
            return milestones
        if len(self._clocks) > MAX_CLOCKS:  # workers come and go over weeks
            self._clocks.clear()
        clock = self._clocks.setdefault(name, ClockOffset())
        clock.note(milestones, taken.received_s, taken.released_s)
        return clock.shift(milestones, taken.received_s)

    def _arrived(self, index: int, taken: TakenSlot) -> Arrived:
        self._check(index, taken)
        pixels = pixel_view(taken.slot, taken.header) if taken.device is None else None
        form = (taken.head, taken.meta, taken.header, pixels, taken.transport)
        return Arrived(Batch(*form, device=taken.device, pinned=taken.pinned), taken)

    def _check(self, index: int, taken: TakenSlot) -> None:
        """The last guard of 'exactly once': what is handed over is the plan's very batch, whatever a worker believed."""
        head, header = taken.head, taken.header
        planned = self._locate(index)
        if planned is None:
            raise ProtocolMismatch("a batch beyond the session's end arrived", job=self._link.session.job.name, index=index)
        place = (*self._who, index, planned.epoch, planned.step, planned.batch, planned.lane, self._samples)
        form = (header.dtype, header.layout, header.shape, header.pixel_bytes)
        if head[:8] == place and form == self._form and head.stamp in self._stamps:
            return
        from headrace.wire.batch_meta import decode_meta  # here, since protobuf takes long to load

        meta = decode_meta(taken.meta)
        texts = {name: getattr(meta, name) for name in self._texts}
        names = (*self._texts, *_PLACE, *_FORM)
        got, expected = (*texts.values(), *head[:8], *form), (*self._texts.values(), *place, *self._form)
        for name, found, wanted in zip(names, got, expected, strict=True):
            if found != wanted:
                raise ProtocolMismatch(
                    f"worker {meta.worker!r} sent a batch whose {name} is {found!r} where the plan has {wanted!r}: "
                    "its version or its engine differs from the session's",
                    job=self._link.session.job.name,
                    rank=self._rank,
                    index=index,
                    worker=meta.worker,
                )
        if meta.fingerprint and not self._link.session.job.fingerprint and not self._progress.fingerprint:
            # The first batch binds a session whose job had no engine when it formed. From then on it takes no other, and tells
            # a store that lost the job which one it was.
            self._progress.fingerprint = self._texts["fingerprint"] = meta.fingerprint
        # The stamp stands for the texts, so that they are looked at once.
        self._stamps.add(head.stamp)


def _form(job: JobSpec) -> tuple[str, str, tuple[int, ...], int]:
    """dtype, layout, shape and bytes of each batch's pixels."""
    shape = job.pipeline.shape(job.batch_size)
    dtype = job.pipeline.output.dtype
    return dtype, job.pipeline.output.layout, shape, math.prod(shape) * ITEM_BYTES[dtype]


def _texts(job: JobSpec) -> dict[str, str]:
    """What every batch of a session says of it."""
    texts = {"job": job.name, "plan_hash": job.plan_hash}
    return texts if job.fingerprint in ("", ANY_FINGERPRINT) else {**texts, "fingerprint": job.fingerprint}


def _bad_samples(meta: BatchMeta) -> list[Bad]:
    rows = np.flatnonzero(meta.status == SUBSTITUTED).tolist()
    return [
        Bad(meta.epoch, int(meta.sample_ids[row]), key, BAD_REASONS[int(meta.reasons[row])])
        for row, key in zip(rows, meta.bad_keys, strict=True)
    ]
