"""The one catalogue of metrics: every name that Headrace exports, as data.

Coordinator and worker make their metrics here by name, so that rules and dashboards can be checked against the same list.
Names: prefix `headrace_`, base units (seconds, bytes, ratio 0 to 1), counters end in `_total`. Labels come from LABELS only,
each with a bounded number of values, so that a fleet's series stay countable.

prometheus_client is imported when the first metric is made: a trainer, which has no scrape port, need not install it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

LABELS = frozenset(
    {"job", "rank", "worker", "stage", "cause", "reason", "transport", "verdict", "pool", "engine", "state", "device"}
    | {"gpu", "uuid", "name", "driver"}
)
UNITS = ("seconds", "bytes", "ratio", "watts", "celsius")
# A process that exports more is told of (HeadraceTooManySeries, the status page): some label has more values than were meant.
MOST_SERIES = 50_000
STAGES = ("read", "decode", "augment", "publish")
# What comes of a certificate's files that changed.
RELOADS = ("ok", "refused")

_LATENCY_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. by: who exports it. unit: one of UNITS, or empty for counts. buckets: upper bounds, of histograms only."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    by: Literal["coordinator", "worker"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()


# fmt: off
_COORDINATOR: tuple[Metric, ...] = (
    Metric("headrace_rank_wait_seconds_total", "counter", "coordinator",
           "Seconds a rank was blocked in next(), split by cause; the causes add up to the whole wait.",
           ("job", "rank", "cause"), "seconds"),
    Metric("headrace_rank_elapsed_seconds_total", "counter", "coordinator",
           "Seconds since a rank asked for its first batch.", ("job", "rank"), "seconds"),
    Metric("headrace_rank_starvation_ratio", "gauge", "coordinator",
           "Share of its recent time that a rank was blocked in next(): 0 is never, 1 is always.", ("job", "rank"), "ratio"),
    Metric("headrace_rank_batches_consumed_total", "counter", "coordinator",
           "Batches handed to a rank in its session.", ("job", "rank")),
    Metric("headrace_rank_batches_committed_total", "counter", "coordinator",
           "Batches that a rank said are trained and checkpointed.", ("job", "rank")),
    Metric("headrace_rank_transport_info", "gauge", "coordinator",
           "1 for the transport a rank is served by.", ("job", "rank", "transport")),
    Metric("headrace_batches_remade_total", "counter", "coordinator",
           "Batches begun under one lease and delivered under another, since their worker was lost or lagged.", ("job",)),
    Metric("headrace_batches_fenced_total", "counter", "coordinator",
           "Batches that ranks refused since they came under an older token: of workers that had lost the lane meanwhile.",
           ("job",)),
    Metric("headrace_bad_samples_total", "counter", "coordinator",
           "Samples that could not be used, counted once an epoch when their batch was handed over; `beyond`: over 10,000.",
           ("job", "reason")),
    Metric("headrace_samples_dropped_total", "counter", "coordinator",
           "Samples left over at the end of epochs under the tail policy `drop`.", ("job",)),
    Metric("headrace_job_attempt", "gauge", "coordinator", "Newest attempt of a job.", ("job",)),
    Metric("headrace_job_ranks", "gauge", "coordinator", "World size of a job's session.", ("job",)),
    Metric("headrace_job_ranks_live", "gauge", "coordinator", "Ranks of a job's session that reported lately.", ("job",)),
    Metric("headrace_lanes", "gauge", "coordinator", "Lanes of a job: the most workers that can serve it at once.", ("job",)),
    Metric("headrace_lanes_unowned", "gauge", "coordinator", "Lanes of a job that no live worker holds.", ("job",)),
    Metric("headrace_lane_moves_total", "counter", "coordinator", "Lanes given to another worker, by why.", ("job", "reason")),
    Metric("headrace_job_verdict", "gauge", "coordinator",
           "1 for what a job is now, by its worst rank: input-bound, balanced, compute-bound or unknown; 0 for the others.",
           ("job", "verdict")),
    Metric("headrace_job_starvation_ratio", "gauge", "coordinator",
           "Share of its recent time that a job's worst rank was blocked in next(): the others wait for it in the step.",
           ("job",), "ratio"),
    Metric("headrace_job_worst_rank", "gauge", "coordinator",
           "Number of the rank that waits most; -1 while nothing is known.", ("job",)),
    Metric("headrace_job_demand", "gauge", "coordinator",
           "Samples a second that a job's ranks would take if they never waited.", ("job",)),
    Metric("headrace_desired_workers", "gauge", "coordinator",
           "Workers of a pool and engine that would feed their jobs so that no rank waits; never more than lanes.",
           ("pool", "engine")),
    Metric("headrace_pool_workers_live", "gauge", "coordinator",
           "Workers of a pool and engine that serve now, without those that drain.", ("pool", "engine")),
    Metric("headrace_pool_worker_speed", "gauge", "coordinator",
           "Samples a second that one worker of a pool and engine makes at full load, as measured; 0 until then.",
           ("pool", "engine")),
    Metric("headrace_workers_live", "gauge", "coordinator", "Workers whose heartbeat is in time."),
    Metric("headrace_worker_speed", "gauge", "coordinator",
           "Samples a second that a worker measured at full load.", ("worker",)),
    Metric("headrace_coordinator_pass_seconds", "histogram", "coordinator",
           "Time of one look at the fleet and the jobs in use: near a second, lanes move late; add cores or fewer heartbeats.",
           (), "seconds", _LATENCY_S),
    Metric("headrace_store_request_seconds", "histogram", "coordinator",
           "Time of one request to the store.", (), "seconds", _LATENCY_S),
    Metric("headrace_store_clock_skew_seconds", "gauge", "coordinator",
           "The store's clock less this coordinator's: leases go by the one, certificates and logs by the other.",
           (), "seconds"),
    Metric("headrace_coordinator_overloaded", "gauge", "coordinator",
           "1 while heartbeats are, or were within a minute, answered later than workers wait: fewer are asked for, and none "
           "counts as dead for want of them, so that figures of dead workers stand still. Add a coordinator or cores, or "
           "lengthen heartbeat_s."),
    Metric("headrace_store_failing_seconds", "gauge", "coordinator",
           "For how long this coordinator has failed to read the store, or to write to it; 0 while it can. After 10 s it "
           "exports nothing of jobs, ranks and workers.", (), "seconds"),
    Metric("headrace_store_conflicts_total", "counter", "coordinator", "Writes repeated since another replica wrote first."),
    Metric("headrace_store_errors_total", "counter", "coordinator",
           "Requests that the store failed or refused, by why.", ("reason",)),
    Metric("headrace_calls_refused_total", "counter", "coordinator", "Calls answered with an error, by its code.", ("reason",)),
    Metric("headrace_coordinator_tls_reloads_total", "counter", "coordinator",
           "Changes of the certificate's files: `ok`, or `refused` and the one before stays in use.", ("reason",)),
    Metric("headrace_coordinator_tls_not_before_seconds", "gauge", "coordinator",
           "From when the certificate in use is valid, since 1970; 0 without TLS.", (), "seconds"),
    Metric("headrace_coordinator_tls_not_after_seconds", "gauge", "coordinator",
           "When the certificate in use expires, since 1970; 0 without TLS.", (), "seconds"),
)

_WORKER: tuple[Metric, ...] = (
    Metric("headrace_batches_made_total", "counter", "worker", "Batches made and published.", ("job",)),
    Metric("headrace_samples_made_total", "counter", "worker", "Samples decoded and augmented.", ("job",)),
    Metric("headrace_samples_substituted_total", "counter", "worker",
           "Bad samples replaced while making batches, by why; a remade batch counts again.", ("job", "reason")),
    Metric("headrace_batches_failed_total", "counter", "worker",
           "Batches that could not be made, by the error's code.", ("job", "reason")),
    Metric("headrace_stage_seconds", "histogram", "worker", "Time of one batch in a stage.", ("stage",), "seconds", _LATENCY_S),
    Metric("headrace_worker_busy_ratio", "gauge", "worker",
           "Share of recent time that the engine was working: near 1, the worker is the bottleneck.", (), "ratio"),
    Metric("headrace_read_bytes_total", "counter", "worker", "Bytes read from shards.", (), "bytes"),
    Metric("headrace_reads_total", "counter", "worker", "Read requests made."),
    Metric("headrace_gpu_memory_full_total", "counter", "worker",
           "Batches begun again since the GPU had no memory for them; fewer are in the engine at once then."),
    Metric("headrace_read_ahead_bytes", "gauge", "worker", "Encoded bytes read and not yet decoded.", (), "bytes"),
    Metric("headrace_slab_bytes", "gauge", "worker",
           "Memory of all slabs, mapped by ranks or held for sending; of `cuda_ipc` the GPU's.", ("transport",), "bytes"),
    Metric("headrace_connections", "gauge", "worker", "Ranks connected.", ("transport",)),
    Metric("headrace_sent_bytes_total", "counter", "worker", "Bytes of batches handed to ranks.", ("transport",), "bytes"),
    Metric("headrace_slots", "gauge", "worker",
           "Slots of the ranks connected: `making`, `ready` for the rank or being sent to it, `free`.",
           ("job", "transport", "state")),
    Metric("headrace_batches_in_flight", "gauge", "worker",
           "Batches begun and not published: `reading` their samples, in or before the `engine`.", ("state",)),
    Metric("headrace_batches_outrun_total", "counter", "worker",
           "Batches made in vain: the lane had moved, or the rank had gone, when they were done.", ("job",)),
    Metric("headrace_worker_engine_info", "gauge", "worker",
           "1 for the engine of this worker, and whether it works on the `cpu` or a `gpu`.", ("engine", "device")),
    Metric("headrace_lanes_held", "gauge", "worker", "Lanes leased.", ("job",)),
    Metric("headrace_heartbeat_seconds", "histogram", "worker", "Time of one heartbeat.", (), "seconds", _LATENCY_S),
    Metric("headrace_heartbeat_failures_total", "counter", "worker", "Heartbeats not answered, by why.", ("reason",)),
    Metric("headrace_worker_tls_reloads_total", "counter", "worker",
           "Changes of the certificate's files: `ok`, or `refused` and the one before stays in use.", ("reason",)),
    Metric("headrace_worker_tls_not_before_seconds", "gauge", "worker",
           "From when the certificate in use is valid, since 1970; 0 without TLS.", (), "seconds"),
    Metric("headrace_worker_tls_not_after_seconds", "gauge", "worker",
           "When the certificate in use expires, since 1970; 0 without TLS.", (), "seconds"),
)

# By NVML, of the GPUs that a worker may use; a GPU has no series for what it does not tell.
_GPU: tuple[Metric, ...] = (
    Metric("headrace_gpu_info", "gauge", "worker", "1 for a GPU that the worker may use.", ("gpu", "uuid", "name", "driver")),
    Metric("headrace_gpu_utilization_ratio", "gauge", "worker",
           "Share of the last moments in which something ran on the GPU.", ("gpu",), "ratio"),
    Metric("headrace_gpu_memory_used_bytes", "gauge", "worker",
           "Memory of the GPU in use, by all processes.", ("gpu",), "bytes"),
    Metric("headrace_gpu_memory_total_bytes", "gauge", "worker", "Memory of the GPU.", ("gpu",), "bytes"),
    Metric("headrace_gpu_jpeg_utilization_ratio", "gauge", "worker",
           "Share of the last moments in which the GPU's hardware JPEG decoder worked; none where it has none.",
           ("gpu",), "ratio"),
    Metric("headrace_gpu_decoder_utilization_ratio", "gauge", "worker",
           "Share of the last moments in which the GPU's video decoder worked.", ("gpu",), "ratio"),
    Metric("headrace_gpu_power_watts", "gauge", "worker", "Power that the GPU draws.", ("gpu",), "watts"),
    Metric("headrace_gpu_temperature_celsius", "gauge", "worker", "Temperature of the GPU.", ("gpu",), "celsius"),
    Metric("headrace_gpu_throttled", "gauge", "worker",
           "1 while the GPU runs slower than it could, for each reason; 0 for the others.", ("gpu", "reason")),
)
# fmt: on

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in (*_COORDINATOR, *_WORKER, *_GPU)}


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """Make the counter `name` in `registry`. Raises KeyError for an unknown name, TypeError for another type."""
    import prometheus_client

    metric = _of_type(name, "counter")
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series each, of no use
    return prometheus_client.Counter(name, metric.help, metric.labels, registry=registry)


def gauge(name: str, registry: CollectorRegistry) -> Gauge:
    """Make the gauge `name` in `registry`. Raises as `counter`."""
    import prometheus_client

    metric = _of_type(name, "gauge")
    return prometheus_client.Gauge(name, metric.help, metric.labels, registry=registry)


def histogram(name: str, registry: CollectorRegistry) -> Histogram:
    """Make the histogram `name` in `registry`, with its buckets. Raises as `counter`."""
    import prometheus_client

    metric = _of_type(name, "histogram")
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series each, of no use
    return prometheus_client.Histogram(name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)


def counter_family(name: str) -> CounterMetricFamily:
    """An empty family of counter `name`, for a collector that has totals from elsewhere (the ranks' reports)."""
    from prometheus_client.core import CounterMetricFamily

    metric = _of_type(name, "counter")
    return CounterMetricFamily(name, metric.help, labels=metric.labels)


def gauge_family(name: str) -> GaugeMetricFamily:
    """An empty family of gauge `name`, for a collector."""
    from prometheus_client.core import GaugeMetricFamily

    metric = _of_type(name, "gauge")
    return GaugeMetricFamily(name, metric.help, labels=metric.labels)


def _of_type(name: str, kind: str) -> Metric:
    metric = CATALOGUE[name]
    if metric.type != kind:
        raise TypeError(f"{name} is a {metric.type}, not a {kind}")
    return metric
