"""How jobs are opened and ranks come together: state, event, expected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import (
    EngineUnsupported,
    JobMismatch,
    JobUnknown,
    NoSteps,
    RankClaimed,
    SessionSuperseded,
    StateInvalid,
    StateMismatch,
    WorldMismatch,
)
from headrace.core.events import (
    Join,
    Joined,
    Leave,
    Observe,
    Progress,
)
from headrace.core.job import Session, Shuffle, StreamState
from headrace.core.pipeline_spec import GaussianBlur, PipelineSpec, RandomResizedCrop
from tests.unit.session_world import RULES, SPEC, World

# --- open ------------------------------------------------------------------------------------------------------------


def test_open_is_idempotent_and_an_empty_fingerprint_fits() -> None:
    world = World()
    world.open()
    first = world.state
    world.open()
    assert world.state == first
    world.state = replace(first, job=replace(first.job, spec=SPEC.with_fingerprint("fp")))  # type: ignore[arg-type, type-var]
    world.open()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch_size": 32}, "batch_size"),
        ({"seed": 1}, "seed"),
        ({"shuffle": Shuffle(run=2)}, "shuffle.run"),
        ({"pipeline": PipelineSpec((RandomResizedCrop((64, 64)),))}, "pipeline.ops count"),
        ({"manifest_hash": "bb", "samples": 5000}, "manifest_hash"),
        ({"fingerprint": "other"}, "fingerprint"),
    ],
)
def test_open_with_other_parameters_names_the_first_that_differs(change: dict[str, object], field: str) -> None:
    world = World()
    world.open(fingerprint="fp")
    with pytest.raises(JobMismatch) as caught:
        world.open(**change)
    assert caught.value.ids["field"] == field
    assert str(caught.value.ids["recorded"]) in caught.value.message
    assert str(caught.value.ids["given"]) in caught.value.message


def test_open_refuses_a_plan_without_a_step() -> None:
    with pytest.raises(NoSteps):
        World().open(world=63)


def test_open_refuses_operations_that_no_live_worker_has() -> None:
    spec = PipelineSpec((RandomResizedCrop((64, 64)), GaussianBlur()))
    world = World()
    world.open(pipeline=spec)  # no worker yet: one may come
    world = World()
    world.add("a", ops=("random_resized_crop",))
    with pytest.raises(EngineUnsupported, match="gaussian_blur"):
        world.open(pipeline=spec)
    world.add("b", ops=("random_resized_crop", "gaussian_blur"))
    world.open(pipeline=spec)


# --- join ------------------------------------------------------------------------------------------------------------


def test_join_is_a_poll_until_all_have_come() -> None:
    world = World()
    with pytest.raises(JobUnknown):
        world.join(0)
    world.open()
    assert world.join(1) == Joined(1, None, (0,))
    assert world.join(1) == Joined(1, None, (0,))
    formed = world.join(0).session
    assert formed == Session(SPEC, 1, 2, 0, 0, 0, 3, 12)
    assert world.join(1).session == formed


def test_a_poll_writes_only_when_its_claim_runs_down() -> None:
    world = World()
    world.open()
    world.join(1)
    before = world.state
    world.wait(1)
    world.join(1)
    assert world.state is before
    world.wait(2)
    world.join(1)
    assert world.state.ranks[1].alive_until_us == world.now_us + RULES.rank_ttl_us


def test_another_client_cannot_take_a_live_rank() -> None:
    world = World()
    world.open()
    world.join(0, nonce="x")
    for attempt in (0, 1):
        with pytest.raises(RankClaimed) as caught:
            world.join(0, nonce="y", attempt=attempt)
        assert caught.value.ids == {"job": "job", "rank": 0, "attempt": 1}


def test_a_claim_lapses_when_its_client_stops_polling() -> None:
    world = World()
    world.open()
    world.join(0, attempt=1, nonce="dead")
    world.wait(6)
    assert world.join(1, attempt=1).awaited == (0,)
    world.join(0, attempt=1, nonce="new")
    assert world.state.session is not None
    assert world.state.session.formed
    assert world.state.session.attempt == 1


def test_an_abandoned_forming_attempt_does_not_bind_the_next_clients() -> None:
    world = World()
    world.open()
    world.join(0, world=4, epochs=3)
    world.wait(6)
    assert world.join(0, world=2, nonce="new").attempt == 2


def test_once_formed_a_rank_is_never_handed_over_within_the_attempt() -> None:
    world = World()
    world.open()
    world.form(attempt=1)
    world.wait(60)
    with pytest.raises(RankClaimed):
        world.join(0, attempt=1, nonce="other")
    assert world.join(0, attempt=1).session is not None


def test_automatic_attempts_wait_for_the_holder_and_then_begin_the_next() -> None:
    world = World()
    world.open()
    world.form()
    with pytest.raises(RankClaimed):
        world.join(0, nonce="second")
    world.wait(6)
    assert world.join(0, nonce="second").attempt == 2
    with pytest.raises(SessionSuperseded) as caught:
        world.report(1, 5)
    assert (caught.value.ids["job"], caught.value.ids["attempt"], caught.value.ids["newest"]) == ("job", 1, 2)


@pytest.mark.parametrize("how", ["left", "silent"])
def test_a_rank_that_left_does_not_end_the_attempt_of_those_that_go_on(how: str) -> None:
    world = World()
    world.open()
    world.form()
    world.do(Leave(1, 0, "n0", None))
    for _ in range(3):  # longer than its claim would have lasted
        world.wait(4)
        world.report(1, 5)
        with pytest.raises(RankClaimed, match="has left"):
            world.join(0, nonce="second")
    if how == "left":
        world.do(Leave(1, 1, "n1", None))
    else:
        world.wait(6)
    assert world.join(0, nonce="second").attempt == 2


def test_a_rank_whose_claim_lapsed_ends_the_attempt_although_others_go_on() -> None:
    world = World()
    world.open()
    world.form()
    world.wait(6)
    world.report(1, 5)
    assert world.join(0, nonce="second").attempt == 2


def test_a_higher_attempt_does_not_wait_for_those_that_go_on() -> None:
    world = World()
    world.open()
    world.form()
    world.do(Leave(1, 0, "n0", None))
    assert world.join(0, nonce="second", attempt=2).attempt == 2


@pytest.mark.parametrize(("attempt", "remedy"), [(0, "its claim lapses"), (1, "within an attempt no rank is handed on")])
def test_a_claimed_rank_is_told_what_would_help(attempt: int, remedy: str) -> None:
    world = World()
    world.open()
    world.form()
    with pytest.raises(RankClaimed, match=remedy):
        world.join(0, nonce="second", attempt=attempt)


def test_a_larger_world_waits_for_the_old_ranks_to_go() -> None:
    world = World()
    world.open()
    world.form()
    with pytest.raises(RankClaimed):
        world.join(3, world=4, nonce="x")
    world.wait(6)
    assert world.join(3, world=4, nonce="x").attempt == 2


def test_a_higher_attempt_supersedes_and_a_lower_one_is_told() -> None:
    world = World()
    world.open()
    world.form(attempt=3)
    assert world.join(0, attempt=7, nonce="x").attempt == 7
    for event in (
        Join(3, 1, 2, "n1", None, "", 0, "", 0),
        Observe(3, 1, "n1", None),
        Progress(3, 1, "n1", None, 1, 0),
    ):
        with pytest.raises(SessionSuperseded):
            world.do(event)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (1, 3), (0, 1)])
def test_ranks_must_agree_on_the_world(rank: int, size: int) -> None:
    world = World()
    world.open()
    world.join(0)
    with pytest.raises(WorldMismatch):
        world.join(rank, world=size, attempt=1, nonce="n0" if rank == 0 else "x")


def test_the_odd_state_is_named_to_every_rank() -> None:
    world = World()
    world.open()
    world.join(0, world=3, state=StreamState(0, 0, 2, 3))
    world.join(1, world=3, state=StreamState(0, 0, 1, 3))
    for rank, step in ((2, 2), (0, 2), (1, 1)):
        with pytest.raises(StateMismatch) as caught:
            world.join(rank, world=3, state=StreamState(0, 0, step, 3))
        assert caught.value.ids["ranks"] == "1"
        assert "rank 1: epoch 0 batch 3" in caught.value.message


def test_equal_places_in_other_words_are_one_state() -> None:
    world = World()
    world.open()
    world.join(0, state=StreamState(1, 0, 0, 2))
    session = world.join(1, state=StreamState(0, 0, 31, 2)).session  # the end of epoch 0
    assert session is not None
    assert (session.epoch, session.first) == (1, 0)


def test_states_without_a_majority_name_all() -> None:
    world = World()
    world.open()
    world.join(0, state=StreamState(0, 0, 2, 2))
    with pytest.raises(StateMismatch, match=r"rank 0: epoch 0 batch 4, rank 1: none given"):
        world.join(1)


def test_a_state_of_another_plan_or_past_the_epoch_is_invalid() -> None:
    world = World()
    world.open()
    with pytest.raises(StateInvalid):
        world.join(0, plan_hash="other")
    with pytest.raises(StateInvalid):
        world.join(0, state=StreamState(0, 0, 40, 2))
    assert world.state.session is None


def test_ranks_must_agree_on_the_epochs() -> None:
    world = World()
    world.open()
    world.join(0, epochs=2)
    with pytest.raises(StateMismatch):
        world.join(1, epochs=3)


def test_resume_is_from_the_least_committed_never_from_consumed() -> None:
    world = World()
    world.open()
    world.form()
    world.report(0, 20, committed=10)
    world.report(1, 20, committed=7)
    world.wait(6)
    session = world.form(world=4, suffix="b")
    assert (session.attempt, session.epoch, session.first) == (2, 0, 14)


def test_resume_crosses_epochs() -> None:
    world = World()
    world.open()
    world.form()
    for rank in range(2):
        world.report(rank, 40, committed=33)  # 31 steps in an epoch of 62 batches
    world.wait(6)
    session = world.form(suffix="b")
    assert (session.epoch, session.first) == (1, 4)


def test_a_rank_that_never_reported_committed_nothing() -> None:
    world = World()
    world.open()
    world.form()
    world.report(0, 20, committed=20)
    world.wait(6)
    assert world.form(suffix="b").first == 0


def test_an_attempt_that_never_formed_keeps_the_resume_point() -> None:
    world = World()
    world.open()
    world.form()
    for rank in range(2):
        world.report(rank, 20, committed=5)
    world.join(0, attempt=2, nonce="x")
    world.wait(6)
    assert world.form(attempt=3, suffix="y").first == 10


def test_an_explicit_state_goes_before_the_committed_one() -> None:
    world = World()
    world.open()
    world.form()
    for rank in range(2):
        world.report(rank, 20, committed=5)
    assert world.form(attempt=2, state=StreamState(3, 0, 1, 2)).epoch == 3
