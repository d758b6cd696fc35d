"""Bugs for the simulation to find, each a small patch of the real code. What none of them breaks would prove nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.coordinator import ledger
from headrace.coordinator.store_memory import MemoryStore
from headrace.core import join as core_join
from headrace.core import session_state, tick
from headrace.core.arrivals import Arrivals, Verdict
from headrace.core.credit import CreditWindow
from headrace.core.events import JobState
from headrace.core.records import LaneRecord, WorkerRecord
from headrace.core.session_plan import SessionPlan
from headrace.testing.simulation.scenario import Scenario
from headrace.worker.producer import Producer
from headrace.worker.work import SessionWork


@dataclass(frozen=True)
class Bug:
    """A patch: `make(old)` takes the place of `owner.name`. found_as: the invariants that it may break.

    where: the runs in which it can happen at all, for what would need some hundred seeds otherwise.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]
    found_as: tuple[str, ...]
    where: Callable[[Scenario], bool] = lambda _: True

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is there inside the block."""
        old = self.owner.__dict__[self.name]
        setattr(self.owner, self.name, self.make(old))
        try:
            yield
        finally:
            setattr(self.owner, self.name, old)


def _token_not_checked(old: Any) -> Any:
    def judge(self: Arrivals, index: int, token: int) -> Verdict:
        verdict: Verdict = old(self, index, token)
        return Verdict.ACCEPTED if verdict is Verdict.STALE else verdict

    return judge


def _release_counted_twice(old: Any) -> Any:
    def advance(self: CreditWindow, next_index: int) -> bool:
        counted: bool = old(self, next_index + 1 if next_index > self.next else next_index)
        return counted

    return advance


def _resumed_one_batch_late(old: Any) -> Any:
    """A rank that connects anew to a lane's worker says that it has one batch more than it has."""

    def hello(self: Arrivals, link: int) -> tuple[int, tuple[int, ...]]:
        first, have = old(self, link)
        return (first + 1 if first else first), have

    return hello


def _state_one_batch_late(old: Any) -> Any:
    def state_at(self: SessionPlan, index: int) -> Any:
        length = self.length
        return old(self, index + 1 if 0 < index < (length or index + 2) - 1 else index)

    return state_at


def _tokens_from_a_counter(old: Any) -> Any:
    return lambda lane, now_us: lane.token + 1


def _commit_may_go_back(old: Any) -> Any:
    """An overtaken report is taken at its word."""

    def progress(state: JobState, event: Any, now_us: int, rules: Any) -> Any:
        new, effects = old(state, event, now_us, rules)
        record = replace(new.ranks[event.rank], committed=event.committed, consumed=event.consumed)
        return replace(new, ranks={**new.ranks, event.rank: record}), effects

    return progress


def _compare_and_set_ignored(old: Any) -> Any:
    async def commit(self: MemoryStore, expected: Any, writes: Mapping[Any, Any], hint: str = "") -> int:
        stamp: int = await old(self, {}, writes, hint)
        return stamp

    return commit


def _lanes_never_move(old: Any) -> Any:
    """A lane stays with its first owner, whatever became of that one."""

    def move(state: JobState, fleet: Any, *times_us: int) -> Any:
        new, _ = old(state, fleet, *times_us)
        kept = {number: state.lanes[number] for number in state.lanes if state.lanes[number].owner}
        return replace(state, lanes={**new.lanes, **kept}), ()

    return move


def _wish_forgotten(old: Any) -> Any:
    """Nobody wakes the producer when leases change."""
    return lambda self: None


def _session_not_healed(old: Any) -> Any:
    """A session that the store lost stays lost."""
    return lambda state, *_: (state, [])


def _adopted_unseen(old: Any) -> Any:
    """Whatever a worker says that it holds, it gets back: also what has moved since."""

    def adopt(state: JobState, event: Any, now_us: int) -> Any:
        lanes = {**state.lanes}
        for number, token in event.tokens:
            lanes[number] = LaneRecord(event.worker, event.incarnation, token, now_us)
        return replace(state, lanes=lanes), []

    return adopt


