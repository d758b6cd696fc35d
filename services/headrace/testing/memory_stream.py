"""A stream without services: the real plan and the real client over batches made in this process.

For tests of training code (`memory_stream(job, images)`), and for our own tests of what the client does with batches that
come late, fail, or are not what the plan says. Slots are as few and are reused as in earnest, so a batch that is used too
long shows another batch's pixels.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.client.batch import numpy_dtype
from headrace.client.options import StreamOptions
from headrace.client.progress import Progress
from headrace.client.stream import Stream
from headrace.client.transports.protocol import IntakeStatus, TakenSlot
from headrace.core.batch import OK, PADDED, REASON_CODE, SUBSTITUTED, BatchMeta
from headrace.core.epoch_plan import EpochPlan, lane_count
from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.core.job import JobSpec, LaneTable, Session, Stop, StreamState
from headrace.core.session_plan import Position, SessionPlan, resume_point
from headrace.wire import slot_format
from headrace.wire.batch_meta import encode_meta
from headrace.wire.meta_head import read_head

WORKER = "memory"

Images = Callable[[NDArray[np.int64], int], NDArray[Any]]


@dataclass(slots=True)
class MemoryIntake:
    """Implements client.transports.protocol.Intake. Batches are made when they are taken.

    images: (sample ids, epoch) -> pixels in the job's output shape and dtype. labels: (sample ids) -> int64[B] or uint8[B, C].
    bad: sample id -> reason; such samples are substituted. Set `held` to an index to have it and later ones not come until
    `let(None)`; `broken` maps an index to the error that its production failed with. place: what becomes of each slot that is
    taken. on_release: told what is released.
    """

    session: Session
    rank: int
    images: Images
    labels: Callable[[NDArray[np.int64]], NDArray[Any]] | None = None
    bad: dict[int, str] = field(default_factory=dict)
    held: int | None = None
    broken: dict[int, HeadraceError] = field(default_factory=dict)
    alter: Callable[[BatchMeta], None] = lambda meta: None
    place: Callable[[TakenSlot], TakenSlot] = lambda taken: taken
    on_release: Callable[[int], None] = lambda next_index: None
    released: int = 0
    closed: bool = False
    tables: list[LaneTable] = field(default_factory=list)
    milestones: dict[str, float] = field(default_factory=dict)
    plan: SessionPlan = field(init=False)
    _slots: list[bytearray] = field(init=False)
    _ended: HeadraceError | None = field(default=None, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    def __post_init__(self) -> None:
        job = self.session.job
        self.plan = SessionPlan(self.session)
        size = slot_format.job_slot_bytes(replace(job, max_key_bytes=64, max_label_bytes=64, label_width=1024))
        self._slots = [bytearray(size) for _ in range(self.session.window)]

    def let(self, held: int | None) -> None:
        """Change `held` while another thread waits."""
        with self._changed:
            self.held = held
            self._changed.notify_all()

    def update(self, table: LaneTable) -> None:
        """Noted only: there are no workers."""
        self.tables.append(table)

    def take(self, index: int, deadline_s: float) -> TakenSlot:
        """As the protocol says."""
        with self._changed:
            come = self._changed.wait_for(lambda: self._ended is not None or self.held is None or index < self.held, deadline_s)
            if self._ended is not None:
                raise self._ended
        if not come:
            raise WaitTimeout(f"batch {index} did not come within {deadline_s:g} s from worker {WORKER!r}", index=index)
        if index in self.broken:
            raise self.broken[index]
        position = self.plan.locate(self.rank, index)
        if position is None or not self.released <= index < self.released + self.session.window:
            raise AssertionError(f"index {index} lies outside the credit window that begins at {self.released}")
        return self.place(self._make(index, position))

    def _make(self, index: int, position: Position) -> TakenSlot:
        job, output = self.session.job, self.session.job.pipeline.output
        slot = memoryview(self._slots[index % len(self._slots)])
        meta = self._meta(index, position)
        self.alter(meta)
        shape, count = job.pipeline.shape(job.batch_size), job.pipeline.pixel_bytes(job.batch_size)
        pixels = np.frombuffer(slot_format.pixels(slot, count), numpy_dtype(output.dtype)).reshape(shape)
        pixels[...] = self.images(meta.source_ids, position.epoch)
        slot_format.seal(
            slot,
            encode_meta(meta),
            index=index,
            token=meta.token,
            dtype=output.dtype,
            layout=output.layout,
            shape=shape,
            pixel_bytes=count,
        )
        now_s = time.monotonic()
        header, data = slot_format.read_slot(slot)
        return TakenSlot(index, slot.toreadonly(), header, read_head(data), data, "shm", meta.worker, now_s, waited=True)

    def _meta(self, index: int, position: Position) -> BatchMeta:
        job = self.session.job
        samples = EpochPlan(job.samples, job.batch_size, job.seed, position.epoch, job.shuffle, job.tail).batch_samples(
            position.batch
        )
        ids = samples.sample_ids
        reasons = np.array([REASON_CODE[self.bad.get(int(sample), "none")] for sample in ids], np.uint8)
        sources = np.where(reasons > 0, ids[int(np.argmin(reasons))], ids)
        status = np.where(reasons > 0, SUBSTITUTED, OK).astype(np.uint8)
        status[~samples.mask] = PADDED
        now_s = time.monotonic()
        return BatchMeta(
            job=job.name,
            attempt=self.session.attempt,
            rank=self.rank,
            index=index,
            epoch=position.epoch,
            step=position.step,
            batch=position.batch,
            lane=position.lane,
            token=1,
            worker=WORKER,
            plan_hash=job.plan_hash,
            fingerprint=job.fingerprint or WORKER,
            sample_ids=ids,
            source_ids=sources,
            status=status,
            reasons=reasons,
            keys=[f"{sample:08d}" for sample in sources.tolist()],
            labels=sources.copy() if self.labels is None else self.labels(sources),
            bad_keys=[f"{sample:08d}" for sample in ids[status == SUBSTITUTED].tolist()],
            milestones={"leased": now_s, "started": now_s, "published": now_s},
        )

    def release(self, next_index: int) -> None:
        """As the protocol says."""
        self.released = max(self.released, next_index)
        self.on_release(next_index)

    def fail(self, error: HeadraceError) -> None:
        """As the protocol says."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    def status(self) -> IntakeStatus:
        """As the protocol says."""
        return IntakeStatus(transports={WORKER: ("shm", "made in this process")}, milestones=self.milestones)

    def close(self) -> None:
        """As the protocol says."""
        self.closed = True


