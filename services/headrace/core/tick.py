"""What the passing of time does to a job: fingerprint, window, and lanes that must change hands.

Pure. Every replica ticks; compare-and-set lets one of them win, and a tick that changes nothing writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.core.events import Effect, JobState, LaneMoved, Note, Rules
from headrace.core.join import form, pin, window
from headrace.core.lease import Fleet, deal, fleet_for, next_token
from headrace.core.records import LaneRecord, RankRecord, SessionRecord


def tick(state: JobState, now_us: int, rules: Rules, slot_bytes: int) -> tuple[JobState, Sequence[Effect]]:
    """Pin the fingerprint, form a session whose last claimer's replica died, grow the window, move lanes."""
    if state.job is None or state.session is None:
        return state, ()
    state, notes = pin(state, now_us)
    effects = list(notes)
    if state.session is None or state.job is None:
        return state, effects
    if not state.session.formed:
        formed, more = form(state, now_us, rules, slot_bytes)
        if formed is state:
            return state, effects
        state = formed
        effects += [effect for effect in more if isinstance(effect, Note)]
    job, session = state.job, state.session
    assert job is not None
    assert session is not None
    if not active(session, state.ranks, now_us, rules):
        return _release(state, session), effects
    fleet = fleet_for(job.spec, state.workers, now_us, rules.lag_s)
    size = window(len(fleet.weights), session, slot_bytes, rules)
    if size > session.window:
        state = replace(state, session=replace(session, window=size))
        effects.append(Note("window_raised", (("attempt", session.attempt), ("window", size))))
    state, moves = _move(state, _rested(fleet, state.lanes, now_us, rules), now_us)
    return state, [*effects, *moves]


def active(session: SessionRecord, ranks: Mapping[int, RankRecord], now_us: int, rules: Rules) -> bool:
    """True while a rank lives or has lived lately; ranks that said goodbye don't count."""
    members = [r for r in ranks.values() if r.attempt == session.attempt]
    if not members:
        return session.formed  # healed: its ranks are about to report
    return any(not r.left and now_us < r.alive_until_us + rules.idle_us for r in members)


def _release(state: JobState, session: SessionRecord) -> JobState:
    if not any(lane.owner for lane in state.lanes.values()):
        return state
    return replace(state, lanes={number: LaneRecord("", "", lane.token) for number, lane in state.lanes.items()})


def _rested(fleet: Fleet, lanes: Mapping[int, LaneRecord], now_us: int, rules: Rules) -> Fleet:
    """Leave out lags of lanes that changed hands a moment ago: a token is also the time at which it was issued."""
    rested = {
        (owner, lane) for owner, lane in fleet.lagging if now_us - lanes.get(lane, LaneRecord()).token >= rules.lag_rest_us
    }
    return replace(fleet, lagging=frozenset(rested))


def _move(state: JobState, fleet: Fleet, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    session = state.session
    assert session is not None
    owners = {number: lane.owner for number, lane in state.lanes.items() if _valid(state, lane, now_us)}
    groups = math.gcd(session.world, session.lanes)
    dealt = deal(owners, session.lanes, fleet, groups, _group_nodes(state, session, groups))
    lanes, moves = dict(state.lanes), list[LaneMoved]()
    for number, owner in dealt.items():
        lane = lanes.get(number, LaneRecord())
        if owner == owners.get(number, "") and (owner or not lane.owner):
            continue
        incarnation = state.workers[owner].endpoint.incarnation if owner else ""
        # A lane that nobody takes keeps its token: the next owner's will be higher.
        token = next_token(lane, now_us) if owner else lane.token
        lanes[number] = LaneRecord(owner, incarnation, token)
        if lane.owner:
            moves.append(LaneMoved(number, lane.owner, owner, token, _reason(state, fleet, lane, number, now_us)))
    if lanes == state.lanes:
        return state, ()
    state = replace(state, lanes=lanes)
    if moves:
        state = replace(state, session=replace(session, lanes_moved=session.lanes_moved + len(moves)))
    return state, moves


def _valid(state: JobState, lane: LaneRecord, now_us: int) -> bool:
    worker = state.workers.get(lane.owner)
    return worker is not None and worker.alive(now_us) and worker.endpoint.incarnation == lane.incarnation


def _reason(state: JobState, fleet: Fleet, lane: LaneRecord, number: int, now_us: int) -> str:
    if not _valid(state, lane, now_us):
        return "lost"
    if state.workers[lane.owner].draining:
        return "drained"
    return "lagged" if (lane.owner, number) in fleet.lagging else "rebalanced"


def _group_nodes(state: JobState, session: SessionRecord, groups: int) -> dict[int, str]:
    """Node of the rank that each group of lanes feeds, where one group feeds one rank (W divides L)."""
    if groups != session.world:
        return {}
    nodes: dict[int, str] = {}
    for rank, record in state.ranks.items():
        if record.attempt == session.attempt and rank < session.world and record.node:
            # Lanes of the first epoch; where it begins mid-epoch, later epochs are shifted against it.
            nodes[(session.first + rank) % groups] = record.node
    return nodes
