"""All closed rows of the Grafana dashboard; here scaling, data, and the services themselves."""

from __future__ import annotations

from headrace.telemetry.panels import FLEET, RATE, Panel, Query, Row, own, quantile, seen
from headrace.telemetry.panels_gpus import GPUS
from headrace.telemetry.panels_ranks import LEASES, RANKS
from headrace.telemetry.panels_workers import WORKERS


def _of_certificates(expr: str) -> str:
    """For coordinators' and workers'. expr: of {end} and {begin}, the ends of the time in which it is valid."""
    names = (f"headrace_{by}_tls_not_{{}}_seconds{{{FLEET}}}" for by in ("coordinator", "worker"))
    found = (expr.format(begin=name.replace("{}", "before"), end=name.replace("{}", "after")) for name in names)
    return f"min by (instance) ({' or '.join(found)})"


SCALING = Row(
    "Scaling",
    (
        Panel(
            "Workers by pool: live and wanted",
            "Wanted: what would feed the pool's trainings so that no rank waits, never more than lanes. High "
            "`wanted` for long: the "
            "autoscaler is at its limit, or pods are pending.",
            "short",
            (
                Query(seen("headrace_pool_workers_live", "namespace, pool, engine", FLEET), "{{pool}} live"),
                Query(seen("headrace_desired_workers", "namespace, pool, engine", FLEET), "{{pool}} wanted"),
            ),
        ),
        Panel(
            "Images a second that trainings would take",
            "If their ranks never waited. High above what is made: the gap is what ranks wait for.",
            "suffix: images/s",
            (
                Query(seen("headrace_job_demand", "namespace, job"), "{{job}} would take"),
                Query(own("rate", "headrace_samples_made_total", "namespace, job"), "{{job}} made"),
            ),
        ),
        Panel(
            "Speed of one worker",
            "Images a second at full load: each worker's, and the pool's that scaling reckons with. High is "
            "good; a worker that is far "
            "below its pool is throttled.",
            "suffix: images/s",
            (
                Query(seen("headrace_worker_speed", "worker", FLEET), "{{worker}}"),
                Query(seen("headrace_pool_worker_speed", "namespace, pool, engine", FLEET), "pool {{pool}}"),
            ),
        ),
    ),
)

DATA = Row(
    "Data",
    (
        Panel(
            "Share of samples replaced, by why",
            "Samples that could not be used, of those made; others of the same batch stand in. High: shards "
            "are damaged, or are not what "
            "the pipeline expects. `headrace quarantine` lists them.",
            "percentunit",
            (
                Query(
                    f"{own('rate', 'headrace_samples_substituted_total', 'namespace, job, reason')} / on "
                    "(namespace, job) group_left () "
                    f"{own('rate', 'headrace_samples_made_total', 'namespace, job')}",
                    "{{job}} {{reason}}",
                ),
            ),
            nothing="none",
        ),
        Panel(
            "Bad samples handed over",
            "Each counted once an epoch, when its batch was handed over. High: as above; here a batch that was "
            "made twice counts once.",
            "short",
            (Query(seen("headrace_bad_samples_total", "namespace, job, reason"), "{{job}} {{reason}}"),),
            nothing="none",
        ),
        Panel(
            "Samples left out at epochs' ends",
            "Under the tail policy `drop`: too few for a step of all ranks. High: large batches and many ranks "
            "for a small data set.",
            "short",
            (Query(seen("headrace_samples_dropped_total", "namespace, job"), "{{job}}"),),
        ),
    ),
)

