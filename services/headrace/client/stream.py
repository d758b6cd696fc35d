"""A rank's batches in plan order. All methods are for one thread, the trainer's."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.client import arguments
from headrace.client.batch import Batch
from headrace.client.gpu import GpuChoice
from headrace.client.handover import Arrived, HandOver
from headrace.client.link import Connector, Link
from headrace.client.options import StreamOptions, state_from_dict, state_to_dict
from headrace.client.origin import Origin, StaysHere
from headrace.client.progress import Progress
from headrace.core.errors import StateInvalid
from headrace.core.job import JobSpec, Session, StreamState
from headrace.core.starvation import split_wait


@dataclass(frozen=True, slots=True)
class StreamStats:
    """A rank's numbers since its session began.

    images: handed over, without padding. dropped: samples that no rank got, in the epochs that the session went through.
    elapsed_s: since the first batch was asked for. wait_s: blocked in next(), the sum of wait_s_by_cause
    (core.starvation.CAUSES); waiting_s of it for a batch that is not here yet, by what is known of it so far. transport:
    rung in use, `mixed` if several. transports: worker -> (rung, why this one). remade: batches begun under one lease and
    delivered under another. refused: batches refused because a newer lease was known. awaited: who makes the next batch
    and since when.
    """

    batches: int
    committed: int
    images: int
    substituted: int
    dropped: int
    elapsed_s: float
    images_per_s: float
    wait_s: float
    wait_s_by_cause: dict[str, float]
    waiting_s: float
    transport: str
    transports: dict[str, tuple[str, str]]
    remade: int
    refused: int
    awaited: str


class _Rest(Iterator[Batch]):
    """The rest of a stream's epoch. No generator: an error ends one, and then the epoch would seem to end there, too."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._epoch: int | None = None  # until the first next(), which joins
        self._over = False

    def __next__(self) -> Batch:
        if self._over:
            raise StopIteration
        hand = self._stream._joined()
        position = hand.position()
        epoch = None if position is None else position.epoch
        if self._epoch is None:
            self._epoch = epoch
        if epoch is None or epoch != self._epoch:
            self._over = True
            self._stream._expire()
            raise StopIteration
        return self._stream._next(hand)


