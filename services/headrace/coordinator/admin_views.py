"""What the admin API answers: its models, and how they are made of what the board knows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from headrace.coordinator.board import Board
from headrace.coordinator.instruments import dropped, lanes_unowned
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.coordinator.quarantine import Quarantined
from headrace.coordinator.recent import judge_job, waited_s
from headrace.core.errors import HeadraceError
from headrace.core.events import JobState
from headrace.core.job import JobSpec
from headrace.core.masking import mask_address
from headrace.core.quarantine import BadRecord
from headrace.core.records import RankRecord, WorkerRecord
from headrace.core.verdict import judge_rank

BAD_SHOWN = 100


class Health(BaseModel):
    """Whether the service can do its work; why not, if not."""

    status: Literal["ok", "unavailable"]
    reason: str = ""


class Rank(BaseModel):
    """One rank of the newest attempt. Counts and seconds are totals of the session; wait_s counts the wait that goes on.
    recent_share_by_cause: of its recent time, what it waited, by cause. verdict, trend, cause: of that time (core.verdict);
    cause is empty where it hardly waits."""

    rank: int
    live: bool
    left: bool
    node: str
    transport: str
    consumed: int
    committed: int
    elapsed_s: float
    wait_s: float
    waiting_s: float
    wait_s_by_cause: dict[str, float]
    recent_starvation_ratio: float
    recent_share_by_cause: dict[str, float]
    verdict: str
    trend: str
    cause: str
    batches_remade: int


class Lane(BaseModel):
    """Who holds a lane; worker is empty while nobody does."""

    lane: int
    worker: str
    token: int


class BadSampleView(BaseModel):
    """A sample that could not be used. count: epochs in which it was met. shard: only in the quarantine."""

    sample: int
    shard: str = ""
    key: str
    reason: str
    count: int
    last_epoch: int


class JobSummary(BaseModel):
    """A job that is open. verdict, trend, starvation_ratio, cause: of its worst rank in the recent time (core.verdict).
    worst_rank: -1 while nothing is known. why, action: a sentence, and what to do first. samples_wanted_per_s: what its ranks
    would take if they never waited; -1 while that is not known."""

    job: str
    attempt: int
    formed: bool
    world: int
    ranks_live: int
    lanes: int
    lanes_unowned: int
    fingerprint: str
    verdict: str
    trend: str
    starvation_ratio: float
    worst_rank: int
    cause: str
    why: str
    action: str
    samples_wanted_per_s: float


class JobView(JobSummary):
    """A job in full. dropped_per_epoch: samples that no rank gets, by the tail; samples_dropped: in epochs that are over.
    bad_samples: the first 100; /quarantine has all. stop_index, stop_why: where all ranks stop for too many of them, or -1."""

    dataset: str
    manifest_hash: str
    plan_hash: str
    samples: int
    batch_size: int
    epoch: int
    first: int
    epochs: int
    window: int
    lanes_moved: int
    batches_remade: int
    dropped_per_epoch: int
    samples_dropped: int
    ranks: list[Rank]
    lane_owners: list[Lane]
    bad_samples: list[BadSampleView]
    bad_samples_total: int
    stop_index: int
    stop_why: str


class QuarantineView(BaseModel):
    """A job's bad samples, each with its shard, by id. total: times that they were met, each once an epoch. unlisted: those of
    them for which the list had no room. note: what keeps shards from being named, if anything does."""

    job: str
    dataset: str
    manifest_hash: str
    samples: list[BadSampleView]
    total: int
    unlisted: int
    note: str


class ScalingView(BaseModel):
    """A class of workers, those of one pool with one engine, and how many of them would feed its jobs (core.autoscale).

    samples_per_s: of one worker at full load, 0 until measured. samples_wanted_per_s: by its jobs. workers_most: lanes of its
    jobs, beyond which a worker would have nothing to do. jobs: those that it may serve and that train.
    """

    pool: str
    fingerprint: str
    workers_live: int
    workers_desired: int
    workers_most: int
    samples_per_s: float
    samples_wanted_per_s: float
    jobs: list[str]


class WorkerView(BaseModel):
    """A worker that is remembered."""

    worker: str
    live: bool
    draining: bool
    unable_jobs: list[str]
    grpc: str
    node: str
    fingerprint: str
    pool: str
    retiring: bool
    ops: list[str]
    samples_per_s: float
    threads: int
    lanes_by_job: dict[str, int]


def job_summary(board: Board, state: JobState) -> JobSummary:
    """A job in short; it must be open."""
    assert state.job is not None
    session, judged = state.session, judge_job(board.recent, state, board.seen_us())
    return JobSummary(
        job=state.name,
        attempt=session.attempt if session else 0,
        formed=bool(session and session.formed),
        world=session.world if session else 0,
        ranks_live=sum(record.alive(board.seen_us()) for record in state.members.values()),
        lanes=session.lanes if session else 0,
        lanes_unowned=lanes_unowned(state, board.seen_us()),
        fingerprint=state.job.spec.fingerprint,
        verdict=judged.verdict,
        trend=judged.trend,
        starvation_ratio=judged.ratio,
        worst_rank=judged.worst_rank,
        cause=judged.cause,
        why=judged.why,
        action=judged.action,
        samples_wanted_per_s=board.scaling.demand.get(state.name, -1.0),
    )


async def job_view(board: Board, ledger: Ledger, state: JobState) -> JobView:
    """A job in full; it must be open. Raises StoreUnavailable."""
    assert state.job is not None
    spec, session, members = state.job.spec, state.session, state.members
    bad = await ledger.quarantine.of(state.name)
    whole, lost = dropped(state)
    return JobView(
        **job_summary(board, state).model_dump(),
        dataset=mask_address(spec.dataset),
        manifest_hash=spec.manifest_hash,
        plan_hash=spec.plan_hash,
        samples=spec.samples,
        batch_size=spec.batch_size,
        epoch=session.epoch if session else 0,
        first=session.first if session else 0,
        epochs=session.epochs if session else 0,
        window=session.window if session else 0,
        lanes_moved=session.lanes_moved if session else 0,
        batches_remade=sum(record.remade for record in members.values()),
        dropped_per_epoch=whole,
        samples_dropped=lost,
        ranks=[_rank(board, state.name, rank, record) for rank, record in members.items()],
        lane_owners=[Lane(lane=n, worker=lane.owner, token=lane.token) for n, lane in sorted(state.lanes.items())],
        bad_samples=[_bad(record) for record in bad.samples[:BAD_SHOWN]],
        bad_samples_total=bad.total,
        stop_index=session.stop_index if session else -1,
        stop_why=session.stop_why if session else "",
    )


def _bad(record: BadRecord, shard: str = "") -> BadSampleView:
    return BadSampleView(
        sample=record.sample,
        shard=shard,
        key=record.key,
        reason=record.reason,
        count=record.count,
        last_epoch=record.last_epoch,
    )


async def quarantine_view(manifests: Manifests, spec: JobSpec, found: Quarantined) -> QuarantineView:
    """A job\'s bad samples with their shards, where the manifest can be read."""
    shards, note = dict[int, str](), ""
    if found.samples:
        try:
            manifest = await manifests.of_hash(spec.dataset, spec.manifest_hash)
            shards = {bad.sample: manifest.shard_of(bad.sample) for bad in found.samples}
        except HeadraceError as error:
            note = f"shards cannot be named: {error.message}"
    return QuarantineView(
        job=spec.name,
        dataset=mask_address(spec.dataset),
        manifest_hash=spec.manifest_hash,
        samples=[_bad(record, shards.get(record.sample, "")) for record in found.samples],
        total=found.total,
        unlisted=found.beyond,
        note=note,
    )


