"""Sessions: indexes, equal steps, and no sample lost or repeated over any chain of world sizes."""

from collections import Counter

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.core.epoch_plan import EpochPlan, batch_count, lane_count, steps
from headrace.core.errors import NoSteps, StateInvalid, WorldMismatch
from headrace.core.job import JobSpec, Session, Shuffle, StreamState
from headrace.core.session_plan import Position, SessionPlan, resume_point


def make_job(samples: int, batch_size: int, tail: str, shuffle: Shuffle | None = None) -> JobSpec:
    return JobSpec(
        name="job",
        dataset="mem:",
        batch_size=batch_size,
        tail=tail,
        samples=samples,
        seed=3,
        shuffle=shuffle or Shuffle(run=4, window=9),
    )


def make_plan(job: JobSpec, world: int, epoch: int = 0, first: int = 0, epochs: int = 0) -> SessionPlan:
    lanes = lane_count(job.samples, job.batch_size)
    return SessionPlan(Session(job=job, attempt=1, world=world, epoch=epoch, first=first, epochs=epochs, window=3, lanes=lanes))


JOBS = st.builds(make_job, st.integers(1, 120), st.integers(1, 16), st.sampled_from(["drop", "pad"]))


@st.composite
def session_plans(draw) -> SessionPlan:
    job = draw(JOBS)
    batches = batch_count(job.samples, job.batch_size, job.tail)
    assume(batches)
    world = draw(st.integers(1, batches if job.tail == "drop" else batches + 3))
    epoch = draw(st.integers(0, 5))
    return make_plan(job, world, epoch, draw(st.integers(0, batches)), draw(st.sampled_from([0, 0, epoch + 1, epoch + 3])))


class Ledger:
    """What trainers were handed: how often each sample of each epoch, and what was counted as dropped."""

    def __init__(self, job: JobSpec) -> None:
        self.job = job
        self.seen: Counter[tuple[int, int]] = Counter()
        self.dropped: Counter[int] = Counter()

    def hand_over(self, position: Position) -> None:
        job = self.job
        plan = EpochPlan(job.samples, job.batch_size, job.seed, position.epoch, job.shuffle, job.tail)
        assert position.lane == plan.lane_of(position.batch)
        found = plan.batch_samples(position.batch)
        self.seen.update((position.epoch, sample) for sample in found.sample_ids[found.mask].tolist())

    def in_epoch(self, epoch: int) -> int:
        return sum(1 for seen_epoch, _ in self.seen if seen_epoch == epoch)


@settings(print_blob=True, deadline=None, max_examples=120)
@given(job=JOBS, chain=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=5))
@example(job=make_job(4000, 256, "drop"), chain=[(2, 3), (3, 1), (1, 20)])
@example(job=make_job(4000, 256, "pad"), chain=[(2, 3), (3, 1), (1, 20)])
@example(job=make_job(30, 2, "drop"), chain=[(2, 6), (4, 0), (4, 2)])  # three batches left are no step of four ranks
@example(job=make_job(5, 8, "pad"), chain=[(3, 2), (1, 2), (2, 1)])  # below one batch
def test_any_chain_of_world_sizes_hands_out_every_sample_once_but_the_counted_drop(job, chain):
    ledger, state = Ledger(job), StreamState()
    batches = batch_count(job.samples, job.batch_size, job.tail)
    chain = [(world if job.tail == "pad" else min(world, batches), taken) for world, taken in chain]
    assume(batches)
    for world, taken in chain:
        epoch, first = resume_point(job, state)
        plan = make_plan(job, world, epoch, first)
        for index in range(taken):
            positions = [plan.locate(rank, index) for rank in range(world)]
            assert len({(position.epoch, position.step) for position in positions}) == 1
            for position in positions:
                ledger.hand_over(position)
        state = plan.state_at(taken)
        for passed in range(epoch, state.epoch):
            ledger.dropped[passed] += plan.dropped_in(passed)
    assert set(ledger.seen.values()) <= {1}
    for epoch in range(state.epoch):
        assert ledger.in_epoch(epoch) + ledger.dropped[epoch] == job.samples
    assert ledger.in_epoch(state.epoch) == min(state.next_batch * job.batch_size, job.samples)
    assert job.tail == "drop" or not +ledger.dropped


@settings(print_blob=True, deadline=None, max_examples=200)
@given(plan=session_plans(), index=st.integers(0, 200))
def test_index_and_epoch_step_name_the_same_batch(plan, index):
    world = plan.session.world
    if plan.length is not None and index >= plan.length:
        assert all(plan.locate(rank, index) is None for rank in range(world))
        return
    positions = [plan.locate(rank, index) for rank in range(world)]
    head = positions[0]
    assert sum(plan.steps_in(epoch) for epoch in range(plan.epoch, head.epoch)) + head.step == index
    assert [position.batch for position in positions] == list(range(head.batch, head.batch + world))
    state = plan.state_at(index)
    assert (state.epoch, state.step, state.next_batch, state.world) == (head.epoch, head.step, head.batch, world)


