"""Where a session's batches lie: a rank's batches are numbered 0, 1, 2... (its indexes) over all epochs of the session.

In an epoch that begins at batch f, rank r of W gets batch f + step * W + r at each step. The session's first epoch may begin
at any batch (it goes on where an earlier session stopped, of any world size); all later ones begin at batch 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.epoch_plan import batch_count, check_plan, lane_count, steps
from headrace.core.errors import StateInvalid, WorldMismatch
from headrace.core.job import JobSpec, Session, StreamState


@dataclass(frozen=True, slots=True)
class Position:
    """A rank's batch. epoch; step of the session in it; batch: k in the epoch's plan; lane that owns it."""

    epoch: int
    step: int
    batch: int
    lane: int


def resume_point(job: JobSpec, state: StreamState) -> tuple[int, int]:
    """(epoch, first batch) at which a session goes on from a state, for whatever world size it then has.

    A state at the end of its epoch (counted in the state's own world size) means the start of the next one. A state near the
    end may leave too few batches for one step of the new ranks: that is SessionPlan's to see, which then begins with the next
    epoch and counts the leftover as dropped. Raises StateInvalid (ids: epoch, first, step, world) for a state that no session
    of the job could be in.
    """
    ids = {"epoch": state.epoch, "first": state.first, "step": state.step, "world": state.world}
    batches = batch_count(job.samples, job.batch_size, job.tail)
    if min(state.epoch, state.first, state.step) < 0 or state.world < 1:
        raise StateInvalid("the state to resume from has a negative number or no ranks; pass it as it was saved", **ids)
    done = steps(batches, state.first, state.world, job.tail)
    if state.first > batches or state.step > done:
        raise StateInvalid(
            f"the state to resume from lies past its epoch of {batches} batches; it belongs to another data set or batch size",
            **ids,
        )
    if (state.step and state.step == done) or state.first == batches:
        return state.epoch + 1, 0
    return state.epoch, state.next_batch


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The arithmetic of one session; O(1) to make and to ask.

    epoch, first: where it really begins: the session's own, or (epoch + 1, 0) where no step is left in that epoch.
    Raises NoSteps if epochs of this world size have no step, StateInvalid if the session's numbers don't fit the job.
    """

    session: Session
    epoch: int = field(init=False)
    first: int = field(init=False)
    _batches: int = field(init=False, repr=False)
    _first_steps: int = field(init=False, repr=False)
    _steps: int = field(init=False, repr=False)
    _length: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        session, job = self.session, self.session.job
        if session.world < 1:
            raise WorldMismatch("a session needs at least one rank", job=job.name, world=session.world)
        check_plan(job.samples, job.batch_size, session.world, job.tail)
        batches = batch_count(job.samples, job.batch_size, job.tail)
        lanes = lane_count(job.samples, job.batch_size)
        if session.lanes != lanes:
            raise StateInvalid(
                f"the session has {session.lanes} lanes, its job's plan {lanes}; run the same version everywhere", job=job.name
            )
        if session.epoch < 0 or session.epochs < 0 or not 0 <= session.first <= batches:
            raise StateInvalid(
                f"a session cannot begin at batch {session.first} of an epoch of {batches}", job=job.name, epoch=session.epoch
            )
        left = steps(batches, session.first, session.world, job.tail)
        whole = steps(batches, 0, session.world, job.tail)
        epoch = session.epoch if left else session.epoch + 1
        more = max(0, session.epochs - epoch - 1)
        length = ((left or whole) + more * whole) if session.epochs > epoch else 0
        derived = {
            "epoch": epoch,
            "first": session.first if left else 0,
            "_batches": batches,
            "_first_steps": left or whole,
            "_steps": whole,
            "_length": length if session.epochs else None,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def length(self) -> int | None:
        """Batches that each rank gets in the whole session; None where it is endless."""
        return self._length

    def steps_in(self, epoch: int) -> int:
        """Steps of an epoch in this session; 0 for epochs that it does not reach or that were over before it."""
        epochs = self.session.epochs
        if epoch < self.epoch or (epochs and epoch >= epochs):
            return 0
        return self._first_steps if epoch == self.epoch else self._steps

    def dropped_in(self, epoch: int) -> int:
        """Samples of an epoch that no rank gets, once the session is through with it; 0 under `pad`.

        Batches before the session's first were taken by earlier sessions and don't count. An epoch that the session was to
        resume, but that has no step left for it, counts with what it leaves.
        """
        session, job = self.session, self.session.job
        epochs = session.epochs
        if job.tail == "pad" or epoch < session.epoch or (epochs and epoch >= epochs):
            return 0
        first = session.first if epoch == session.epoch else 0
        return job.samples - (first + self.steps_in(epoch) * session.world) * job.batch_size

    def locate(self, rank: int, index: int) -> Position | None:
        """Where batch `index` of `rank` lies; None past the session's end.

        Raises WorldMismatch (ids: rank, world) for a rank outside the world, StateInvalid for a negative index.
        """
        world = self.session.world
        if not 0 <= rank < world:
            raise WorldMismatch(f"rank {rank} lies outside a world of {world}; ranks count from 0", rank=rank, world=world)
        if index < 0:
            raise StateInvalid(f"batches are numbered from 0, not {index}", index=index)
        if self._length is not None and index >= self._length:
            return None
        epoch, first, step = self._split(index)
        batch = first + step * world + rank
        return Position(epoch, step, batch, batch % self.session.lanes)

    def state_at(self, index: int) -> StreamState:
        """What to resume from after every rank took `index` batches: at the end of an epoch it is the next one's start.

        Raises StateInvalid (ids: index) past the session's end.
        """
        length = self.length
        if index < 0 or (length is not None and index > length):
            raise StateInvalid(f"no rank can have taken {index} batches of a session of {length}", index=index)
        epoch, first, step = self._split(index)
        return StreamState(epoch, first, step, self.session.world)

    def _split(self, index: int) -> tuple[int, int, int]:
        """(epoch, its first batch, step) of an index."""
        if index < self._first_steps:
            return self.epoch, self.first, index
        later, step = divmod(index - self._first_steps, self._steps)
        return self.epoch + 1 + later, 0, step
