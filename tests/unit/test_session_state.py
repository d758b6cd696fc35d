"""The rules of jobs and sessions: state, event, expected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.errors import (
    EngineUnsupported,
    HeadraceError,
    JobMismatch,
    JobUnknown,
    NoSteps,
    RankClaimed,
    SessionSuperseded,
    SessionUnknown,
    StateInvalid,
    StateMismatch,
    WorldMismatch,
)
from headrace.core.events import (
    Adopt,
    BadSample,
    Event,
    JobState,
    Join,
    Joined,
    LaneMoved,
    Leave,
    Observe,
    Open,
    Progress,
    RecordBad,
    Refuse,
    Rules,
    Tick,
)
from headrace.core.job import Endpoint, JobSpec, Session, Shuffle, StreamState
from headrace.core.pipeline_spec import GaussianBlur, PipelineSpec, RandomResizedCrop
from headrace.core.records import LaneRecord, WorkerRecord
from headrace.core.session_state import apply

# 4000 samples in batches of 64: 62 full batches, 12 lanes.
SPEC = JobSpec("job", "/data", 64, manifest_hash="aa", samples=4000)
RULES = Rules()
S = 1_000_000
NOW = 1_700_000_000 * S


class World:
    """One job under the rules, with a clock."""

    def __init__(self, spec: JobSpec = SPEC, rules: Rules = RULES) -> None:
        self.state = JobState(spec.name)
        self.now_us = NOW
        self.rules = rules
        self.spec = spec
        self.effects: list[object] = []

    def do(self, event: Event) -> list[object]:
        self.state, effects = apply(self.state, event, self.now_us, self.rules)
        self.effects = list(effects)
        for effect in effects:
            if isinstance(effect, Refuse):
                raise effect.error
        return self.effects

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * S)

    def open(self, world: int = 2, **change: object) -> None:
        self.do(Open(replace(self.spec, **change), world))  # type: ignore[arg-type]

    def join(self, rank: int, world: int = 2, attempt: int = 0, nonce: str = "", **more: object) -> Joined:
        values: dict[str, object] = {"state": None, "plan_hash": "", "epochs": 0, "node": "n0", "slot_bytes": 1000, **more}
        event = Join(attempt=attempt, rank=rank, world=world, nonce=nonce or f"n{rank}", **values)  # type: ignore[arg-type]
        return next(effect for effect in self.do(event) if isinstance(effect, Joined))

    def form(self, world: int = 2, attempt: int = 0, suffix: str = "", **more: object) -> Session:
        for rank in range(world):
            answer = self.join(rank, world, attempt, f"n{rank}{suffix}", **more)
        assert answer.session is not None
        return answer.session

    def report(
        self, rank: int, consumed: int, committed: int = 0, *, attempt: int = 1, nonce: str = "", known: Session | None = None
    ) -> None:
        self.do(Progress(attempt, rank, nonce or f"n{rank}", known, consumed, committed, elapsed_s=consumed))

    def add(self, name: str, **change: object) -> None:
        endpoint = Endpoint(name, f"{name}-1", "n0", f"{name}:1", "")
        worker = WorkerRecord(endpoint, "fp", SPEC.pipeline.op_names, 0.0, 1, False, self.now_us + 3 * S)
        self.state = replace(self.state, workers={**self.state.workers, name: replace(worker, **change)})  # type: ignore[arg-type]

    def tick(self) -> list[object]:
        return self.do(Tick(1000))

    def owners(self) -> list[str]:
        return [self.state.lanes.get(n, LaneRecord()).owner for n in range(12)]


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


def test_a_rank_that_left_can_be_claimed_at_once() -> None:
    world = World()
    world.open()
    world.form()
    world.do(Leave(1, 0, "n0", None))
    assert world.join(0, nonce="second").attempt == 2


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


# --- progress --------------------------------------------------------------------------------------------------------


def test_cursors_only_grow_and_overtaken_reports_change_nothing() -> None:
    world = World()
    world.open()
    world.form()
    world.report(0, 10, committed=8)
    world.report(0, 6, committed=4)
    record = world.state.ranks[0]
    assert (record.consumed, record.committed, record.elapsed_s) == (10, 8, 10)


def test_reports_of_strangers_are_refused() -> None:
    world = World()
    world.open()
    world.form()
    cases: list[tuple[type[HeadraceError], dict[str, object]]] = [
        (RankClaimed, {"nonce": "other"}),
        (SessionUnknown, {"attempt": 2}),
        (WorldMismatch, {"rank": 2}),
        (StateInvalid, {"committed": 9}),
    ]
    for cls, change in cases:
        with pytest.raises(cls):
            world.report(**{"rank": 0, "consumed": 5, **change})  # type: ignore[arg-type]
    assert world.state.ranks[0].consumed == 0


def test_bad_samples_are_passed_on() -> None:
    world = World()
    world.open()
    world.form()
    bad = (BadSample(0, 7, "k", "corrupt"),)
    assert RecordBad(bad) in world.do(Progress(1, 0, "n0", None, 1, 0, bad=bad))


def test_leaving_twice_or_late_is_no_error() -> None:
    world = World()
    world.open()
    world.form()
    last = Progress(1, 0, "n0", None, 9, 9)
    world.do(Leave(1, 0, "n0", last))
    after = world.state
    assert after.ranks[0].committed == 9
    world.wait(1)
    world.do(Leave(1, 0, "n0", None))
    assert world.state == after
    world.join(0, attempt=2, nonce="x")
    world.do(Leave(1, 0, "n0", last))


# --- healing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["report", "watch", "heartbeat"])
def test_a_lost_session_is_rebuilt_from_whoever_knows_it(event: str) -> None:
    world = World()
    world.open()
    session = world.form(attempt=4)
    world.state = JobState("job", workers=world.state.workers)
    if event == "report":
        world.report(1, 12, committed=11, attempt=4, known=session)
        assert world.state.ranks[1].committed == 11
    elif event == "watch":
        world.do(Observe(4, 1, "n1", session))
    else:
        world.do(Adopt("w", "w-1", 4, ((3, NOW),), session))
        assert world.state.lanes[3] == LaneRecord("w", "w-1", NOW)
    assert world.state.session is not None
    assert world.state.job is not None
    assert world.state.session.session(world.state.job) == session


def test_a_store_that_only_knows_an_older_attempt_is_healed_and_a_newer_one_is_not_turned_back() -> None:
    world = World()
    world.open()
    old = world.form(attempt=1)
    before = world.state
    new = world.form(attempt=2, suffix="b")
    after = world.state
    world.state = before
    world.report(0, 3, attempt=2, nonce="n0b", known=new)
    assert world.state.session is not None
    assert world.state.session.attempt == 2
    world.state = after
    with pytest.raises(SessionSuperseded):
        world.report(0, 3, attempt=1, known=old)


def test_a_session_of_another_plan_does_not_heal() -> None:
    world = World()
    world.open()
    session = world.form(attempt=4)
    other = World()
    other.open(seed=9)
    with pytest.raises(JobMismatch):
        other.do(Observe(4, 1, "n1", session))


def test_only_newer_and_possible_tokens_are_adopted() -> None:
    world = World()
    world.open()
    world.form()
    world.add("a")
    world.tick()
    token = world.state.lanes[0].token
    held = ((0, token - 1), (1, token), (2, token + 5), (12, token + 5), (3, NOW * 2))
    world.do(Adopt("b", "b-1", 1, held, None))
    assert world.owners() == ["a", "a", "b", *["a"] * 9]


# --- tick ------------------------------------------------------------------------------------------------------------


def test_lanes_are_leased_once_formed_and_a_second_tick_changes_nothing() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.tick()
    assert world.owners() == [""] * 12
    world.form()
    world.tick()
    assert sorted(world.owners()) == ["a"] * 6 + ["b"] * 6
    assert {lane.token for lane in world.state.lanes.values()} == {NOW}
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 0
    before = world.state
    world.wait(1)
    assert world.tick() == []
    assert world.state is before


def test_lanes_of_each_rank_are_spread_over_the_workers() -> None:
    world = World()
    world.open()
    world.add("a", endpoint=Endpoint("a", "a-1", "elsewhere", "a:1", ""))
    world.add("b", endpoint=Endpoint("b", "b-1", "elsewhere", "b:1", ""))
    world.form()
    world.tick()
    for rank in range(2):
        assert sorted(world.owners()[rank::2]) == ["a"] * 3 + ["b"] * 3


def test_the_fingerprint_is_pinned_by_the_fastest_and_others_get_nothing() -> None:
    world = World()
    world.open()
    world.add("a", fingerprint="slow", samples_per_s=10.0)
    world.add("b", fingerprint="fast", samples_per_s=90.0)
    assert world.form().job.fingerprint == "fast"
    world.tick()
    assert set(world.owners()) == {"b"}


def test_lanes_of_a_dead_worker_move_with_higher_tokens() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    lost = [n for n, owner in enumerate(world.owners()) if owner == "a"]
    world.wait(4)
    world.add("b")
    world.report(0, 1)
    moves = [effect for effect in world.tick() if isinstance(effect, LaneMoved)]
    assert [move.lane for move in moves] == lost
    assert {(move.owner, move.to, move.reason) for move in moves} == {("a", "b", "lost")}
    assert all(world.state.lanes[n].token == world.now_us for n in lost)
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 6


def test_a_restarted_worker_gets_new_tokens() -> None:
    world = World()
    world.open()
    world.add("a")
    world.form()
    world.tick()
    world.wait(1)
    world.add("a", endpoint=Endpoint("a", "a-2", "n0", "a:2", ""))
    world.tick()
    assert {(lane.incarnation, lane.token) for lane in world.state.lanes.values()} == {("a-2", world.now_us)}


def test_tokens_grow_although_the_clock_went_back() -> None:
    world = World()
    world.open()
    world.form()
    world.state = replace(world.state, lanes={0: LaneRecord("", "", NOW + 50)})
    world.add("a")
    world.tick()
    assert world.state.lanes[0].token == NOW + 51


def test_a_draining_worker_keeps_what_it_finishes_and_gets_nothing_new() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    mine = [n for n, owner in enumerate(world.owners()) if owner == "a"]
    world.add("a", draining=True, finishing=(("job", (mine[0],)),))
    world.tick()
    assert [n for n, owner in enumerate(world.owners()) if owner == "a"] == [mine[0]]
    world.add("a", draining=True)
    moves = [effect for effect in world.tick() if isinstance(effect, LaneMoved)]
    assert [(move.lane, move.reason) for move in moves] == [(mine[0], "drained")]


def test_a_lagging_lane_moves_once_and_then_rests() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    lane = world.owners().index("a")
    world.wait(1)
    world.add("a", lagging=(("job", lane, 9.0),))
    assert world.tick() == []  # leased a moment ago
    world.wait(6)
    world.add("a", lagging=(("job", lane, 9.0),))
    world.add("b")
    moves = [effect for effect in world.tick() if isinstance(effect, LaneMoved)]
    assert [(move.lane, move.to, move.reason) for move in moves] == [(lane, "b", "lagged")]
    assert world.tick() == []


def test_where_all_lag_nothing_moves() -> None:
    world = World()
    world.open()
    world.add("a")
    world.add("b")
    world.form()
    world.tick()
    world.wait(6)
    for name in "ab":
        world.add(name, lagging=(("job", world.owners().index(name), 9.0),))
    assert world.tick() == []


def test_without_workers_lanes_are_nobodys_and_keep_their_tokens() -> None:
    world = World()
    world.open()
    world.add("a")
    world.form()
    world.tick()
    world.wait(4)
    world.report(0, 1)
    world.tick()
    assert world.owners() == [""] * 12
    assert {lane.token for lane in world.state.lanes.values()} == {NOW}


@pytest.mark.parametrize("how", ["silent", "left"])
def test_lanes_are_released_when_the_ranks_are_gone(how: str) -> None:
    world = World()
    world.open()
    world.form()
    world.add("a")
    world.tick()
    if how == "left":
        for rank in range(2):
            world.do(Leave(1, rank, f"n{rank}", None))
    else:
        world.wait(66)
        world.add("a")
    world.tick()
    assert world.owners() == [""] * 12
    assert world.state.session is not None
    assert world.state.session.lanes_moved == 0


def test_the_window_grows_with_the_workers_and_never_shrinks() -> None:
    world = World()
    world.open()
    assert world.form().window == 3
    for i in range(5):
        world.add(f"w{i}")
    world.tick()
    assert world.state.session is not None
    assert world.state.session.window == 5
    world.state = replace(world.state, workers={})
    world.tick()
    assert world.state.session is not None
    assert world.state.session.window == 5


@pytest.mark.parametrize(("most", "window"), [(10_000, 5), (4_000, 4), (10, 2)])
def test_the_window_is_bounded_by_bytes(most: int, window: int) -> None:
    world = World(rules=Rules(max_rank_bytes=most))
    world.open()
    for i in range(5):
        world.add(f"w{i}")
    assert world.form().window == window
