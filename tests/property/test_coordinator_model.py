"""Random lives of one job against the memory store: joins, reports, heartbeats, ticks, deaths, and stores that forget.

The machine runs the real ledger (load, apply, compare-and-set) under a clock of its own, which is put forth and back. What
must hold at any time: no token is issued twice, no two workers hold one lane under one token, cursors never go back within an
attempt unless the store forgot them, a pass that is blind takes no lane from a worker for its silence, nobody is alive for
longer than a ttl after a pass, a second tick changes nothing, and once faults stop and a worker lives, every lane has an owner
that lives, under a token that no rank finds stale, with a rank that can use it where there is one. Once nobody trains, no
lane is held, also where the store was emptied and only workers told of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from headrace.coordinator.fleet_ledger import Fleet
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger, Outcome
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import HeadraceError, RankClaimed, SessionSuperseded, SessionUnknown, StaleToken, StateMismatch
from headrace.core.events import Adopt, Event, Join, Joined, Leave, Observe, Open, Progress, Rules, Tick
from headrace.core.job import Endpoint, JobSpec, Session
from headrace.core.records import LaneRecord, LaneTrouble, WorkerRecord

SPEC = JobSpec("job", "/data", 64, manifest_hash="aa", samples=1000)  # 15 batches, 6 lanes
WORLD = 2
LANES = 6
S = 1_000_000
TTL_US = 3 * S
RULES = Rules(rank_ttl_us=5 * S, idle_us=10_000 * S)


class Client:
    """One trainer process of one rank."""

    def __init__(self, rank: int, nonce: str) -> None:
        self.rank = rank
        self.nonce = nonce
        self.session: Session | None = None
        self.consumed = 0
        self.committed = 0
        self.ended = False


class Worker:
    """One run of a worker process."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.endpoint = Endpoint(name, f"{name}-{incarnation}", "n", f"{name}:1", "")
        self.held: dict[int, int] = {}
        self.draining = False
        self.unable = False
        self.lagging: tuple[tuple[str, int, float], ...] = ()
        self.session: Session | None = None


class CoordinatorMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.now_us = 1_700_000_000 * S
        self.store = MemoryStore(lambda: self.now_us)
        self.ledgers = [Ledger(self.store, RULES, Instruments(CollectorRegistry()), lambda: self.now_us) for _ in range(2)]
        self.clients: dict[int, Client] = {}
        self.workers: dict[str, Worker] = {}
        self.born = 0
        # (lane, token) -> the incarnation that it was issued to
        self.issued: dict[tuple[int, int], str] = {}
        self.committed: dict[tuple[int, int], int] = {}
        self._do(Open(SPEC, WORLD))
        self.reports: list[Progress] = []
        # Begin where it gets interesting: with a session and two workers that hold its lanes.
        self.saved, self.saved_us = self.store.snapshot(), self.now_us
        self.all_poll()
        for name in "ab":
            self.worker_beats(name)
        self.store_syncs()

    def _run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def _do(self, event: Event, rank: int | None = None) -> Outcome:
        ledger = self.ledgers[self.born % 2]
        outcome: Outcome = self._run(ledger.update("job", event, rank))
        return outcome

    def _fleet(self) -> Fleet:
        fleet: Fleet = self._run(self.ledgers[0].fleet.look())
        return fleet

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_us += int(seconds * S)

    @rule(seconds=st.sampled_from([-3600.0, -2.0, -0.5, 3600.0]))
    def clock_is_set(self, seconds: float) -> None:
        self._note_tokens()
        self.now_us += int(seconds * S)
        self.saved_us += int(seconds * S)

    @rule()
    def tick(self) -> None:
        self.now_us += 1000
        self._do(Tick(1000))
        again = self._do(Tick(1000))
        assert not again.changed
        assert not again.effects
        for record in again.state.ranks.values():
            assert record.alive_until_us <= self.now_us + 2 * RULES.rank_ttl_us
        for worker in self._fleet().workers.values():
            assert worker.alive_until_us <= self.now_us + 2 * TTL_US

    @rule()
    def blind_tick(self) -> None:
        """Nobody could be heard for long: what is silent may live."""
        self._note_tokens()
        self.now_us += 60 * S
        before = self._look().state
        workers = self._fleet().workers
        after = self._do(Tick(1000, blind=True)).state
        for number, lane in before.lanes.items():
            worker = workers.get(lane.owner)
            if worker is not None and worker.endpoint.incarnation == lane.incarnation and not worker.draining:
                assert after.lanes[number] == lane

    # --- trainers -----------------------------------------------------------------------------------------------------

    @rule(rank=st.integers(0, WORLD - 1), attempt=st.sampled_from([0, 0, 0, 1, 2]))
    def client_polls(self, rank: int, attempt: int) -> None:
        client = self.clients.get(rank)
        if client is None or client.ended:
            self.born += 1
            client = self.clients[rank] = Client(rank, f"c{self.born}")
        if client.session is not None:
            return
        try:
            outcome = self._do(Join(attempt, rank, WORLD, client.nonce, None, "", 0, "n", 0))
        except (RankClaimed, SessionSuperseded, StateMismatch):
            return
        client.session = next(effect for effect in outcome.effects if isinstance(effect, Joined)).session

    @rule()
    def all_poll(self) -> None:
        for rank in [*range(WORLD), *range(WORLD)]:
            self.client_polls(rank, 0)

    @rule(which=st.integers(0, 100))
    def overtaken_report_arrives(self, which: int) -> None:
        if not self.reports:
            return
        report = self.reports[which % len(self.reports)]
        with contextlib.suppress(SessionSuperseded, RankClaimed, SessionUnknown):
            self._do(report, report.rank)

    @rule(
        rank=st.integers(0, WORLD - 1),
        steps=st.integers(0, 5),
        commit=st.booleans(),
        leave=st.sampled_from([False] * 7 + [True]),
    )
    def client_reports(self, rank: int, steps: int, commit: bool, leave: bool) -> None:
        client = self.clients.get(rank)
        if client is None or client.session is None or client.ended:
            return
        client.consumed += steps
        if commit:
            client.committed = client.consumed
        attempt = client.session.attempt
        report = Progress(
            attempt, rank, client.nonce, client.session, client.consumed, client.committed, elapsed_s=client.consumed
        )
        self.reports.append(report)
        try:
            self._do(Leave(attempt, rank, client.nonce, report) if leave else report, rank)
        except (SessionSuperseded, RankClaimed):
            client.ended = True
            return
        client.ended = leave
        session = self._look().state.session
        if session is None or session.attempt != attempt:
            # A goodbye to an attempt that is over is no error only where nothing is lost by it.
            assert client.committed <= self.committed.get((attempt, rank), 0)
            return
        self.committed[attempt, rank] = max(self.committed.get((attempt, rank), 0), client.committed)

    @rule(
        rank=st.integers(0, WORLD - 1),
        lane=st.integers(0, LANES - 1),
        waited_s=st.sampled_from([0.0, 4.0, 9.0]),
        newer=st.sampled_from([0, 1, 1000]),
        connected=st.booleans(),
    )
    def client_complains(self, rank: int, lane: int, waited_s: float, newer: int, connected: bool) -> None:
        """Of whom it knows as the lane's owner; newer: it knows a token that the store lost."""
        client = self.clients.get(rank)
        if client is None or client.session is None or client.ended:
            return
        held = self._look().state.lanes.get(lane, LaneRecord())
        trouble = LaneTrouble(lane, held.owner, held.token + newer, waited_s, connected)
        report = Progress(
            client.session.attempt, rank, client.nonce, client.session, client.consumed, client.committed,
            elapsed_s=client.consumed, troubles=(trouble,),
        )  # fmt: skip
        with contextlib.suppress(SessionSuperseded, RankClaimed):
            self._do(report, rank)
            state = self._do(Tick(1000)).state
            after = state.lanes.get(lane, LaneRecord())
            assert after.token >= held.token
            if held.owner and newer:
                assert after.token > trouble.token

    @rule(rank=st.integers(0, WORLD - 1))
    def client_watches(self, rank: int) -> None:
        client = self.clients.get(rank)
        if client is None or client.session is None or client.ended:
            return
        try:
            self._do(Observe(client.session.attempt, rank, client.nonce, client.session), rank)
        except (SessionSuperseded, RankClaimed):
            client.ended = True

    @rule(rank=st.integers(0, WORLD - 1))
    def client_dies(self, rank: int) -> None:
        self.clients.pop(rank, None)

    # --- workers ------------------------------------------------------------------------------------------------------

    def _beat(self, worker: Worker) -> None:
        unable = ("job",) if worker.unable else ()
        record = WorkerRecord(worker.endpoint, "fp", SPEC.pipeline.op_names, 0.0, 1, worker.draining, 0, worker.lagging, unable)
        try:
            self._run(self.ledgers[0].fleet.heartbeat(record, TTL_US))
        except StaleToken:
            self.workers = {name: other for name, other in self.workers.items() if other is not worker}
            return
        if worker.held and worker.session is not None and not worker.draining:
            held = tuple(worker.held.items())
            self._do(Adopt(worker.endpoint.worker, worker.endpoint.incarnation, worker.session.attempt, held, worker.session))
        state = self._do(Tick(1000)).state
        worker.held, worker.session = {}, None
        if state.session is not None and state.session.formed and state.job is not None:
            worker.session = state.session.session(state.job)
            mine = (worker.endpoint.worker, worker.endpoint.incarnation)
            worker.held = {n: lane.token for n, lane in state.lanes.items() if (lane.owner, lane.incarnation) == mine}

    @rule(name=st.sampled_from("abc"))
    def worker_beats(self, name: str) -> None:
        self.now_us += 1000
        if name not in self.workers:
            self.born += 1
            self.workers[name] = Worker(name, self.born)
        self._beat(self.workers[name])

    @rule()
    def all_workers_beat(self) -> None:
        for worker in list(self.workers.values()):
            self.now_us += 1000
            self._beat(worker)

    @rule(name=st.sampled_from("abc"))
    def worker_dies(self, name: str) -> None:
        self.workers.pop(name, None)

    @rule(name=st.sampled_from("abc"))
    def worker_drains(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].draining = True

    @rule(name=st.sampled_from("abc"), unable=st.booleans(), behind=st.lists(st.integers(0, LANES - 1), max_size=2))
    def worker_has_troubles(self, name: str, unable: bool, behind: list[int]) -> None:
        if name in self.workers:
            self.workers[name].unable = unable
            self.workers[name].lagging = tuple(("job", lane, 9.0) for lane in behind)

    # --- the store ----------------------------------------------------------------------------------------------------

    @rule()
    def store_syncs(self) -> None:
        self.saved, self.saved_us = self.store.snapshot(), self.now_us

    def _clock_is_past_its_tokens(self) -> bool:
        """What a store forgot while its clock was put back behind the tokens that it issued, nobody can know."""
        return self.now_us > max((token for _, token in self.issued), default=0)

    @precondition(lambda self: self.now_us - self.saved_us <= 2 * S and self._clock_is_past_its_tokens())
    @rule()
    def store_forgets(self) -> None:
        self._note_tokens()
        self.now_us += 1000
        self.store.restore(self.saved)
        self._forgot()

    @precondition(lambda self: self._clock_is_past_its_tokens())
    @rule()
    def store_forgets_all(self) -> None:
        self._note_tokens()
        self.now_us += 1000
        self.store.restore(({}, {}))
        self._do(Open(SPEC, WORLD))
        self.saved, self.saved_us = self.store.snapshot(), self.now_us
        self._forgot()

    def _forgot(self) -> None:
        self.committed.clear()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _note_tokens(self) -> None:
        for number, lane in self._look().state.lanes.items():
            if lane.owner:
                holder = self.issued.setdefault((number, lane.token), lane.incarnation)
                assert holder == lane.incarnation, (
                    f"lane {number}: token {lane.token} of {holder} was issued again to {lane.incarnation}"
                )

    def _look(self) -> Outcome:
        """The records as they are (a leave by nobody changes nothing), with all lanes."""
        outcome: Outcome = self._run(self.ledgers[0].update("job", Adopt("", "", 0, (), None)))
        return outcome

    @invariant()
    def tokens_are_issued_once(self) -> None:
        if not hasattr(self, "ledgers"):
            return
        self._note_tokens()

    @invariant()
    def committed_never_goes_back(self) -> None:
        if not hasattr(self, "ledgers"):
            return
        state = self._do(Tick(1000)).state
        for (attempt, rank), committed in self.committed.items():
            record = state.ranks.get(rank)
            if record is not None and record.attempt == attempt:
                assert record.committed >= committed
            elif record is not None:
                assert record.attempt > attempt

    def teardown(self) -> None:
        """Faults stop: a fresh worker and the living clients go on, and every lane gets an owner that lives."""
        if not hasattr(self, "ledgers"):
            return
        try:
            self._recover()
        finally:
            self.loop.close()

    def _recover(self) -> None:
        self.now_us += 12 * S  # longer than two times a rank's life: what a clock that was put back may leave of it
        self._do(Open(SPEC, WORLD))
        for rank in range(WORLD):  # the trainers are started anew
            self.clients[rank] = Client(rank, f"last{rank}")
        for _ in range(4):
            for client in self.clients.values():
                self._join_at_last(client)
        assert all(client.session is not None for client in self.clients.values())
        self.workers = {"a": Worker("a", 10_000)}
        self._beat(self.workers["a"])
        state = self._do(Tick(1000)).state
        assert [state.lanes[n].owner for n in range(LANES)] == ["a"] * LANES
        assert self.workers["a"].held.keys() == set(range(LANES))
        self._leave_the_unreachable()
        self._end_unattended()

    def _end_unattended(self) -> None:
        """The store is emptied when no trainer is left: what the workers tell of the session does not live for ever."""
        self.now_us += 1000
        self.store.restore(({}, {}))
        for waited_us in (0, RULES.idle_us, 0, S, RULES.idle_us, RULES.idle_us):
            for worker in self.workers.values():
                self._beat(worker)
            self.now_us += waited_us
        assert not any(worker.held for worker in self.workers.values())
        assert not any(lane.owner for lane in self._look().state.lanes.values())

    def _leave_the_unreachable(self) -> None:
        """Rank 0 cannot use worker a: its lanes find worker b, and stay there."""
        self.workers["b"] = Worker("b", 10_001)
        client = self.clients[0]
        assert client.session is not None
        for second in range(40):
            self.now_us += S
            for worker in self.workers.values():
                self._beat(worker)
            lanes = self._look().state.lanes
            waits = [n for n in range(0, LANES, WORLD) if lanes[n].owner == "a"][:1]
            troubles = tuple(LaneTrouble(n, "a", lanes[n].token, 9.0, connected=False) for n in waits)
            for rank, other in self.clients.items():
                report = Progress(client.session.attempt, rank, other.nonce, client.session, 0, 0, elapsed_s=second)
                self._do(replace(report, troubles=troubles if rank == 0 else ()), rank)
        assert not waits
        assert {lane.owner for lane in lanes.values()} == {"a", "b"}

    def _join_at_last(self, client: Client) -> None:
        self.now_us += S // 10
        try:
            outcome = self._do(Join(0, client.rank, WORLD, client.nonce, None, "", 0, "n", 0))
        except HeadraceError as error:
            assert isinstance(error, RankClaimed | SessionSuperseded | SessionUnknown), error
            return
        client.session = next(effect for effect in outcome.effects if isinstance(effect, Joined)).session


TestCoordinatorMachine = CoordinatorMachine.TestCase
# Not shrunk: a failing life of forty steps takes minutes to shrink, and the seed plays it again as it is.
TestCoordinatorMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