@settings(print_blob=True, deadline=None, max_examples=150)
@given(plan=session_plans(), taken=st.integers(0, 60))
def test_a_resumed_session_goes_on_with_the_very_next_batches(plan, taken):
    session = plan.session
    if plan.length is not None:
        taken = min(taken, plan.length)
    epoch, first = resume_point(session.job, plan.state_at(taken))
    resumed = make_plan(session.job, session.world, epoch, first, session.epochs)
    for further in range(12):
        for rank in range(session.world):
            old, new = plan.locate(rank, taken + further), resumed.locate(rank, further)
            assert (old is None) == (new is None)
            if old and new:
                assert (old.epoch, old.batch, old.lane) == (new.epoch, new.batch, new.lane)


@settings(print_blob=True, deadline=None, max_examples=150)
@given(plan=session_plans())
def test_steps_and_length_add_up_and_ranks_are_equal(plan):
    session, job = plan.session, plan.session.job
    batches = batch_count(job.samples, job.batch_size, job.tail)
    last = session.epochs or plan.epoch + 3
    total = sum(plan.steps_in(epoch) for epoch in range(last))
    if session.epochs:
        assert plan.length == total
        assert all(plan.locate(rank, total) is None for rank in range(session.world))
        assert plan.state_at(total) == StreamState(
            max(last, plan.epoch), plan.first if plan.epoch >= last else 0, 0, session.world
        )
    for rank in range(session.world):
        per_epoch = Counter(plan.locate(rank, index).epoch for index in range(total))
        assert per_epoch == +Counter({epoch: plan.steps_in(epoch) for epoch in range(last)})
    if plan.steps_in(session.epoch):
        assert plan.steps_in(session.epoch) == steps(batches, session.first, session.world, job.tail)


def test_the_drop_of_the_design_is_416():
    plan = make_plan(make_job(4000, 256, "drop"), world=2)
    assert plan.steps_in(0) == 7
    assert plan.dropped_in(0) == 416
    assert plan.dropped_in(5) == 416
    assert make_plan(make_job(4000, 256, "pad"), world=2).dropped_in(0) == 0


def test_an_epoch_without_a_step_left_is_skipped_and_counted():
    plan = make_plan(make_job(4000, 256, "drop"), world=4, epoch=2, first=12)
    assert plan.steps_in(2) == 0
    assert plan.dropped_in(2) == 4000 - 12 * 256
    assert plan.locate(0, 0) == Position(epoch=3, step=0, batch=0, lane=0)
    assert plan.state_at(0) == StreamState(3, 0, 0, 4)
    assert make_plan(make_job(4000, 256, "drop"), world=4, epoch=2, first=12, epochs=3).locate(0, 0) is None
    assert make_plan(make_job(4000, 256, "drop"), world=4, epoch=2, first=12, epochs=3).length == 0


def test_end_of_epoch_is_the_start_of_the_next():
    plan = make_plan(make_job(4000, 256, "drop"), world=2, epoch=1, first=5)
    assert plan.state_at(5) == StreamState(2, 0, 0, 2)
    assert plan.state_at(4) == StreamState(1, 5, 4, 2)
    job = plan.session.job
    assert resume_point(job, StreamState(1, 5, 5, 2)) == (2, 0)
    assert resume_point(job, StreamState(1, 5, 4, 2)) == (1, 13)
    assert resume_point(job, StreamState(1, 15, 0, 2)) == (2, 0)


@pytest.mark.parametrize(
    "state",
    [
        StreamState(0, 16, 0, 2),
        StreamState(0, 0, 8, 2),
        StreamState(-1, 0, 0, 2),
        StreamState(0, 0, -1, 2),
        StreamState(0, 0, 0, 0),
    ],
)
def test_a_state_that_no_session_could_be_in_is_refused(state):
    with pytest.raises(StateInvalid) as error:
        resume_point(make_job(4000, 256, "drop"), state)
    assert error.value.ids["first"] == state.first


def test_refusals_name_what_is_wrong():
    job = make_job(4000, 256, "drop")
    plan = make_plan(job, world=2, epochs=1)
    with pytest.raises(WorldMismatch, match="rank 2 lies outside"):
        plan.locate(2, 0)
    with pytest.raises(StateInvalid):
        plan.locate(0, -1)
    with pytest.raises(StateInvalid):
        plan.state_at(8)
    with pytest.raises(NoSteps):
        make_plan(job, world=16)
    with pytest.raises(StateInvalid, match="batch 16"):
        make_plan(job, world=2, first=16)
    with pytest.raises(StateInvalid, match="lanes"):
        SessionPlan(Session(job=job, attempt=1, world=2, epoch=0, first=0, epochs=0, window=3, lanes=5))
