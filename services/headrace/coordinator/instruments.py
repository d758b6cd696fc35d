"""The coordinator's metrics: counters of its own doing, and a collector that reads the board when it is scraped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.core.events import JobState
from headrace.core.records import RankRecord
from headrace.telemetry import metrics

if TYPE_CHECKING:
    from headrace.coordinator.board import Board

# Reports over which "recent" starvation is told: 2 a second make 15 s.
_RECENT_REPORTS = 30


class Instruments:
    """What this replica counts itself. Replicas share no counters: sum over them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._moves = metrics.counter("headrace_lane_moves_total", registry)
        self._store_seconds = metrics.histogram("headrace_store_request_seconds", registry)
        self._conflicts = metrics.counter("headrace_store_conflicts_total", registry)
        self._store_errors = metrics.counter("headrace_store_errors_total", registry)
        self._refused = metrics.counter("headrace_calls_refused_total", registry)

    def lane_moved(self, job: str, reason: str) -> None:
        """A lane was taken from a worker."""
        self._moves.labels(job, reason).inc()

    def store_took(self, seconds: float) -> None:
        """A request to the store ended."""
        self._store_seconds.observe(seconds)

    def store_failed(self, reason: str) -> None:
        """A request to the store failed."""
        self._store_errors.labels(reason).inc()

    def conflict(self) -> None:
        """A write is repeated."""
        self._conflicts.inc()

    def refused(self, code: str) -> None:
        """A call was answered with an error."""
        self._refused.labels(code).inc()


class Recent:
    """Share of recent time that each rank waited, from the totals that it reports."""

    def __init__(self) -> None:
        self._points: dict[tuple[str, int, str], deque[tuple[float, float]]] = {}

    def note(self, job: str, rank: int, record: RankRecord) -> None:
        """Take a rank's newest totals."""
        points = self._points.setdefault((job, rank, record.nonce), deque(maxlen=_RECENT_REPORTS))
        if not points or record.elapsed_s > points[-1][0]:
            points.append((record.elapsed_s, record.wait_s))

    def ratio(self, job: str, rank: int, record: RankRecord) -> float:
        """0 is never, 1 is always."""
        points = self._points.get((job, rank, record.nonce))
        if not points or points[-1][0] <= points[0][0]:
            return min(1.0, record.wait_s / record.elapsed_s) if record.elapsed_s else 0.0
        return min(1.0, max(0.0, (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])))

    def keep(self, live: set[tuple[str, int, str]]) -> None:
        """Forget all others."""
        for key in self._points.keys() - live:
            del self._points[key]


class BoardCollector(Collector):
    """Jobs, ranks, lanes and workers, as the board last saw them. Every replica exports the same: don't sum over them."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: labels come with the jobs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families at this moment."""
        yield from self._workers()
        yield from self._jobs()
        yield from self._ranks()

    def _workers(self) -> Iterable[Metric]:
        live = self._board.live_workers()
        count, speed = metrics.gauge_family("headrace_workers_live"), metrics.gauge_family("headrace_worker_speed")
        count.add_metric([], len(live))
        for worker in live:
            speed.add_metric([worker.endpoint.worker], worker.samples_per_s)
        return count, speed

    def _jobs(self) -> Iterable[Metric]:
        attempt, ranks = metrics.gauge_family("headrace_job_attempt"), metrics.gauge_family("headrace_job_ranks")
        live, lanes = metrics.gauge_family("headrace_job_ranks_live"), metrics.gauge_family("headrace_lanes")
        unowned, remade = (
            metrics.gauge_family("headrace_lanes_unowned"),
            metrics.counter_family("headrace_batches_remade_total"),
        )
        bad = metrics.counter_family("headrace_bad_samples_total")
        for job in self._board.jobs():
            for reason, number in sorted(self._board.bad_reasons.get(job.name, Counter[str]()).items()):
                bad.add_metric([job.name, reason], number)
            if job.session is None:
                continue
            members = list(members_of(job).values())
            attempt.add_metric([job.name], job.session.attempt)
            ranks.add_metric([job.name], job.session.world)
            live.add_metric([job.name], sum(record.alive(self._board.now_us()) for record in members))
            lanes.add_metric([job.name], job.session.lanes)
            unowned.add_metric([job.name], job.session.lanes - sum(1 for lane in job.lanes.values() if lane.owner))
            remade.add_metric([job.name], sum(record.remade for record in members))
        return attempt, ranks, live, lanes, unowned, remade, bad

    def _ranks(self) -> Iterable[Metric]:
        wait = metrics.counter_family("headrace_rank_wait_seconds_total")
        elapsed = metrics.counter_family("headrace_rank_elapsed_seconds_total")
        ratio = metrics.gauge_family("headrace_rank_starvation_ratio")
        consumed = metrics.counter_family("headrace_rank_batches_consumed_total")
        committed = metrics.counter_family("headrace_rank_batches_committed_total")
        transport = metrics.gauge_family("headrace_rank_transport_info")
        for job in self._board.jobs():
            for rank, record in sorted(members_of(job).items()):
                labels = [job.name, str(rank)]
                for cause, seconds in record.waits:
                    wait.add_metric([*labels, cause], seconds)
                elapsed.add_metric(labels, record.elapsed_s)
                ratio.add_metric(labels, self._board.recent.ratio(job.name, rank, record))
                consumed.add_metric(labels, record.consumed)
                committed.add_metric(labels, record.committed)
                if record.transport:
                    transport.add_metric([*labels, record.transport], 1)
        return wait, elapsed, ratio, consumed, committed, transport


def members_of(job: JobState) -> dict[int, RankRecord]:
    """The ranks' records of the newest attempt."""
    if job.session is None:
        return {}
    return {
        rank: record
        for rank, record in sorted(job.ranks.items())
        if record.attempt == job.session.attempt and rank < job.session.world
    }