@dataclass(slots=True)
class MemoryLink:
    """Implements client.link.Link for a session that nobody else knows."""

    session: Session
    intake: MemoryIntake
    closed: bool = False
    stop: Stop | None = None

    def clock_of(self, worker: str) -> str:
        """One process, one clock."""
        return "" if worker == WORKER else worker

    def wait_recorded(self, committed: int, deadline_s: float) -> None:
        """There is nobody to record it, so nothing to wait for."""

    def abandon(self) -> None:
        """As the protocol says; here there is nothing that could take long."""
        self.close()

    def close(self) -> None:
        """As the protocol says."""
        self.closed = True
        self.intake.close()


def memory_stream(
    job: JobSpec,
    images: Images,
    *,
    window: int = 3,
    on_link: Callable[[MemoryLink], None] = lambda link: None,
    options: StreamOptions | None = None,
    **intake: Any,
) -> Stream:
    """A Stream of `job` (whose `samples` must be set) with batches made by `images`; needs no service.

    images: (int64[B] sample ids, epoch) -> pixels in the job's output shape and dtype. options: rank, world and epochs as
    job.stream takes them; other ranks need not be there. intake: further MemoryIntake fields (`labels`, `bad`, ...).
    """
    chosen = options or StreamOptions()

    def connect(state: StreamState | None, progress: Progress) -> MemoryLink:
        epoch, first = (0, 0) if state is None else resume_point(job, state)
        session = Session(
            job=job,
            attempt=1,
            world=chosen.world,
            epoch=epoch,
            first=first,
            epochs=chosen.epochs,
            window=window,
            lanes=lane_count(job.samples, job.batch_size),
        )
        link = MemoryLink(session, MemoryIntake(session, chosen.rank, images, **intake))
        on_link(link)
        return link

    return Stream(job, chosen, connect)
