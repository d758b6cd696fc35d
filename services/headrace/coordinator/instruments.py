"""The coordinator's metrics: counters of its own doing, and a collector that reads the board when it is scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.coordinator.job_tables import last_used_us
from headrace.coordinator.recent import judge_job
from headrace.coordinator.recent_events import RecentEvents
from headrace.coordinator.refusals import Refusals
from headrace.core.errors import HeadraceError
from headrace.core.events import MOVE_REASONS, JobState
from headrace.core.session_plan import SessionPlan
from headrace.core.verdict import VERDICTS
from headrace.telemetry import metrics
from headrace.telemetry.seldom import Seldom

if TYPE_CHECKING:
    from headrace.coordinator.board import Board
    from headrace.wire.secret import Secret
    from headrace.wire.tls import ServerTls

log = structlog.get_logger()

# A job that nobody has used for so long is not exported; it comes back with its first rank.
_EXPORT_US = 600_000_000
# Without the store for longer, a replica knows nothing of the fleet: figures of another time would be taken for those of now.
_STALE_S = 10.0


class Instruments:
    """What this replica counts itself, and what it saw lately. Replicas share no counters: sum over them.

    moves: of lanes, by job and reason; exported with the jobs, by BoardCollector.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.events = RecentEvents()
        self.refusals = Refusals()
        self.secrets: tuple[Secret, ...] = ()
        self.series = 0
        self.seldom = Seldom()
        self.moves: dict[str, Counter[str]] = {}
        self.certificate_valid_s: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        self._store_seconds = metrics.histogram("headrace_store_request_seconds", registry)
        self._pass_seconds = metrics.histogram("headrace_coordinator_pass_seconds", registry)
        self._conflicts = metrics.counter("headrace_store_conflicts_total", registry)
        self._store_errors = metrics.counter("headrace_store_errors_total", registry)
        self._refused = metrics.counter("headrace_calls_refused_total", registry)
        self._reloads = metrics.counter("headrace_coordinator_tls_reloads_total", registry)
        self._not_before = metrics.gauge("headrace_coordinator_tls_not_before_seconds", registry)
        self._not_after = metrics.gauge("headrace_coordinator_tls_not_after_seconds", registry)

    def lanes_moved(self, job: str, reason: str, lanes: int) -> None:
        """So many lanes were taken from a worker."""
        self.moves.setdefault(job, Counter())[reason] += lanes

    def store_took(self, seconds: float) -> None:
        """A request to the store ended."""
        self._store_seconds.observe(seconds)

    def pass_took(self, seconds: float) -> None:
        """A look at the fleet and its jobs ended."""
        self._pass_seconds.observe(seconds)

    def store_failed(self, reason: str) -> None:
        """A request to the store failed."""
        self._store_errors.labels(reason).inc()

    def conflict(self) -> None:
        """A write is repeated."""
        self._conflicts.inc()

    def refused(self, code: str) -> None:
        """A call was answered with an error."""
        self._refused.labels(code).inc()
        self.refusals.note(code)

    def call_refused(self, error: HeadraceError, peer: str) -> None:
        """A call is answered with an error of ours: counted, told among the events, and logged now and then."""
        self.refused(error.code)
        job = str(error.ids.get("job", ""))
        self.events.add("call_refused", error.message, job=job, level="warning", group=error.code)
        if (more := self.seldom.due((error.code, job))) is not None:
            log.info("call_refused", error=error.message, code=error.code, peer=peer, more=more, **error.ids)

    def turned_away(self, code: str, text: str) -> None:
        """Somebody at the admin address was not let in."""
        self._refused.labels(code).inc()
        self.refusals.note(code, text)
        self.events.add("call_refused", text, level="warning", group=code)
        if (more := self.seldom.due(code)) is not None:
            log.warning("call_refused", error=text, code=code, more=more)

    def exposition(self) -> bytes:
        """All metrics as Prometheus reads them; counts their series."""
        text = generate_latest(self.registry)
        self.series = text.count(b"\n") - text.count(b"\n#") - text.startswith(b"#")
        return text

    def tls_reloaded(self, reason: str) -> None:
        """The certificate's files changed: `ok`, or `refused` and the one before stays."""
        self._reloads.labels(reason).inc()
        refused = "the certificate's files changed and cannot be used: the one before stays in use, see the log"
        good = reason == "ok"
        self.events.add("certificate", "a new certificate is in use" if good else refused, level="info" if good else "warning")

    def certificate(self, tls: ServerTls | None) -> None:
        """Export from when to when the certificate in use is valid."""
        if tls is not None:
            for reason in metrics.RELOADS:
                self._reloads.labels(reason)  # from 0 on: there is one in months, and it is to be seen as an increase
            self.certificate_valid_s = lambda: tls.validity_s
            self._not_before.set_function(lambda: tls.validity_s[0])
            self._not_after.set_function(lambda: tls.validity_s[1])


