"""All rules of jobs and sessions: `apply(state, event, now_us, rules) -> (state, effects)`.

Pure: the coordinator loads records, applies, writes by compare-and-set and only then does the effects, so that any replica
serves any call. Applying an event a second time changes nothing. Splits: `join` (claims), `tick` (time), `lease` (lanes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.bad_share import first_keys, paced, with_stop
from headrace.core.epoch_plan import check_plan
from headrace.core.errors import (
    EngineUnsupported,
    JobMismatch,
    RankClaimed,
    SessionSuperseded,
    SessionUnknown,
    StateInvalid,
    WorldMismatch,
)
from headrace.core.events import (
    Adopt,
    Effect,
    Event,
    JobState,
    Join,
    Leave,
    Note,
    Observe,
    Open,
    Progress,
    RecordBad,
    Rules,
    Tick,
)
from headrace.core.job import JobSpec, Session, StreamState
from headrace.core.job_token import renewed
from headrace.core.join import join, superseded
from headrace.core.lease import TOKEN_AHEAD_US
from headrace.core.records import JobRecord, LaneRecord, RankRecord, SessionRecord, WorkerRecord
from headrace.core.session_plan import SessionPlan
from headrace.core.tick import tick

# Parts of JobState that an event reads beside job and session: its own rank, all ranks, lanes, workers.
NEEDS: Mapping[type, frozenset[str]] = {
    Open: frozenset({"workers"}),
    Join: frozenset({"ranks", "workers"}),
    Observe: frozenset({"rank"}),
    Progress: frozenset({"rank"}),
    Leave: frozenset({"rank"}),
    Adopt: frozenset({"lanes"}),
    Tick: frozenset({"ranks", "lanes", "workers"}),
}


def apply(state: JobState, event: Event, now_us: int, rules: Rules) -> tuple[JobState, Sequence[Effect]]:
    """The state after an event, and what to do once it is written. Raises an error of core.errors: then nothing is written."""
    outcome: tuple[JobState, Sequence[Effect]]
    if isinstance(event, Open | Join | Observe | Progress | Leave) and state.job is not None:
        state = _admitted(state, state.job, event)
    match event:
        case Open():
            outcome = _open(state, event, now_us)
        case Join():
            outcome = join(state, event, now_us, rules)
        case Observe():
            outcome = _observe(state, event, now_us)
        case Progress():
            outcome = _progress(state, event, now_us, rules)
        case Leave():
            outcome = _leave(state, event, now_us, rules)
        case Adopt():
            outcome = _adopt(state, event, now_us)
        case Tick():
            outcome = tick(state, now_us, rules, event.slot_bytes, blind=event.blind, heard_us=event.heard_us)
    return outcome


def _admitted(state: JobState, job: JobRecord, event: Open | Join | Observe | Progress | Leave) -> JobState:
    """The state after a caller has shown its tokens. Raises Unauthenticated."""
    kept = renewed(state.name, job.token_hashes, event.tokens, begins=isinstance(event, Open | Join))
    return state if kept == job.token_hashes else replace(state, job=replace(job, token_hashes=kept))


# --- open ------------------------------------------------------------------------------------------------------------


def _open(state: JobState, event: Open, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    spec = event.spec
    if state.job is not None:
        _check_same(state.job.spec, spec)
    check_plan(spec.samples, spec.batch_size, event.world, spec.tail)
    _check_engines(spec, [w for w in state.workers.values() if w.alive(now_us)])
    if state.job is not None:
        return state, ()
    return replace(state, job=JobRecord(spec, now_us, event.tokens, event.keep_s)), (
        Note("job_opened", (("samples", spec.samples), ("batch_size", spec.batch_size))),
    )


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(data, list | tuple):
        yield f"{prefix} count", len(data)
        for i, value in enumerate(data):
            yield from _flat(value, f"{prefix}[{i}]")
    else:
        yield prefix, data


def _check_same(recorded: JobSpec, given: JobSpec) -> None:
    """Raise JobMismatch naming the first field that differs. An empty fingerprint fits the recorded one."""
    if not given.fingerprint:
        given = given.with_fingerprint(recorded.fingerprint)
    elif not recorded.fingerprint:
        recorded = recorded.with_fingerprint(given.fingerprint)
    if recorded == given:
        return
    old, new = dict(_flat(recorded.to_dict())), dict(_flat(given.to_dict()))
    name = next(key for key in [*old, *new] if old.get(key) != new.get(key))
    why = "its data set was indexed again since: " if name == "manifest_hash" else ""
    raise JobMismatch(
        f"job {recorded.name} is open with {name}={old.get(name)!r}, not {new.get(name)!r}; "
        f"{why}choose another job name, or open it with the same parameters",
        job=recorded.name, field=name, recorded=str(old.get(name)), given=str(new.get(name)),
    )  # fmt: skip


def _check_engines(spec: JobSpec, live: Sequence[WorkerRecord]) -> None:
    missing = [[op for op in spec.pipeline.op_names if op not in worker.ops] for worker in live]
    if not live or not all(missing):
        return
    op = min(missing, key=len)[0]
    raise EngineUnsupported(
        f"no live worker's engine has all operations of job {spec.name}: {op} is missing; start workers whose engine has it",
        job=spec.name, op=op,
    )  # fmt: skip


# --- ranks -----------------------------------------------------------------------------------------------------------


def _heal(
    state: JobState, known: Session | None, attempt: int, tokens: tuple[str, ...], now_us: int
) -> tuple[JobState, list[Effect]]:
    """Rebuild lost job and session records from a peer's Session of a higher attempt, or of one recorded as still forming.

    tokens: the job's as that peer holds them, for a job whose record is lost.
    """
    session = state.session
    if known is None or known.job.name != state.name or known.attempt != attempt:
        return state, []
    if session is not None and (session.attempt > attempt or (session.attempt == attempt and session.formed)):
        return _bound(state, known.job)
    if state.job is not None and state.job.spec.plan_hash != known.job.plan_hash:
        raise JobMismatch(
            f"job {state.name} is open with another plan than this session's; choose another job name",
            job=state.name, recorded=state.job.spec.plan_hash, given=known.job.plan_hash,
        )  # fmt: skip
    SessionPlan(known)  # raises where its numbers are none of a session of this job
    job = state.job or JobRecord(known.job, 0, tokens)
    healed = SessionRecord(
        attempt,
        known.world,
        known.epochs,
        known.window,
        known.lanes,
        StreamState(),
        formed=True,
        epoch=known.epoch,
        first=known.first,
        healed_us=now_us,
    )
    state, effects = _bound(replace(state, job=job, session=healed), known.job)
    return state, [Note("session_healed", (("attempt", attempt),)), *effects]


def _bound(state: JobState, told: JobSpec) -> tuple[JobState, list[Effect]]:
    """Bind a job that has no engine to the one that a peer tells: it made the batches so far, and the store has lost it."""
    job = state.job
    if job is None or job.spec.fingerprint or not told.fingerprint or job.spec.plan_hash != told.plan_hash:
        return state, []
    job = replace(job, spec=job.spec.with_fingerprint(told.fingerprint))
    return replace(state, job=job), [Note("fingerprint_pinned", (("fingerprint", told.fingerprint),))]


def _member(state: JobState, attempt: int, rank: int, nonce: str) -> tuple[SessionRecord, RankRecord | None]:
    """The session and the rank's record. Raises unless this client may speak for the rank."""
    session = state.session
    if session is None or attempt > session.attempt or not session.formed:
        newest = 0 if session is None else session.attempt
        if session is not None and attempt < newest:
            raise superseded(state.name, attempt, newest, rank)
        raise SessionUnknown(
            f"the store knows no formed session of attempt {attempt} of job {state.name} (yet)",
            job=state.name,
            attempt=attempt,
            newest=newest,
        )
    if attempt < session.attempt:
        raise superseded(state.name, attempt, session.attempt, rank)
    if rank >= session.world:
        raise WorldMismatch(
            f"rank {rank} lies outside a world of {session.world}", job=state.name, rank=rank, world=session.world
        )
    record = state.ranks.get(rank)
    if record is None or record.attempt < attempt:
        return session, None
    if record.nonce != nonce:
        raise RankClaimed(
            f"another client holds rank {rank} in attempt {attempt} of job {state.name}; this one must stop",
            job=state.name, rank=rank, attempt=attempt,
        )  # fmt: skip
    return session, record


