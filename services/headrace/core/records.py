"""What the store holds: one small record per job, session, lane, rank and worker, and their JSON.

Pure. Size is O(lanes + ranks + workers), never O(samples). Times are the store's clock in microseconds (`_us`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from headrace.core.job import Endpoint, JobSpec, Session, Stop, StreamState
from headrace.core.newest import newest
from headrace.core.record_check import reads


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that is open. `spec.fingerprint` is empty until the first worker is chosen. token_hashes: see core.job_token.

    keep_s: how long it is remembered when nobody uses it; 0: as long as any.
    """

    spec: JobSpec
    opened_us: int
    token_hashes: tuple[str, ...] = ()
    keep_s: int = 0


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The newest attempt of a job.

    formed: all ranks have come; epoch, first count from then on. fallback: where it begins unless the ranks present a state;
    it is fixed when the attempt begins, so that a late commit of the attempt before cannot change it. lanes_moved: lanes
    taken from a previous owner since the session formed. barred: (incarnation, group of lanes, since, how many times)
    of workers that a rank could not use: their lanes of that group went elsewhere, and others go first for a while.
    stop_index, stop_why: where it ends for too many bad samples; -1 while it goes on (core.bad_share). healed_us: when a peer
    told it to a store that had lost it; 0: it formed here, or a version wrote it that does not note that.
    """

    attempt: int
    world: int
    epochs: int
    window: int
    lanes: int
    fallback: StreamState
    formed: bool = False
    epoch: int = 0
    first: int = 0
    lanes_moved: int = 0
    barred: tuple[tuple[str, int, int, int], ...] = ()
    stop_index: int = -1
    stop_why: str = ""
    healed_us: int = 0

    @property
    def stop(self) -> Stop | None:
        """As ranks know it."""
        return None if self.stop_index < 0 else Stop(self.stop_index, self.stop_why)

    def session(self, job: JobRecord) -> Session:
        """As all parties know it; only meaningful once formed."""
        numbers = (self.attempt, self.world, self.epoch, self.first, self.epochs, self.window, self.lanes)
        return Session(job.spec, *numbers, token_hashes=job.token_hashes)


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """A lane's lease: valid while `owner`'s worker record of the same incarnation is alive. token outlives the owner.

    leased_us: since when. relieved: how many times in a row it was taken from an owner that was too slow with it.
    """

    owner: str = ""
    incarnation: str = ""
    token: int = 0
    leased_us: int = 0
    relieved: int = 0


@dataclass(frozen=True, slots=True)
class LaneTrouble:
    """A lane that a rank needs next and does not get. worker, token: its owner and newest token as the rank knows them.

    connected: it has a working connection to that owner, so that waiting is no fault of the way between them.
    """

    lane: int
    worker: str
    token: int
    waited_s: float
    connected: bool


@dataclass(frozen=True, slots=True)
class RankRecord:
    """A rank's claim and, once its session formed, its cursors and numbers (totals of the session).

    waiting_s: of the wait that goes on now, which wait_s does not count yet. samples: handed over, without padding. bad:
    (reason, how many of them). bad_keys: the first few. paced_from: (consumed, elapsed_s) whence its speed is measured;
    speed: the highest so far, batches/s, of so many spans of time with a batch (core.bad_share).
    """

    attempt: int
    nonce: str
    alive_until_us: int
    node: str = ""
    left: bool = False
    state: StreamState | None = None
    consumed: int = 0
    committed: int = 0
    wait_s: float = 0.0
    waits: tuple[tuple[str, float], ...] = ()
    elapsed_s: float = 0.0
    transport: str = ""
    remade: int = 0
    fenced: int = 0
    waiting_s: float = 0.0
    troubles: tuple[LaneTrouble, ...] = ()
    samples: int = 0
    bad: tuple[tuple[str, int], ...] = ()
    bad_keys: tuple[str, ...] = ()
    paced_from: tuple[int, float] = (0, 0.0)
    speed: float = 0.0
    spans: int = 0

    def alive(self, now_us: int) -> bool:
        """True while its client polls or reports."""
        return not self.left and now_us < self.alive_until_us


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker stated of itself.

    lagging: (job, lane, seconds behind). unable: jobs that it cannot open. replaced: earlier incarnations under this id, which
    are refused from then on. pool: what it is scaled together with. retiring: no new job is bound to its engine.
    """

    endpoint: Endpoint
    fingerprint: str
    ops: tuple[str, ...]
    samples_per_s: float
    threads: int
    draining: bool
    alive_until_us: int
    lagging: tuple[tuple[str, int, float], ...] = ()
    unable: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    pool: str = ""
    retiring: bool = False

    def alive(self, now_us: int) -> bool:
        """True while its heartbeats are in time."""
        return now_us < self.alive_until_us


