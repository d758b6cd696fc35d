"""Closed rows of the Grafana dashboard: workers."""

from __future__ import annotations

from headrace.telemetry.panels import FLEET, JOB, RATE, Panel, Query, Row, own, quantile

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
            "Since workers began. High, or anything at all: the training stops if the error lasts; docs/errors.md has each.",
            "short",
            # No rate: the first is often the last, and a series that begins with it has none.
            (Query(f"sum by (job, reason) (headrace_batches_failed_total{{{JOB}}})", "{{job}} {{reason}}"),),
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
            "Slots, by what they are used for",
            "Of all ranks that are connected. High `ready`: workers are ahead of the ranks, as it should be. High `making`: "
            "the engine is the limit. High `free` while ranks wait: workers hold no lane that these ranks need, or reads are "
            "the limit.",
            "short",
            (Query(f"sum by (transport, state) (headrace_slots{{{JOB}}})", "{{transport}} {{state}}"),),
            "stack",
        ),
        Panel(
            "Batches in flight",
            "Begun by all workers and not published. High `reading`: reads are the limit. High `engine`, more than one a "
            "worker: batches wait for the engine, which is the limit.",
            "short",
            (Query(f"sum by (state) (headrace_batches_in_flight{{{FLEET}}})", "{{state}}"),),
            "stack",
        ),
        Panel(
            "Batches made in vain",
            "The lane had moved, or the rank had gone, when they were done. High: leases move too often; see the row of lanes.",
            "suffix: batches/s",
            (Query(own("rate", "headrace_batches_outrun_total", "namespace, job"), "{{job}}"),),
            nothing="none",
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
