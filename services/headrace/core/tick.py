"""What the passing of time does to a job: fingerprint, window, and lanes that must change hands.

Pure. Every replica ticks; compare-and-set lets one of them win, and a tick that changes nothing writes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.core.bad_share import first_keys, ready_to_judge, stop_index, too_many, why
from headrace.core.events import Effect, JobState, LaneMoved, Note, Rules
from headrace.core.fleet import Fleet, fleet_for
from headrace.core.join import form, pin, window
from headrace.core.lease import TOKEN_AHEAD_US, deal, next_token
from headrace.core.records import LaneRecord, LaneTrouble, RankRecord, SessionRecord, not_from_the_future

# A lane that was taken from slow owners that many times in a row rests no longer than that.
_MAX_RELIEVED = 5
_MAX_BARRED = 64
# Doublings of a bar: shifts stay small whatever the store says.
_MAX_DOUBLED = 16


def tick(
    state: JobState, now_us: int, rules: Rules, slot_bytes: int, *, blind: bool = False, heard_us: int = 0
) -> tuple[JobState, Sequence[Effect]]:
    """Pin the fingerprint, form a session whose last claimer's replica died, grow the window, move lanes.

    heard_us: when the workers' records were read; 0: now. Heartbeats that came since are not in them.
    """
    if state.job is None or state.session is None:
        return state, ()
    if not state.job.spec.fingerprint and _healed_lately(state.session, now_us, rules.worker_ttl_us):
        # A rank that joined before there were workers told of it: those that hold its lanes, or a rank that has a batch, are
        # about to say which engine made its batches, and another one would make other pixels.
        return state, ()
    heard_us = min(heard_us or now_us, now_us)
    state, notes = pin(_with_possible_times(state, now_us, rules), heard_us)
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
        # Whom nobody could hear may live; whoever said goodbye was heard.
        gone = len(state.members) == session.world and all(rank.left for rank in state.members.values())
        return (_release(state) if gone or not blind else state), effects
    state, stops = _judge(state)
    effects += stops
    session = state.session
    assert session is not None
    fleet = fleet_for(job.spec, state.workers, heard_us, rules.lag_s, blind=blind)
    size = window(len(fleet.weights), session, slot_bytes, rules)
    if size > session.window:
        state = replace(state, session=replace(session, window=size))
        effects.append(Note("window_raised", (("attempt", session.attempt), ("window", size))))
    state, renewals = _renew(state, now_us)
    state, fleet = _with_troubles(state, fleet, now_us, rules)
    state, moves = _move(state, fleet, now_us, heard_us)
    return state, [*effects, *renewals, *moves]


def _with_possible_times(state: JobState, now_us: int, rules: Rules) -> JobState:
    """The store's clock was put back: nobody lives for longer than a ttl from now."""
    ranks = {rank: not_from_the_future(record, now_us, rules.rank_ttl_us) for rank, record in state.ranks.items()}
    return state if ranks == state.ranks else replace(state, ranks=ranks)


def active(session: SessionRecord, ranks: Mapping[int, RankRecord], now_us: int, rules: Rules) -> bool:
    """True while a rank lives or has lived lately; ranks that said goodbye don't count."""
    members = [r for r in ranks.values() if r.attempt == session.attempt]
    if not members:  # healed: its ranks are about to report, unless they died with the store and only workers told of it
        return session.formed and _healed_lately(session, now_us, rules.idle_us)
    return any(not r.left and now_us < r.alive_until_us + rules.idle_us for r in members)


def _healed_lately(session: SessionRecord, now_us: int, within_us: int) -> bool:
    """Whichever way the clock was set since."""
    return session.healed_us > 0 and abs(now_us - session.healed_us) < within_us