def dropped(job: JobState) -> tuple[int, int]:
    """Samples that no rank gets in a whole epoch, and in all that the newest attempt is through with."""
    if job.job is None or job.session is None or not job.session.formed:
        return 0, 0
    session = job.session.session(job.job)
    plan, whole = SessionPlan(session), SessionPlan(replace(session, epoch=0, first=0, epochs=0)).dropped_in(0)
    members = job.members
    at = plan.locate(0, min(members[rank].consumed if rank in members else 0 for rank in range(session.world)))
    ended = (session.epochs if at is None else at.epoch) - session.epoch
    # The session's first epoch may be the rest of one, too short for a step; from the second on all are whole.
    rest = plan.dropped_in(session.epoch) if ended > 0 else 0
    return whole, rest + max(0, ended - 1) * whole


class BoardCollector(Collector):
    """Jobs, ranks, lanes and workers, as the board last saw them. Every replica exports the same: don't sum over them.

    Moves of lanes are the exception: each replica's own. moves: Instruments.moves; loses the jobs that are not exported.

    A replica that cannot read the store exports only for how long; the others' figures are then all there are.
    """

    def __init__(self, board: Board, moves: dict[str, Counter[str]] | None = None) -> None:
        self._board = board
        self._moves = {} if moves is None else moves
        self._used: list[JobState] = []

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: labels come with the jobs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families at this moment, of jobs that were used lately: those of a year would be a hundred thousand series."""
        failing = metrics.gauge_family("headrace_store_failing_seconds")
        failing.add_metric([], self._board.failing_s)
        yield failing
        if self._board.failing_s > _STALE_S:
            return
        overloaded = metrics.gauge_family("headrace_coordinator_overloaded")
        overloaded.add_metric([], self._board.sight.strained)
        yield overloaded
        now_us = self._board.seen_us()
        self._used = [job for job in self._board.jobs() if last_used_us(job) >= now_us - _EXPORT_US]
        for name in set(self._moves) - {job.name for job in self._used}:
            del self._moves[name]
        yield from self._workers()
        yield from self._jobs()
        yield from self._verdicts()
        yield from self._scaling()
        yield from self._ranks()

    def _workers(self) -> Iterable[Metric]:
        live = self._board.live_workers()
        count, speed = metrics.gauge_family("headrace_workers_live"), metrics.gauge_family("headrace_worker_speed")
        skew = metrics.gauge_family("headrace_store_clock_skew_seconds")
        count.add_metric([], len(live))
        for worker in live:
            speed.add_metric([worker.endpoint.worker], worker.samples_per_s)
        if self._board.loaded:
            skew.add_metric([], self._board.store_ahead_s())
        return count, speed, skew

    def _jobs(self) -> Iterable[Metric]:
        attempt, ranks = metrics.gauge_family("headrace_job_attempt"), metrics.gauge_family("headrace_job_ranks")
        live, lanes = metrics.gauge_family("headrace_job_ranks_live"), metrics.gauge_family("headrace_lanes")
        unowned, remade = (
            metrics.gauge_family("headrace_lanes_unowned"),
            metrics.counter_family("headrace_batches_remade_total"),
        )
        fenced = metrics.counter_family("headrace_batches_fenced_total")
        bad = metrics.counter_family("headrace_bad_samples_total")
        lost, moved = (
            metrics.counter_family("headrace_samples_dropped_total"),
            metrics.counter_family("headrace_lane_moves_total"),
        )
        for job in self._used:
            for reason, number in sorted(self._board.bad_reasons.get(job.name, Counter[str]()).items()):
                bad.add_metric([job.name, reason], number)
            if job.session is None:
                continue
            members = list(job.members.values())
            attempt.add_metric([job.name], job.session.attempt)
            ranks.add_metric([job.name], job.session.world)
            live.add_metric([job.name], sum(record.alive(self._board.seen_us()) for record in members))
            lanes.add_metric([job.name], job.session.lanes)
            unowned.add_metric([job.name], lanes_unowned(job, self._board.seen_us()))
            remade.add_metric([job.name], sum(record.remade for record in members))
            fenced.add_metric([job.name], sum(record.fenced for record in members))
            lost.add_metric([job.name], dropped(job)[1])
            moves = self._moves.get(job.name, Counter[str]())
            # From 0 on: a counter that is there first with what a dead worker's lanes made of it shows no increase.
            for reason in sorted({*MOVE_REASONS, *moves}):
                moved.add_metric([job.name, reason], moves[reason])
        return attempt, ranks, live, lanes, unowned, remade, fenced, bad, lost, moved

    def _verdicts(self) -> Iterable[Metric]:
        verdict, ratio = metrics.gauge_family("headrace_job_verdict"), metrics.gauge_family("headrace_job_starvation_ratio")
        worst, demand = metrics.gauge_family("headrace_job_worst_rank"), metrics.gauge_family("headrace_job_demand")
        for job in self._used:
            if job.session is None:
                continue
            judged = judge_job(self._board.recent, job, self._board.seen_us())
            for name in VERDICTS:
                verdict.add_metric([job.name, name], name == judged.verdict)
            ratio.add_metric([job.name], judged.ratio)
            worst.add_metric([job.name], judged.worst_rank)
            if job.name in self._board.scaling.demand:
                demand.add_metric([job.name], self._board.scaling.demand[job.name])
        return verdict, ratio, worst, demand

    def _scaling(self) -> Iterable[Metric]:
        desired = metrics.gauge_family("headrace_desired_workers")
        live, speed = metrics.gauge_family("headrace_pool_workers_live"), metrics.gauge_family("headrace_pool_worker_speed")
        for (pool, fingerprint), found in self._board.scaling.classes.items():
            desired.add_metric([pool, fingerprint], found.desired)
            live.add_metric([pool, fingerprint], found.live)
            speed.add_metric([pool, fingerprint], found.speed)
        return desired, live, speed

    def _ranks(self) -> Iterable[Metric]:
        wait = metrics.counter_family("headrace_rank_wait_seconds_total")
        elapsed = metrics.counter_family("headrace_rank_elapsed_seconds_total")
        ratio = metrics.gauge_family("headrace_rank_starvation_ratio")
        consumed = metrics.counter_family("headrace_rank_batches_consumed_total")
        committed = metrics.counter_family("headrace_rank_batches_committed_total")
        transport = metrics.gauge_family("headrace_rank_transport_info")
        for job in self._used:
            for rank, record in job.members.items():
                labels = [job.name, str(rank)]
                for cause, seconds in self._board.recent.waits(job.name, rank, record).items():
                    wait.add_metric([*labels, cause], seconds)
                elapsed.add_metric(labels, record.elapsed_s)
                ratio.add_metric(labels, self._board.recent.ratio(job.name, rank, record))
                consumed.add_metric(labels, record.consumed)
                committed.add_metric(labels, record.committed)
                if record.transport:
                    transport.add_metric([*labels, record.transport], 1)
        return wait, elapsed, ratio, consumed, committed, transport


def lanes_unowned(job: JobState, now_us: int) -> int:
    """Lanes that no live worker holds."""
    if job.session is None:
        return 0
    owners = ((lane, job.workers.get(lane.owner)) for lane in job.lanes.values())
    return job.session.lanes - sum(
        1 for lane, worker in owners if worker and worker.endpoint.incarnation == lane.incarnation and worker.alive(now_us)
    )
