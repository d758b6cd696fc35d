"""What can happen to a job, and what follows: the words between the pure rules and the coordinator's shell.

Pure data. `session_state.apply(state, event, now_us, rules)` returns the new JobState and effects; it raises an error of
core.errors where nothing is to be recorded, and returns `Refuse` where something is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.errors import HeadraceError
from headrace.core.job import JobSpec, Session, Stop, StreamState
from headrace.core.records import JobRecord, LaneRecord, LaneTrouble, RankRecord, SessionRecord, WorkerRecord


@dataclass(frozen=True, slots=True)
class Rules:
    """Durations and bounds of the rules. slot_bytes of a job come with the events that need them.

    lag_s: a lane that a rank has been waiting for so long without its next batch being begun goes to another worker.
    lag_rest_us: not again before so long; twice as long after each time. barred_us: a worker that a rank could not use gets no
    lanes of that rank for so long, while there are others; twice as long each time that it is so again, up to barred_most_us.
    cut_off_s: a rank that reaches none of its lanes' owners is at fault itself, as long as it has waited no longer than this.
    """

    rank_ttl_us: int = 5_000_000
    worker_ttl_us: int = 3_000_000
    idle_us: int = 60_000_000
    lag_s: float = 5.0
    lag_rest_us: int = 5_000_000
    barred_us: int = 30_000_000
    barred_most_us: int = 300_000_000
    cut_off_s: float = 30.0
    max_rank_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class JobState:
    """One job's records, or the part of them that an event needs (see `session_state.NEEDS`)."""

    name: str
    job: JobRecord | None = None
    session: SessionRecord | None = None
    lanes: Mapping[int, LaneRecord] = field(default_factory=dict)
    ranks: Mapping[int, RankRecord] = field(default_factory=dict)
    workers: Mapping[str, WorkerRecord] = field(default_factory=dict)

    @property
    def members(self) -> dict[int, RankRecord]:
        """The ranks of the newest attempt, by number; none where there is no session."""
        session = self.session
        if session is None:
            return {}
        return {n: r for n, r in sorted(self.ranks.items()) if r.attempt == session.attempt and n < session.world}


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Open a job. spec: filled in from the manifest. world: the size that is going to join. keep_s: see JobRecord.

    tokens, here and in the other events of ranks: hashes of the tokens that the caller shows (core.job_token).
    """

    spec: JobSpec
    world: int
    tokens: tuple[str, ...] = ()
    keep_s: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """Claim a rank; attempt 0 is automatic. slot_bytes: of the job's slots, for the window's bound."""

    attempt: int
    rank: int
    world: int
    nonce: str
    state: StreamState | None
    plan_hash: str
    epochs: int
    node: str
    slot_bytes: int
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observe:
    """A rank watches; known: its session, from which lost records are rebuilt. stop: where it is to stop, if it knows."""

    attempt: int
    rank: int
    nonce: str
    known: Session | None
    tokens: tuple[str, ...] = ()
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be used."""

    epoch: int
    sample: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A rank's report: totals of its session, but for `bad`: samples that it has not told yet. stop: see Observe."""

    attempt: int
    rank: int
    nonce: str
    known: Session | None
    consumed: int
    committed: int
    wait_s: float = 0.0
    waits: tuple[tuple[str, float], ...] = ()
    elapsed_s: float = 0.0
    transport: str = ""
    remade: int = 0
    fenced: int = 0
    node: str = ""
    bad: tuple[BadSample, ...] = ()
    waiting_s: float = 0.0
    troubles: tuple[LaneTrouble, ...] = ()
    tokens: tuple[str, ...] = ()
    samples: int = 0
    bad_counts: tuple[tuple[str, int], ...] = ()
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A rank goes; last: its last report, if it sent one."""

    attempt: int
    rank: int
    nonce: str
    last: Progress | None
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopt:
    """A worker holds leases that the store may have lost: tokens by lane."""

    worker: str
    incarnation: str
    attempt: int
    tokens: tuple[tuple[int, int], ...]
    known: Session | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. blind: heartbeats could not be heard lately, so that silence says nothing of a worker.

    heard_us: when the workers' records were read, by which their lives are judged; 0: with the job's.
    """

    slot_bytes: int
    blind: bool = False
    heard_us: int = 0


Event = Open | Join | Observe | Progress | Leave | Adopt | Tick

# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer to Join. session: set once formed. awaited: ranks that have not come."""

    attempt: int
    session: Session | None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Record the new state, then answer with this error."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class RecordBad:
    """Note bad samples, each once."""

    samples: tuple[BadSample, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the log: event name and ids."""

    event: str
    ids: tuple[tuple[str, str | int], ...] = ()


MOVE_REASONS = ("lost", "drained", "unable", "unreached", "lagged", "rebalanced")


@dataclass(frozen=True, slots=True)
class LaneMoved:
    """A lane was taken from a worker. reason: one of MOVE_REASONS."""

    lane: int
    owner: str
    to: str
    token: int
    reason: str


Effect = Joined | Refuse | RecordBad | Note | LaneMoved