def _observe(state: JobState, event: Observe, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    state, effects = _heal(state, event.known, event.attempt, event.tokens, now_us)
    session, _ = _member(state, event.attempt, event.rank, event.nonce)
    return replace(state, session=with_stop(session, event.stop)), effects


def _progress(state: JobState, event: Progress, now_us: int, rules: Rules) -> tuple[JobState, Sequence[Effect]]:
    if not 0 <= event.committed <= event.consumed:
        raise StateInvalid(
            f"rank {event.rank} says it committed {event.committed} batches of {event.consumed} consumed",
            job=state.name, rank=event.rank, attempt=event.attempt,
        )  # fmt: skip
    state, effects = _heal(state, event.known, event.attempt, event.tokens, now_us)
    session, record = _member(state, event.attempt, event.rank, event.nonce)
    state = replace(state, session=with_stop(session, event.stop))
    old = record or RankRecord(event.attempt, event.nonce, 0)
    new = replace(
        old,
        alive_until_us=now_us + rules.rank_ttl_us,
        node=event.node or old.node,
        consumed=max(old.consumed, event.consumed),
        committed=max(old.committed, event.committed),
        remade=max(old.remade, event.remade),
        fenced=max(old.fenced, event.fenced),
    )
    if event.elapsed_s >= old.elapsed_s:  # a report that was overtaken must not turn numbers back
        new = replace(
            new,
            wait_s=event.wait_s,
            waits=event.waits,
            waiting_s=event.waiting_s,
            troubles=event.troubles,
            elapsed_s=event.elapsed_s,
            transport=event.transport,
            samples=event.samples,
            bad=event.bad_counts,
        )
        new = paced(new)
    if event.bad:
        new = replace(new, bad_keys=first_keys(old.bad_keys, (bad.key for bad in event.bad)))
        effects.append(RecordBad(event.bad))
    return replace(state, ranks={**state.ranks, event.rank: new}), effects


def _leave(state: JobState, event: Leave, now_us: int, rules: Rules) -> tuple[JobState, Sequence[Effect]]:
    """Idempotent: leaving what one no longer holds is no error, unless its last commit came too late to be recorded."""
    effects: Sequence[Effect] = ()
    record = state.ranks.get(event.rank)
    mine = record is not None and record.attempt == event.attempt and record.nonce == event.nonce
    if event.last is not None:
        try:
            state, effects = _progress(state, event.last, now_us, rules)
        except (SessionSuperseded, SessionUnknown, RankClaimed):
            if event.last.committed > (record.committed if record is not None and mine else 0):
                raise  # answered with "done", the commit would be lost without a word
    record = state.ranks.get(event.rank)
    if record is None or record.attempt != event.attempt or record.nonce != event.nonce or record.left:
        return state, effects
    return replace(state, ranks={**state.ranks, event.rank: replace(record, left=True)}), effects


# --- workers ---------------------------------------------------------------------------------------------------------


def _adopt(state: JobState, event: Adopt, now_us: int) -> tuple[JobState, Sequence[Effect]]:
    """Take over leases that the store lost: the higher token is right, since nobody else issues tokens."""
    state, effects = _heal(state, event.known, event.attempt, event.known.token_hashes if event.known else (), now_us)
    session = state.session
    if session is None:
        return state, effects
    lanes = dict(state.lanes)
    for number, token in event.tokens:
        known = lanes.get(number, LaneRecord())
        if 0 <= number < session.lanes and known.token < token <= now_us + TOKEN_AHEAD_US:
            lanes[number] = LaneRecord(event.worker, event.incarnation, token, now_us, known.relieved)
            effects.append(Note("lease_adopted", (("lane", number), ("worker", event.worker), ("token", token))))
    if lanes == state.lanes:
        return state, effects
    return replace(state, lanes=lanes), effects
