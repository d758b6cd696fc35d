"""The closed rows of the Grafana dashboard: ranks, leases, workers, scaling, data, and the services themselves."""

from __future__ import annotations

from headrace.telemetry.panels import BY_RANK, FLEET, JOB, RANK, RATE, Panel, Query, Row, own, quantile, seen

RANKS = Row(
    "Ranks",
    (
        Panel(
            "Batches a second",
            "Batches handed to each rank. High is good; in synchronous training all ranks are alike, and a "
            "step of the line down is a slower step.",
            "suffix: batches/s",
            (
                Query(
                    f"max by ({BY_RANK}) (rate(headrace_rank_batches_consumed_total{{{RANK}}}{RATE}))", "{{job}}, rank {{rank}}"
                ),
            ),
        ),
        Panel(
            "Batches not yet committed",
            "Handed over, and not yet said to be trained and checkpointed: what a crash now would train again. "
            "High: checkpoints are rare.",
            "suffix: batches",
            (
                Query(
                    f"{seen('headrace_rank_batches_consumed_total', BY_RANK, RANK)} - "
                    f"{seen('headrace_rank_batches_committed_total', BY_RANK, RANK)}",
                    "{{job}}, rank {{rank}}",
                ),
            ),
        ),
        Panel(
            "Recent share of time waited",
            "As the coordinator reckons it, over some 30 s: each rank's, and each training's by its worst "
            "rank. High: as in the first row.",
            "percentunit",
            (
                Query(seen("headrace_rank_starvation_ratio", BY_RANK, RANK), "{{job}}, rank {{rank}}"),
                Query(seen("headrace_job_starvation_ratio", "namespace, job"), "{{job}}, worst"),
            ),
            most=1,
        ),
        Panel(
            "Which rank is the worst",
            "Its number, once known. High has no meaning; a line that stays on one number points at that rank's node.",
            "short",
            (Query(seen("headrace_job_worst_rank", "namespace, job") + " >= 0", "{{job}}"),),
        ),
        Panel(
            "Ranks: live and wanted",
            "Ranks that reported lately, of those in the session. High `of` above `live`: ranks are gone, and "
            "the others will wait for them.",
            "short",
            (
                Query(seen("headrace_job_ranks_live", "namespace, job"), "{{job}} live"),
                Query(seen("headrace_job_ranks", "namespace, job"), "{{job}} of"),
            ),
        ),
        Panel(
            "Ranks by transport",
            "How batches reach the ranks. High `grpc` where shm was meant: workers are not on the trainers' "
            "nodes, or share no sockets with them.",
            "short",
            (
                Query(
                    f"count by (transport) ({seen('headrace_rank_transport_info', BY_RANK + ', transport', RANK)})",
                    "{{transport}}",
                ),
            ),
        ),
        Panel(
            "Attempt",
            "Generation of each training's session: one more each time that its trainers start again. High, or "
            "rising: trainers keep failing.",
            "short",
            (Query(seen("headrace_job_attempt", "namespace, job"), "{{job}}"),),
        ),
    ),
)