def _rank(board: Board, job: str, rank: int, record: RankRecord) -> Rank:
    wait = board.recent.wait(job, rank, record)
    judged = judge_rank(wait)
    return Rank(
        rank=rank,
        live=record.alive(board.seen_us()),
        left=record.left,
        node=record.node,
        transport=record.transport,
        consumed=record.consumed,
        committed=record.committed,
        elapsed_s=record.elapsed_s,
        wait_s=waited_s(record),
        waiting_s=record.waiting_s,
        wait_s_by_cause=board.recent.waits(job, rank, record),
        recent_starvation_ratio=wait.ratio,
        recent_share_by_cause=board.recent.shares(job, rank, record),
        verdict=judged.verdict,
        trend=judged.trend,
        cause=judged.cause,
        batches_remade=record.remade,
    )


def worker_views(board: Board) -> list[WorkerView]:
    """All workers as the board last saw them."""
    held = defaultdict[str, Counter[str]](Counter)
    for job in board.jobs():
        for lane in job.lanes.values():
            held[lane.owner][job.name] += 1
    return [_worker(board, record, held[record.endpoint.worker]) for record in board.workers()]


def _worker(board: Board, record: WorkerRecord, lanes_by_job: Mapping[str, int]) -> WorkerView:
    return WorkerView(
        worker=record.endpoint.worker,
        live=record.alive(board.seen_us()),
        draining=record.draining,
        unable_jobs=list(record.unable),
        grpc=record.endpoint.grpc,
        node=record.endpoint.node,
        fingerprint=record.fingerprint,
        pool=record.pool,
        retiring=record.retiring,
        ops=list(record.ops),
        samples_per_s=record.samples_per_s,
        threads=record.threads,
        lanes_by_job=dict(lanes_by_job),
    )


def scaling_views(board: Board) -> list[ScalingView]:
    """All classes of workers."""
    return [
        ScalingView(
            pool=pool,
            fingerprint=fingerprint,
            workers_live=found.live,
            workers_desired=found.desired,
            workers_most=found.most,
            samples_per_s=found.speed,
            samples_wanted_per_s=found.demand,
            jobs=list(found.jobs),
        )
        for (pool, fingerprint), found in board.scaling.classes.items()
    ]
