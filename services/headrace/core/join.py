"""How ranks come together: claims, attempts, and the point where a session begins.

Pure. Joining is a poll: every call is a claim, repeated until all ranks of the attempt have one and the session is formed.
While it forms, a claim lapses when its client stops polling; once formed, a rank is never handed to another client within
the attempt, since nobody could know which batches the first one trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NoReturn

from headrace.core.epoch_plan import check_plan, lane_count
from headrace.core.errors import JobUnknown, RankClaimed, SessionSuperseded, StateInvalid, StateMismatch, WorldMismatch
from headrace.core.events import Effect, JobState, Join, Joined, Note, Refuse, Rules
from headrace.core.fleet import choose_fingerprint, fleet_for
from headrace.core.job import StreamState
from headrace.core.records import JobRecord, RankRecord, SessionRecord
from headrace.core.session_plan import SessionPlan, resume_point

AWAITED_SHOWN = 16


def join(state: JobState, event: Join, now_us: int, rules: Rules) -> tuple[JobState, Sequence[Effect]]:
    """Record a claim; form the session if it was the last one missing."""
    job = _check(state, event)
    if _begins_attempt(state, event, now_us):
        state = _begin(state, job, event)
    session = state.session
    assert session is not None
    if event.world != session.world:
        raise WorldMismatch(
            f"attempt {session.attempt} of job {state.name} has {session.world} ranks, this client says {event.world}",
            job=state.name, rank=event.rank, world=event.world, attempt=session.attempt,
        )  # fmt: skip
    state = _claim(state, session, event, now_us, rules)
    if session.formed:
        return state, (Joined(session.attempt, session.session(job)),)
    return form(state, now_us, rules, event.slot_bytes)


def _check(state: JobState, event: Join) -> JobRecord:
    if state.job is None:
        raise JobUnknown(f"no job {state.name} is open; open it first", job=state.name)
    spec = state.job.spec
    if event.plan_hash and event.plan_hash != spec.plan_hash:
        raise StateInvalid(
            "the state to resume from belongs to another plan (data, batch size, seed, shuffle, tail or pipeline differ); "
            "use the parameters it was saved with, or start without it",
            job=state.name, plan_hash=event.plan_hash, recorded=spec.plan_hash,
        )  # fmt: skip
    if not 0 <= event.rank < event.world:
        raise WorldMismatch(
            f"rank {event.rank} lies outside a world of {event.world}", job=state.name, rank=event.rank, world=event.world
        )
    check_plan(spec.samples, spec.batch_size, event.world, spec.tail)
    if event.state is not None:
        resume_point(spec, event.state)
    return state.job


def _begins_attempt(state: JobState, event: Join, now_us: int) -> bool:
    """True if the claim starts a new attempt, False if it belongs to the newest one. Raises if it can do neither."""
    session = state.session
    if session is None:
        return True
    if event.attempt:
        if event.attempt < session.attempt:
            raise superseded(state.name, event.attempt, session.attempt, event.rank)
        return event.attempt > session.attempt
    members = {rank: record for rank, record in state.ranks.items() if record.attempt == session.attempt}
    holder = members.get(event.rank)
    if holder is not None and holder.nonce == event.nonce:
        return False
    anyone = any(record.alive(now_us) for record in members.values())
    if not session.formed:
        # An abandoned attempt must not bind the next clients to its world size and epochs.
        return not anyone
    if event.rank >= session.world:
        if anyone:
            _claimed(state, event, session.attempt)
    elif holder is not None and holder.alive(now_us):
        _claimed(state, event, session.attempt)
    elif holder is not None and holder.left and anyone:
        raise RankClaimed(
            f"rank {event.rank} has left attempt {session.attempt} of job {state.name}, but others of its ranks still go on; "
            "the next attempt begins when they have left too (or went silent), or join with a higher attempt",
            job=state.name, rank=event.rank, attempt=session.attempt,
        )  # fmt: skip
    return True


def superseded(job: str, attempt: int, newest: int, rank: int) -> SessionSuperseded:
    """The error that ends an older attempt."""
    return SessionSuperseded(
        f"attempt {newest} of job {job} has begun, so attempt {attempt} is over; this client must stop",
        job=job, attempt=attempt, newest=newest, rank=rank,
    )  # fmt: skip


def _claimed(state: JobState, event: Join, attempt: int) -> NoReturn:
    remedy = (
        "stop it, or close() it if it is an earlier stream of this process (its claim lapses seconds after its last sign of "
        "life), or join with a higher attempt"
    )
    if event.attempt and state.session is not None and state.session.formed:
        remedy = "within an attempt no rank is handed on, so join with a higher attempt"
    raise RankClaimed(
        f"another client holds rank {event.rank} in attempt {attempt} of job {state.name}; {remedy}",
        job=state.name, rank=event.rank, attempt=attempt,
    )  # fmt: skip


def _begin(state: JobState, job: JobRecord, event: Join) -> JobState:
    previous = state.session
    attempt = event.attempt or (previous.attempt + 1 if previous else 1)
    session = SessionRecord(
        attempt=attempt,
        world=event.world,
        epochs=event.epochs,
        window=3,
        lanes=lane_count(job.spec.samples, job.spec.batch_size),
        fallback=committed_state(state),
    )
    return replace(state, session=session)


def committed_state(state: JobState) -> StreamState:
    """What all ranks of the newest attempt have committed: where the next one begins unless told otherwise."""
    session = state.session
    if state.job is None or session is None:
        return StreamState()
    if not session.formed:
        return session.fallback
    least = _committed(state, slowest(state))
    plan = SessionPlan(session.session(state.job))
    return plan.state_at(least if plan.length is None else min(least, plan.length))


def _committed(state: JobState, rank: int) -> int:
    record = state.ranks.get(rank)
    return record.committed if record and state.session and record.attempt == state.session.attempt else 0


def slowest(state: JobState) -> int:
    """A rank that committed least. While its record is unchanged, so is what all have committed: cursors only grow."""
    assert state.session is not None
    return min(range(state.session.world), key=lambda rank: _committed(state, rank))


def _claim(state: JobState, session: SessionRecord, event: Join, now_us: int, rules: Rules) -> JobState:
    holder = state.ranks.get(event.rank)
    mine = holder is not None and holder.attempt == session.attempt and holder.nonce == event.nonce
    if session.formed and not mine:
        _claimed(state, event, session.attempt)
    if holder is not None and holder.attempt == session.attempt and not mine and holder.alive(now_us):
        _claimed(state, event, session.attempt)
    if event.epochs != session.epochs and not session.formed:
        raise StateMismatch(
            f"rank {event.rank} wants {event.epochs} epochs, ranks before it {session.epochs}; give all ranks the same number",
            job=state.name, rank=event.rank, attempt=session.attempt,
        )  # fmt: skip
    if mine and holder is not None and holder.alive_until_us - now_us > rules.rank_ttl_us // 2 and not holder.left:
        return state  # polls write only when the claim's life runs down
    alive_until_us = now_us + rules.rank_ttl_us
    if mine and holder is not None:
        claim = replace(holder, alive_until_us=alive_until_us, left=False)
    else:
        claim = RankRecord(session.attempt, event.nonce, alive_until_us, node=event.node, state=event.state)
    return replace(state, ranks={**state.ranks, event.rank: claim})


def form(state: JobState, now_us: int, rules: Rules, slot_bytes: int) -> tuple[JobState, Sequence[Effect]]:
    """Form the session if all its ranks have live claims that agree; else say who is awaited, or who is odd."""
    job, session = state.job, state.session
    assert job is not None
    assert session is not None
    claims = {rank: r for rank, r in state.members.items() if r.alive(now_us)}
    if len(claims) < session.world:
        missing = (rank for rank in range(session.world) if rank not in claims)
        return state, (Joined(session.attempt, None, tuple(islice(missing, AWAITED_SHOWN))),)
    points = {rank: None if r.state is None else resume_point(job.spec, r.state) for rank, r in claims.items()}
    if len(set(points.values())) > 1:
        return state, (Refuse(_odd_ones(state.name, session.attempt, points)),)
    state, notes = pin(state, now_us)
    job = state.job
    assert job is not None
    epoch, first = points[0] or resume_point(job.spec, session.fallback)
    fleet = fleet_for(job.spec, state.workers, now_us, rules.lag_s)
    size = window(len(fleet.weights), session, slot_bytes, rules)
    formed = replace(session, formed=True, epoch=epoch, first=first, window=size)
    note = Note("session_formed", (("attempt", session.attempt), ("world", session.world), ("epoch", epoch), ("first", first)))
    return replace(state, session=formed), (Joined(session.attempt, formed.session(job)), *notes, note)


def pin(state: JobState, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    """Choose the engine of a job that has none yet, from the live workers that can serve it."""
    if state.job is None or state.job.spec.fingerprint:
        return state, ()
    chosen = choose_fingerprint(state.job.spec, state.workers, now_us)
    if not chosen:
        return state, ()
    job = replace(state.job, spec=state.job.spec.with_fingerprint(chosen))
    return replace(state, job=job), (Note("fingerprint_pinned", (("fingerprint", chosen),)),)


def _odd_ones(job: str, attempt: int, points: dict[int, tuple[int, int] | None]) -> StateMismatch:
    (usual, count), *_ = Counter(points.values()).most_common()
    odd = sorted(rank for rank, point in points.items() if point != usual) if count * 2 > len(points) else sorted(points)
    shown = odd[:AWAITED_SHOWN]
    told = ", ".join(f"rank {rank}: {_told(points[rank])}" for rank in shown)
    rest = f"; the others: {_told(usual)}" if len(odd) < len(points) else ""
    return StateMismatch(
        f"the ranks of attempt {attempt} resume from different states ({told}{rest}); load one checkpoint on all ranks",
        job=job, attempt=attempt, rank=shown[0], ranks=",".join(map(str, shown)),
    )  # fmt: skip


def _told(point: tuple[int, int] | None) -> str:
    return "none given" if point is None else f"epoch {point[0]} batch {point[1]}"


def window(workers: int, session: SessionRecord, slot_bytes: int, rules: Rules) -> int:
    """S for so many workers: max(3, ceil(2M/W)), bounded by bytes a rank (but at least 2), never below the session's."""
    useful = min(workers, session.lanes)
    wanted = max(3, -(-2 * useful // session.world))
    bounded = max(2, min(wanted, rules.max_rank_bytes // max(1, slot_bytes)))
    return max(bounded, session.window) if session.formed else bounded