SERVICES = Row(
    "Coordinators and store",
    (
        Panel(
            "Time of a request to the store: 99% are faster",
            "By each coordinator. High: the store's disk is slow to sync, or the network is; leases are renewed late.",
            "s",
            (Query(quantile(0.99, "headrace_store_request_seconds", "instance", FLEET), "{{instance}}"),),
        ),
        Panel(
            "Time of a look at fleet and jobs: 99% are faster",
            "Of each coordinator's. High, near a second: lanes move late; give coordinators more cores, or workers fewer "
            "heartbeats.",
            "s",
            (Query(quantile(0.99, "headrace_coordinator_pass_seconds", "instance", FLEET), "{{instance}}"),),
        ),
        Panel(
            "Overloaded",
            "High (1): this coordinator answers heartbeats later than workers wait. It asks for fewer, and none counts as dead "
            "for want of them; give coordinators more cores or replicas, or lengthen heartbeat_s.",
            "short",
            (Query(f"max by (instance) (headrace_coordinator_overloaded{{{FLEET}}})", "{{instance}}"),),
        ),
        Panel(
            "Requests that the store failed, by why",
            "High, or anything for long: nothing can be opened, joined or moved.",
            "reqps",
            (Query(own("rate", "headrace_store_errors_total", "reason", FLEET), "{{reason}}"),),
            nothing="none",
        ),
        Panel(
            "Time without the store",
            "For how long each coordinator has failed to read the store. High: as beside; on one coordinator alone, "
            "it is cut off.",
            "s",
            (Query(f"max by (instance) (headrace_store_failing_seconds{{{FLEET}}})", "{{instance}}"),),
        ),
        Panel(
            "Writes repeated",
            "Another replica wrote first. High: many replicas tick the same trainings; they lose time, nothing else.",
            "reqps",
            (Query(f"sum(rate(headrace_store_conflicts_total{{{FLEET}}}{RATE}))", "conflicts"),),
        ),
        Panel(
            "Calls refused, by why",
            "Calls answered with an error. High `unauthenticated`: a wrong token; others are listed in docs/errors.md.",
            "reqps",
            (Query(own("rate", "headrace_calls_refused_total", "reason", FLEET), "{{reason}}"),),
            nothing="none",
        ),
        Panel(
            "Time of a heartbeat: 99% are faster",
            "Of each worker's. High, near the coordinator's worker_ttl_s: leases are about to be lost.",
            "s",
            (Query(quantile(0.99, "headrace_heartbeat_seconds", "instance", FLEET), "{{instance}}"),),
        ),
        Panel(
            "Heartbeats not answered, by why",
            "Workers go on meanwhile. High for longer than worker_ttl_s: they lose their lanes.",
            "reqps",
            (Query(own("rate", "headrace_heartbeat_failures_total", "reason", FLEET), "{{reason}}"),),
            nothing="none",
        ),
        Panel(
            "Certificates: time left",
            "Until the certificate in use expires, and below how much of that it is told: a quarter of its life, a week "
            "at most. High is good; it should jump up long before that.",
            "s",
            (
                Query(_of_certificates("({end} > 0) - time()"), "{{instance}}"),
                Query(_of_certificates("clamp_max(({end} > 0) - {begin}, 28 * 86400) / 4"), "told below: {{instance}}"),
            ),
            nothing="no TLS",
        ),
        Panel(
            "The store's clock less each coordinator's",
            "Leases go by the store's. High, or far below 0: certificates may be refused as expired or not yet valid.",
            "s",
            (Query(f"max by (instance) (headrace_store_clock_skew_seconds{{{FLEET}}})", "{{instance}}"),),
            least=None,
        ),
        Panel(
            "Certificates read again",
            "In the last hour, `ok` or `refused`. High `refused`: what is being written cannot be used, and "
            "the one before will end.",
            "short",
            (
                Query(
                    f"sum by (reason) (increase(headrace_coordinator_tls_reloads_total{{{FLEET}}}[1h]))",
                    "coordinators {{reason}}",
                ),
                Query(f"sum by (reason) (increase(headrace_worker_tls_reloads_total{{{FLEET}}}[1h]))", "workers {{reason}}"),
            ),
            nothing="none",
        ),
    ),
)

DETAILS = (RANKS, LEASES, WORKERS, GPUS, SCALING, DATA, SERVICES)