def _judge(state: JobState) -> tuple[JobState, Sequence[Effect]]:
    """Name the index at which all ranks stop, once, where too many samples were bad."""
    job, session, members = state.job, state.session, list(state.members.values())
    assert job is not None
    assert session is not None
    if session.stop_index >= 0 or not ready_to_judge(session.world, members):
        return state, ()
    samples, reasons = sum(rank.samples for rank in members), Counter[str]()
    for rank in members:
        reasons.update(dict(rank.bad))
    if not too_many(job.spec, samples, reasons.total()):
        return state, ()
    index = stop_index(members)
    keys = first_keys((), (key for rank in members for key in rank.bad_keys))
    text = why(job.spec, samples, reasons, keys)
    state = replace(state, session=replace(session, stop_index=index, stop_why=text))
    ids = (("attempt", session.attempt), ("index", index), ("samples", samples), ("bad", reasons.total()))
    return state, [Note("session_stops_for_bad_samples", ids)]


def _release(state: JobState) -> JobState:
    if not any(lane.owner for lane in state.lanes.values()):
        return state
    return replace(state, lanes={number: LaneRecord("", "", lane.token) for number, lane in state.lanes.items()})


# --- what ranks and workers complain of ------------------------------------------------------------------------------


def _renew(state: JobState, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    """Lease anew what a rank knows a newer token of: the store lost that one, and the rank refuses what is older."""
    lanes, notes = dict(state.lanes), list[Note]()
    for trouble in (trouble for record in state.members.values() for trouble in record.troubles):
        lane = lanes.get(trouble.lane)
        if lane is None or not lane.token < trouble.token <= now_us + TOKEN_AHEAD_US:
            continue
        lane = replace(lane, token=trouble.token)
        lanes[trouble.lane] = replace(lane, token=next_token(lane, now_us)) if lane.owner else lane
        ids = (("lane", trouble.lane), ("worker", lane.owner), ("token", lanes[trouble.lane].token), ("known", trouble.token))
        notes.append(Note("lease_renewed", ids))
    return (replace(state, lanes=lanes) if notes else state), notes


def _with_troubles(state: JobState, fleet: Fleet, now_us: int, rules: Rules) -> tuple[JobState, Fleet]:
    """Note whom ranks cannot use. Lanes that changed hands a moment ago are left alone: their rank has yet to connect."""
    session = state.session
    assert session is not None
    groups = _groups(session)
    unreached = {
        (trouble.worker, trouble.lane)
        for record in state.members.values()
        if record.alive(now_us) and not _cut_off(state, record, rules)
        for trouble in record.troubles
        if _unreached(trouble) and trouble.waited_s >= rules.lag_s
    }
    lagging = {
        (owner, number)
        for owner, number in fleet.lagging | unreached
        if (lane := state.lanes.get(number)) is not None and lane.owner == owner and _rested(lane, now_us, rules)
    }
    # An entry outlasts its bar, so that a worker that is found useless again is known to be.
    barred = {
        (incarnation, group): (since_us, times)
        for incarnation, group, since_us, times in session.barred
        if now_us - _bar_us(times, rules) - rules.barred_most_us < since_us <= now_us
    }
    for _, number in sorted(lagging & unreached):
        pair = state.lanes[number].incarnation, number % groups
        since_us, times = barred.get(pair, (0, 0))
        if not times or now_us >= since_us + _bar_us(times, rules):
            barred[pair] = now_us, times + 1
    kept = tuple(sorted(((*pair, *bar) for pair, bar in barred.items()), key=lambda entry: entry[2])[-_MAX_BARRED:])
    if kept != session.barred:
        state = replace(state, session=replace(session, barred=kept))
    names = {worker.endpoint.incarnation: name for name, worker in state.workers.items()} if kept else {}
    pairs = {
        (names[incarnation], group)
        for incarnation, group, since_us, times in kept
        if incarnation in names and now_us < since_us + _bar_us(times, rules)
    }
    return state, replace(fleet, lagging=frozenset(lagging), barred=frozenset(pairs))


def _bar_us(times: int, rules: Rules) -> int:
    return min(rules.barred_most_us, rules.barred_us << min(max(times, 1) - 1, _MAX_DOUBLED))


def _unreached(trouble: LaneTrouble) -> bool:
    return bool(trouble.worker) and not trouble.connected


def _cut_off(state: JobState, record: RankRecord, rules: Rules) -> bool:
    """True for a rank that reaches none of the several owners of its lanes: its own trouble, other owners would not help.

    Not for ever: it may be that it could reach those who own none of its lanes.
    """
    session = state.session
    assert session is not None
    missed = [trouble for trouble in record.troubles if _unreached(trouble)]
    names = {trouble.worker for trouble in missed}
    if len(names) < 2 or max(trouble.waited_s for trouble in missed) >= rules.cut_off_s:
        return False
    groups = _groups(session)
    fed = {trouble.lane % groups for trouble in missed}
    lanes = [number for number in range(session.lanes) if number % groups in fed]
    owners = {lane.owner for number in lanes if (lane := state.lanes.get(number)) is not None and lane.owner}
    # It tells of the lanes of its window only.
    return owners <= names or len({trouble.lane for trouble in missed}) >= min(session.window, len(lanes))


def _rested(lane: LaneRecord, now_us: int, rules: Rules) -> bool:
    """False while its owner still has to be given time. A lease from the future says nothing: the clock was put back."""
    return not 0 <= now_us - lane.leased_us < rules.lag_rest_us << lane.relieved


# --- moves -----------------------------------------------------------------------------------------------------------


def _move(state: JobState, fleet: Fleet, now_us: int, heard_us: int) -> tuple[JobState, Sequence[Effect]]:
    session = state.session
    assert session is not None
    if not fleet.weights:
        return state, ()  # nobody can take a lane: whoever had it may come back to it
    owners = {number: lane.owner for number, lane in state.lanes.items() if _valid(state, fleet, lane, heard_us)}
    groups = _groups(session)
    dealt = deal(owners, session.lanes, fleet, groups, _group_nodes(state, session, groups), job=state.name)
    lanes, moves = dict(state.lanes), list[LaneMoved]()
    for number, owner in dealt.items():
        lane = lanes.get(number, LaneRecord())
        if owner == owners.get(number, ""):
            continue
        reason = _reason(state, fleet, number, heard_us)
        relieved = min(lane.relieved + 1, _MAX_RELIEVED) if reason in ("lagged", "unreached") else 0
        token = next_token(lane, now_us)
        lanes[number] = LaneRecord(owner, state.workers[owner].endpoint.incarnation, token, now_us, relieved)
        if lane.owner:
            moves.append(LaneMoved(number, lane.owner, owner, token, reason))
    if lanes == state.lanes:
        return state, ()
    state = replace(state, lanes=lanes)
    if moves:
        state = replace(state, session=replace(session, lanes_moved=session.lanes_moved + len(moves)))
    return state, moves


def _valid(state: JobState, fleet: Fleet, lane: LaneRecord, heard_us: int) -> bool:
    worker = state.workers.get(lane.owner)
    if worker is None or worker.endpoint.incarnation != lane.incarnation:
        return False
    return worker.alive(heard_us) or lane.owner in fleet.silent


def _reason(state: JobState, fleet: Fleet, number: int, heard_us: int) -> str:
    assert state.session is not None
    lane = state.lanes.get(number, LaneRecord())
    if not _valid(state, fleet, lane, heard_us):
        return "lost"
    if state.workers[lane.owner].draining:
        return "drained"
    if lane.owner not in fleet.weights:
        return "unable"
    if (lane.owner, number % _groups(state.session)) in fleet.barred:
        return "unreached"
    return "lagged" if (lane.owner, number) in fleet.lagging else "rebalanced"


def _groups(session: SessionRecord) -> int:
    """Lanes l and l + groups feed the same ranks."""
    return math.gcd(session.world, session.lanes)


def _group_nodes(state: JobState, session: SessionRecord, groups: int) -> dict[int, str]:
    """Node of the rank that each group of lanes feeds, where one group feeds one rank (W divides L)."""
    if groups != session.world:
        return {}
    nodes: dict[int, str] = {}
    for rank, record in state.members.items():
        if record.node:
            # Lanes of the first epoch; where it begins mid-epoch, later epochs are shifted against it.
            nodes[(session.first + rank) % groups] = record.node
    return nodes