LEASES = Row(
    "Lanes and leases",
    (
        Panel(
            "Lanes moved, by why",
            "Lanes given to another worker. High `lost`: workers die; `lagged`: they are too slow; "
            "`unreached`: ranks cannot connect.",
            "suffix: lanes/min",
            (Query(f"60 * {own('rate', 'headrace_lane_moves_total', 'reason')}", "{{reason}}"),),
        ),
        Panel(
            "Lanes, and those without a worker",
            "Most workers that can serve a training at once, and lanes that nobody holds. High `without`: ranks stand still.",
            "short",
            (
                Query(seen("headrace_lanes", "namespace, job"), "{{job}}"),
                Query(seen("headrace_lanes_unowned", "namespace, job"), "{{job}} without"),
            ),
        ),
        Panel(
            "Lanes held, by worker",
            "Shared out by measured speed. High, one line: that worker is the fastest, or others are barred from the training.",
            "short",
            (Query(f"sum by (instance) (headrace_lanes_held{{{JOB}}})", "{{instance}}"),),
        ),
        Panel(
            "Batches made anew",
            "Begun by a worker that lost the lane, and made again by another. High: leases move too often; the work is lost.",
            "suffix: batches/s",
            (Query(f"max by (namespace, job) (rate(headrace_batches_remade_total{{{JOB}}}{RATE}))", "{{job}}"),),
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        Panel(
            "How busy the engines are",
            "Share of recent time that each worker's engine was working. High, near 1, while ranks wait: "
            "workers are the limit; add some, "
            "or move the slowest stage to a GPU. Low while ranks wait: look at reads and transfer.",
            "percentunit",
            (Query(f"max by (instance) (headrace_worker_busy_ratio{{{FLEET}}})", "{{instance}}"),),
            most=1,
        ),
        Panel(
            "Images a second",
            "Samples decoded and augmented by each worker. High is good; a worker far below its like is "
            "throttled or on a slower node.",
            "suffix: images/s",
            (Query(own("rate", "headrace_samples_made_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Mean time of a batch, by stage",
            "Over all workers. High: this stage is what a batch spends its time in; what can be done about it "
            "is in the first row.",
            "s",
            (
                Query(
                    f"{own('rate', 'headrace_stage_seconds_sum', 'stage', FLEET)} / "
                    f"{own('rate', 'headrace_stage_seconds_count', 'stage', FLEET)}",
                    "{{stage}}",
                ),
            ),
            "stack",
        ),
        Panel(
            "Slow batches: 95% are faster",
            "Time of a batch in each stage, the 95th percentile. High, with a low mean: a few slow reads or "
            "very large images hold ranks up.",
            "s",
            (Query(quantile(0.95, "headrace_stage_seconds", "stage", FLEET), "{{stage}}"),),
        ),
        Panel(
            "Batches made",
            "By all workers, for each training. High is good; above what ranks take, batches are being made twice.",
            "suffix: batches/s",
            (Query(own("rate", "headrace_batches_made_total", "namespace, job"), "{{job}}"),),
        ),
        Panel(
            "Batches that could not be made, by why",
            "High, or anything at all: the training stops if the error lasts; docs/errors.md has each.",
            "suffix: batches/s",
            (Query(own("rate", "headrace_batches_failed_total", "job, reason"), "{{job}} {{reason}}"),),
            nothing="none",
        ),
        Panel(
            "Batches that found no GPU memory",
            "Each is begun again with fewer in the engine at once. High, or lasting: give workers a GPU of their own, or a job "
            "smaller batches.",
            "suffix: batches/s",
            (Query(f"sum by (instance) (rate(headrace_gpu_memory_full_total{{{FLEET}}}{RATE}))", "{{instance}}"),),
            nothing="none",
        ),
        Panel(
            "Read from shards",
            "Bytes a second, of all workers. High, at what the store or network can do: reads are the limit.",
            "binBps",
            (Query(f"sum(rate(headrace_read_bytes_total{{{FLEET}}}{RATE}))", "read"),),
        ),
        Panel(
            "Read requests",
            "Requests a second, of all workers. High beside few bytes: runs are short; a larger shuffle.run "
            "makes reads fewer and longer.",
            "reqps",
            (Query(f"sum(rate(headrace_reads_total{{{FLEET}}}{RATE}))", "requests"),),
        ),
        Panel(
            "Handed to ranks",
            "Bytes of batches a second, by transport. High `grpc`, at what the network can do: transfer is the limit.",
            "binBps",
            (Query(own("rate", "headrace_sent_bytes_total", "transport", FLEET), "{{transport}}"),),
        ),
        Panel(
            "Ranks connected",
            "Connections of ranks to workers, by transport. High means many ranks for each worker, each with slots of its own.",
            "short",
            (Query(f"sum by (transport) (headrace_connections{{{FLEET}}})", "{{transport}}"),),
        ),
        Panel(
            "Memory of slots",
            "All slabs of all workers. High: large batches, many ranks, or a wide window; it is what the "
            "memory limits are reckoned from.",
            "bytes",
            (Query(f"sum by (transport) (headrace_slab_bytes{{{FLEET}}})", "{{transport}}"),),
        ),
        Panel(
            "Read ahead",
            "Encoded bytes that each worker has read and not yet decoded. High, at its bound: decoding is the "
            "limit, not reading.",
            "bytes",
            (Query(f"max by (instance) (headrace_read_ahead_bytes{{{FLEET}}})", "{{instance}}"),),
        ),
    ),
)

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
            "Until the certificate in use expires. High is good; it should jump up long before it comes near 0.",
            "s",
            (
                Query(
                    f"min by (instance) (headrace_coordinator_tls_not_after_seconds{{{FLEET}}} > 0) - time()", "{{instance}}"
                ),
                Query(f"min by (instance) (headrace_worker_tls_not_after_seconds{{{FLEET}}} > 0) - time()", "{{instance}}"),
            ),
            nothing="no TLS",
        ),
        Panel(
            "The store's clock less each coordinator's",
            "Leases go by the store's. High, or far below 0: certificates and job tokens may be refused as "
            "too old or not yet valid.",
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

DETAILS = (RANKS, LEASES, WORKERS, SCALING, DATA, SERVICES)