def _commit_not_guarded(old: Any) -> Any:
    """An attempt begins from what was committed when it was looked up, whatever is committed meanwhile."""
    return lambda *_: ()


def _leases_kept(old: Any) -> Any:
    """A worker goes on with lanes that it was told no more."""

    def set_leases(self: SessionWork, lanes: dict[int, int]) -> bool:
        before = self.leases
        changed: bool = old(self, lanes)
        self.leases = {**before, **self.leases}
        return changed

    return set_leases


def _rank_handed_on(old: Any) -> Any:
    """Within a formed attempt, a rank whose client fell silent is given to another one."""

    def claim(state: JobState, session: Any, event: Any, now_us: int, rules: Any) -> Any:
        holder = state.ranks.get(event.rank)
        if session.formed and holder is not None and not holder.alive(now_us):
            held = replace(holder, nonce=event.nonce, alive_until_us=now_us + rules.rank_ttl_us)
            return replace(state, ranks={**state.ranks, event.rank: held})
        return old(state, session, event, now_us, rules)

    return claim


def _second_copy_taken(old: Any) -> Any:
    def ready(self: Arrivals, arrival: Any) -> Verdict:
        verdict: Verdict = old(self, arrival)
        if verdict is Verdict.DUPLICATE:
            self._known[arrival.index].arrival = arrival
            return Verdict.ACCEPTED
        return verdict

    return ready


def _dead_count_as_alive(old: Any) -> Any:
    return lambda self, now_us: True


def _forgetful(run: Scenario) -> bool:
    return run.store_forgets


LIVENESS = ("all_work_finishes", "every_wait_ends")
BUGS: dict[str, Bug] = {
    "token not checked": Bug(Arrivals, "_judge", _token_not_checked, ("one_accepted_owner",)),
    "release counted twice": Bug(CreditWindow, "advance", _release_counted_twice, ()),
    "lane resumed one batch late": Bug(Arrivals, "hello", _resumed_one_batch_late, LIVENESS),
    "state one batch late": Bug(SessionPlan, "state_at", _state_one_batch_late, ("begins_after_the_commit",)),
    "tokens from a plain counter": Bug(
        tick, "next_token", _tokens_from_a_counter, ("token_issued_once", "one_owner_per_token")
    ),
    "commit may go back": Bug(session_state, "_progress", _commit_may_go_back, ("committed_never_goes_back",)),
    "compare-and-set ignored": Bug(MemoryStore, "commit", _compare_and_set_ignored, ()),
    "lanes never move": Bug(tick, "_move", _lanes_never_move, LIVENESS),
    "producer not woken for leases": Bug(Producer, "leases_changed", _wish_forgotten, LIVENESS),
    "lost sessions are not healed": Bug(session_state, "_heal", _session_not_healed, LIVENESS, _forgetful),
    "adopts whatever is said": Bug(session_state, "_adopt", _adopted_unseen, (), _forgetful),
    "commit not guarded when an attempt begins": Bug(
        ledger,
        "relied_on",
        _commit_not_guarded,
        ("begins_after_the_commit",),
        where=lambda run: run.restless and run.store_s > 0 and not all(job.explicit for job in run.jobs),
    ),
    "worker keeps leases that it lost": Bug(SessionWork, "set_leases", _leases_kept, ("no_lease_outlives_its_end",)),
    "rank handed on within an attempt": Bug(
        core_join, "_claim", _rank_handed_on, ("rank_stays_with_its_client", "one_client_per_rank")
    ),
    "second copy replaces the first": Bug(Arrivals, "ready", _second_copy_taken, ("first_copy_stays",)),
    "dead workers count as alive": Bug(WorkerRecord, "alive", _dead_count_as_alive, ("lanes_leave_the_dead",)),
}
