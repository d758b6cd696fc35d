"""What the worker measures of itself: its speed for the lease rules, and its metrics for Prometheus.

Called on the event loop thread; one registry a process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter

from headrace.core.batch import BAD_REASONS
from headrace.core.placement import GPU_ENGINES
from headrace.telemetry import metrics
from headrace.wire.tls import ServerTls
from headrace.worker.engines.protocol import Engine
from headrace.worker.gauges import Occupancy
from headrace.worker.make_batch import Made

# Weight of the newest batch in the measured speed: the last ten or so count. Reads vary more, and lanes must not move for two
# slow ones in a row: of them the last hundred or so count.
_SPEED_WEIGHT = 0.2
_READ_WEIGHT = 0.02
# A job that is not held and was not worked for during so long is not exported any more, as coordinators do: those of a year
# would be thousands of series.
_FORGET_S = 600.0


class WorkerStats:
    """Counters since the process began. batches_in_flight: as the producer has it.

    samples_per_s: moving mean of what it makes at full load, 0 until the first batch: the engine's speed, or where reads are
    slower, that of reading all but one of the batches in flight while the engine works on one.
    """

    def __init__(self, registry: CollectorRegistry, batches_in_flight: int = 3) -> None:
        self.registry = registry
        self._in_flight = batches_in_flight
        self.samples_per_s = self._engine_speed = self._reads_speed = 0.0
        self._busy_until_s = time.monotonic()
        self._busy_share = 0.0
        self._samples = metrics.counter("headrace_samples_made_total", registry)
        self._batches = metrics.counter("headrace_batches_made_total", registry)
        self._bad = metrics.counter("headrace_samples_substituted_total", registry)
        self._failed = metrics.counter("headrace_batches_failed_total", registry)
        self._stage = metrics.histogram("headrace_stage_seconds", registry)
        self._busy = metrics.gauge("headrace_worker_busy_ratio", registry)
        self._read_bytes = metrics.counter("headrace_read_bytes_total", registry)
        self._reads = metrics.counter("headrace_reads_total", registry)
        self._sent_bytes = metrics.counter("headrace_sent_bytes_total", registry)
        self._connections = metrics.gauge("headrace_connections", registry)
        self._slab_bytes = metrics.gauge("headrace_slab_bytes", registry)
        self._read_ahead = metrics.gauge("headrace_read_ahead_bytes", registry)
        self._outrun = metrics.counter("headrace_batches_outrun_total", registry)
        self._engine = metrics.gauge("headrace_worker_engine_info", registry)
        self._gpu_memory_full = metrics.counter("headrace_gpu_memory_full_total", registry)
        self._jobs: set[str] = set()
        self._used_s: dict[str, float] = {}
        self._series: dict[str, set[tuple[PrometheusCounter, tuple[str, ...]]]] = {}
        self._lanes = metrics.gauge("headrace_lanes_held", registry)
        self._heartbeat = metrics.histogram("headrace_heartbeat_seconds", registry)
        self._heartbeat_failures = metrics.counter("headrace_heartbeat_failures_total", registry)
        self._reloads = metrics.counter("headrace_worker_tls_reloads_total", registry)
        self._not_before = metrics.gauge("headrace_worker_tls_not_before_seconds", registry)
        self._not_after = metrics.gauge("headrace_worker_tls_not_after_seconds", registry)

    def tls_reloaded(self, reason: str) -> None:
        """The certificate's files changed: `ok`, or `refused` and the one before stays."""
        self._reloads.labels(reason).inc()

    def certificate(self, tls: ServerTls | None) -> None:
        """Export from when to when the certificate in use is valid."""
        if tls is not None:
            for reason in metrics.RELOADS:
                self._reloads.labels(reason)
            self._not_before.set_function(lambda: tls.validity_s[0])
            self._not_after.set_function(lambda: tls.validity_s[1])

    def made(self, job: str, samples: int, transport: str, made: Made) -> None:
        """Count a batch that the engine finished."""
        # Of the seconds that several batches spent in the engine together each has its share.
        engine_s = made.busy_s / made.at_once
        self._engine_speed = _mean(self._engine_speed, samples / max(engine_s, 1e-9), _SPEED_WEIGHT)
        reads_speed = self._in_flight * samples / max(made.read_s + made.busy_s, 1e-9)
        self._reads_speed = _mean(self._reads_speed, reads_speed, _READ_WEIGHT)
        self.samples_per_s = min(self._engine_speed, self._reads_speed)
        self._of_job(self._samples, job).inc(samples)
        self._of_job(self._batches, job).inc()
        self._read_bytes.inc(made.read_bytes)
        self._reads.inc(made.requests)
        self._sent_bytes.labels(transport).inc(made.total_bytes + made.device_bytes)
        for stage, seconds in (("read", made.read_s), ("decode", made.decode_s), ("augment", made.augment_s)):
            self._stage.labels(stage).observe(seconds)
        for code, count in made.bad.items():
            self._of_job(self._bad, job, BAD_REASONS[code]).inc(count)
        now = time.monotonic()
        # Share of the time since the last batch's end that the engine worked, smoothed as the speed is.
        share = min(engine_s / max(now - self._busy_until_s, 1e-9), 1.0)
        self._busy_until_s = now
        self._busy_share += _SPEED_WEIGHT * (share - self._busy_share)
        self._busy.set(self._busy_share)

    def failed(self, job: str, code: str) -> None:
        """Count a batch that could not be made."""
        self._of_job(self._failed, job, code).inc()

    def published(self, seconds: float) -> None:
        """A batch was sealed and handed over, so long after its pixels were there."""
        self._stage.labels("publish").observe(seconds)

    def outrun(self, job: str) -> None:
        """A batch was made and nobody takes it any more."""
        self._of_job(self._outrun, job).inc()

    def engine(self, engine: Engine) -> None:
        """Which engine this worker runs."""
        self._engine.labels(engine.name, "gpu" if engine.name in GPU_ENGINES else "cpu").set(1)

    def gpu_memory_full(self) -> None:
        """Count a batch that is begun again, with fewer beside it."""
        self._gpu_memory_full.inc()

    def connected(self, transport: str, change: int, slab_bytes: int) -> None:
        """A rank came (+1) or went (-1) with its slots."""
        self._connections.labels(transport).inc(change)
        self._slab_bytes.labels(transport).inc(slab_bytes)

    def occupancy(self, slots: Callable[[], Counter[tuple[str, str, str]]], batches: Callable[[], Counter[str]]) -> None:
        """Where slots by (job, transport, state) and batches in flight by state are counted."""
        self.registry.register(Occupancy(slots, batches))

    def read_ahead(self, held_bytes: Callable[[], int]) -> None:
        """Where the encoded bytes in flight are counted."""
        self._read_ahead.set_function(held_bytes)

    def lanes(self, by_job: dict[str, int]) -> None:
        """Lanes held of each job that is known; others are not exported any more."""
        for job in self._jobs - set(by_job):
            self._lanes.remove(job)
        self._jobs = set(by_job)
        for job, count in by_job.items():
            self._lanes.labels(job).set(count)

    def heartbeat(self, seconds: float) -> None:
        """A heartbeat that was answered."""
        self._heartbeat.observe(seconds)
        self._forget(time.monotonic())

    def heartbeat_failed(self, code: str) -> None:
        """A heartbeat that was not."""
        self._heartbeat_failures.labels(code).inc()

    def _of_job(self, counter: PrometheusCounter, *labels: str) -> PrometheusCounter:
        """A counter's series of the job that is its first label."""
        job = labels[0]
        self._used_s[job] = time.monotonic()
        self._series.setdefault(job, set()).add((counter, labels))
        return counter.labels(*labels)

    def _forget(self, now_s: float) -> None:
        for job in [job for job, used_s in self._used_s.items() if job not in self._jobs and now_s > used_s + _FORGET_S]:
            del self._used_s[job]
            for counter, labels in self._series.pop(job):
                counter.remove(*labels)


def _mean(before: float, newest: float, weight: float) -> float:
    """A moving mean; 0 before the first."""
    return before + weight * (newest - before) if before else newest