Record = JobRecord | SessionRecord | LaneRecord | RankRecord | WorkerRecord
Mortal = TypeVar("Mortal", RankRecord, WorkerRecord)


def not_from_the_future(record: Mortal, now_us: int, ttl_us: int) -> Mortal:
    """The record itself, or one that lives a ttl from now: a clock that was put back would keep the dead alive until then."""
    return record if record.alive_until_us <= now_us + 2 * ttl_us else replace(record, alive_until_us=now_us + ttl_us)


def encode(record: Record) -> bytes:
    """JSON of a record; the `*_from_bytes` functions read it back equal."""
    if isinstance(record, LaneRecord):
        data: Any = [record.owner, record.incarnation, record.token, record.leased_us, record.relieved]
    elif isinstance(record, JobRecord):
        data = {**_fields(record), "spec": record.spec.to_dict()}
    else:
        data = _fields(record)
    return json.dumps(data, separators=(",", ":"), default=_fields).encode()


def _fields(record: Any) -> dict[str, Any]:
    """A dataclass one level deep, for json to go on with; dataclasses.asdict copies everything and takes 5 times as long."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _known(kind: type[Record | StreamState | Endpoint | LaneTrouble], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows: one that is newer may write more into the same store, at any depth."""
    return {name: value for name, value in data.items() if name in kind.__dataclass_fields__}


def _state(data: Mapping[str, Any]) -> StreamState:
    return StreamState(**_known(StreamState, data))


def _bar(incarnation: str, group: int, since_us: int, times: int = 1, *_: Any) -> tuple[str, int, int, int]:
    """An older version did not count times, and a newer one may add something."""
    return incarnation, group, since_us, times


# Cached by their bytes: a tick each second would otherwise parse what has not changed.
@lru_cache(maxsize=2048)
@reads("job")
def job_from_bytes(data: bytes) -> JobRecord:
    """Read a JobRecord. Raises RecordInvalid."""
    fields = _known(JobRecord, json.loads(data))
    fields["spec"] = JobSpec.from_dict(fields["spec"])
    return JobRecord(**{**fields, "token_hashes": tuple(fields.get("token_hashes", ()))})


@lru_cache(maxsize=2048)
@reads("session")
def session_from_bytes(data: bytes) -> SessionRecord:
    """Read a SessionRecord. Raises RecordInvalid."""
    fields = _known(SessionRecord, json.loads(data))
    fields["fallback"] = _state(fields["fallback"])
    fields["barred"] = tuple(_bar(*entry) for entry in fields.get("barred", ()))
    return SessionRecord(**fields)


@lru_cache(maxsize=16384)
@reads("lane")
def lane_from_bytes(data: bytes) -> LaneRecord:
    """Read a LaneRecord. Raises RecordInvalid."""
    return LaneRecord(*json.loads(data)[: len(LaneRecord.__dataclass_fields__)])


def _claimer(rank: RankRecord) -> str:
    return rank.nonce


def _worker(worker: WorkerRecord) -> str:
    return worker.endpoint.worker


@newest(_claimer, 4096)
@reads("rank")
def rank_from_bytes(data: bytes) -> RankRecord:
    """Read a RankRecord. Raises RecordInvalid."""
    fields = _known(RankRecord, json.loads(data))
    fields["state"] = None if fields["state"] is None else _state(fields["state"])
    fields["waits"] = tuple((cause, seconds) for cause, seconds in fields["waits"])
    fields["troubles"] = tuple(LaneTrouble(**_known(LaneTrouble, trouble)) for trouble in fields.get("troubles", ()))
    fields["bad"] = tuple((reason, count) for reason, count in fields.get("bad", ()))
    fields["bad_keys"] = tuple(fields.get("bad_keys", ()))
    fields["paced_from"] = tuple(fields.get("paced_from", (0, 0.0)))
    return RankRecord(**fields)


@newest(_worker, 16384)
@reads("worker")
def worker_from_bytes(data: bytes) -> WorkerRecord:
    """Read a WorkerRecord. Raises RecordInvalid."""
    fields = _known(WorkerRecord, json.loads(data))
    fields["endpoint"] = Endpoint(**_known(Endpoint, fields["endpoint"]))
    fields["ops"] = tuple(fields["ops"])
    fields["replaced"] = tuple(fields["replaced"])
    fields["lagging"] = tuple((job, lane, behind_s) for job, lane, behind_s in fields["lagging"])
    fields["unable"] = tuple(fields.get("unable", ()))
    return WorkerRecord(**fields)