class Stream(StaysHere):
    """Iterate it to get batches; each `for` goes over the rest of the current epoch, as a DataLoader's does.

    The session is joined at the first `for`, `len()`, `epochs()`, `state_dict()` without a loaded state, or `join()`, and
    forms once all ranks have joined. Batches count as taken when they are handed over: `state_dict()` in the body of a
    loop says to go on after the batch in hand, and `commit()` commits it too.

    Use it as a context manager, or call `close()`. A signal handler may raise an exception, also while a batch is waited for,
    but must not call the stream's methods: set a flag, and look at it between batches. In a forked child the methods raise
    StateInvalid, and the end of the `with`, `close()` and the end of the process do nothing: the stream goes on in the parent.
    """

    def __init__(self, job: JobSpec, options: StreamOptions, connect: Connector, gpu: GpuChoice | None = None) -> None:
        self._job = job
        self._options = options
        self._gpu = gpu or GpuChoice()
        self._connect = connect
        self._progress = Progress()
        self._origin = Origin()
        self._state: StreamState | None = None
        self._link: Link | None = None
        self._hand: HandOver | None = None
        self._in_hand: Batch | None = None
        self._staged: Arrived | None = None
        self._closed = False
        self._abandoned: weakref.finalize[..., Any] | None = None

    # --- life time ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the session and end every thread, process and socket of this stream; idempotent; a few seconds at most.

        In a forked child it does nothing: all of that is the parent's.
        """
        if not self._origin.here:
            return
        self._closed = True
        self._expire()
        self._staged = None
        if self._abandoned is not None and self._link is not None:
            self._abandoned.detach()
            self._link.close()

    def join(self) -> Session:
        """Join now instead of at the first use; returns the session.

        Raises WaitTimeout naming the ranks that did not come, StateMismatch, WorldMismatch, RankClaimed, SessionSuperseded,
        NoSteps, CoordinatorUnavailable, TransportUnavailable.
        """
        return self._joined().plan.session

    def _joined(self) -> HandOver:
        self._origin.check("stream")
        if self._closed:
            raise StateInvalid("the stream is closed: open another with job.stream(...)", job=self._job.name)
        if self._hand is None:
            link = self._connect(self._state, self._progress)
            self._abandoned = weakref.finalize(self, link.abandon)
            self._abandoned.atexit = False
            self._link = link
            self._hand = HandOver(link, self._options.rank, self._progress)
            self._job = link.session.job
        return self._hand

    # --- batches -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch. What keeps a batch from coming is raised by next(); the next next() tries again."""
        return _Rest(self)

    def epochs(self) -> Iterator[int]:
        """Number of each epoch that has batches left, for an outer loop around `for batch in stream`.

        An epoch whose inner loop ended early comes again with its rest. Raises StateInvalid if the body took no batch.
        """
        hand = self._joined()
        while (position := hand.position()) is not None:
            before = hand.next_index
            yield position.epoch
            if hand.next_index == before:
                raise StateInvalid(
                    "no batch was taken in this turn of epochs(): iterate the stream in the loop's body", epoch=position.epoch
                )

    def __len__(self) -> int:
        """Steps that the next `for` yields; 0 after the last epoch."""
        hand = self._joined()
        position = hand.position()
        return 0 if position is None else hand.plan.steps_in(position.epoch) - position.step

    def __bool__(self) -> bool:
        """A stream is true; without this, `if stream:` would ask for its length and so join."""
        return True

    def _next(self, hand: HandOver) -> Batch:
        self._expire()
        hand.check_bad_share()
        arrived, self._staged = self._staged, None
        if arrived is None or arrived.taken.lost:
            arrived = hand.wait(hand.next_index, self._options.wait_deadline_s)
        self._in_hand = hand.deliver(arrived)
        return self._in_hand

    def _expire(self) -> None:
        """The batch in hand is done with: its memory goes back. Never in a forked child."""
        if self._in_hand is not None and self._hand is not None:
            self._in_hand.release()
            self._in_hand = None
            self._hand.release(self._hand.next_index)

    def stage_next(self) -> Batch | None:
        """The batch after the one in hand if it has arrived, not yet counted as handed over; the next next() hands it over.

        For iterators that copy one batch ahead to a device. Never blocks; None across an epoch's end.
        """
        hand = self._joined()
        if self._staged is None or self._staged.taken.lost:
            position = hand.position()
            if position is None or (self._in_hand is not None and position.epoch != self._in_hand.epoch):
                self._staged = None
                return None
            self._staged = hand.peek(hand.next_index)
        return self._staged.batch if self._staged is not None else None

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where to go on after the batches handed over so far: plain data for JSON, to be saved with the model's checkpoint.

        All ranks of a step have equal states. Any world size may resume from it, by `load_state_dict` or `state=`.
        """
        self._origin.check("stream")
        if self._hand is None and self._state is not None:
            return state_to_dict(self._job, self._state)
        hand = self._hand or self._joined()
        return state_to_dict(self._job, hand.plan.state_at(hand.next_index))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises StateInvalid if it does not fit the job, or once the session was joined."""
        self._origin.check("stream")
        if self._hand is not None or self._closed:
            raise StateInvalid(
                "load_state_dict() comes too late: call it before the first for, len(), epochs() or join() of this stream",
                job=self._job.name,
                rank=self._options.rank,
            )
        self._state = state_from_dict(self._job, state)

    def commit(self, deadline_s: float = 0.0) -> None:
        """All that was handed over is trained and checkpointed: a later attempt without a state goes on after it.

        It is reported within a second, and with the end of the stream. With a deadline above 0, it is at once, and this blocks
        until it is recorded; raises WaitTimeout, or what ended the session. Raises StateInvalid once the stream is closed.
        """
        self._origin.check("stream")
        arguments.deadline("deadline_s", deadline_s, zero=True)
        if self._closed:
            raise StateInvalid(
                "commit() comes too late, and nothing was committed: the stream is closed; the last commit comes before the "
                "end of the `with`, or before close()",
                job=self._job.name,
                rank=self._options.rank,
            )
        count = self._progress.commit()
        if deadline_s > 0 and self._link is not None:
            self._link.wait_recorded(count, deadline_s)

    # --- numbers -----------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session, None until it was joined."""
        return self._link.session if self._link is not None else None

    def prefer_gpu(self, ordinal: int) -> None:
        """Take batches on this GPU where a worker shares it, unless told otherwise. Too late once the session is joined."""
        if self._gpu.device is None:
            self._gpu.device = ordinal

    @property
    def options(self) -> StreamOptions:
        """What it was opened with."""
        return self._options

    def stats(self) -> StreamStats:
        """Numbers so far; also after close()."""
        self._origin.check("stream")
        totals = self._progress.snapshot()
        status = self._link.intake.status() if self._link is not None else None
        waits = totals.wait_by_cause
        if totals.waiting_s:
            now_s = time.monotonic()
            known = status.milestones if status and status.milestones else {"received": now_s}
            for cause, seconds in split_wait(now_s - totals.waiting_s, now_s, known).items():
                waits[cause] += seconds
        return StreamStats(
            batches=totals.consumed,
            committed=totals.committed,
            images=totals.images,
            substituted=totals.substituted,
            dropped=self._hand.dropped if self._hand is not None else 0,
            elapsed_s=totals.elapsed_s,
            images_per_s=totals.images / totals.elapsed_s if totals.elapsed_s > 0 else 0.0,
            wait_s=math.fsum(waits.values()),
            wait_s_by_cause=waits,
            waiting_s=totals.waiting_s,
            transport=totals.transport,
            transports=dict(status.transports) if status else {},
            remade=status.remade if status else 0,
            refused=status.refused if status else 0,
            awaited=status.awaited if status else "",
        )
