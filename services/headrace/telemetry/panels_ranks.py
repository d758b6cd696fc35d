"""Closed rows of the Grafana dashboard: ranks, lanes and leases."""

from __future__ import annotations

from headrace.telemetry.panels import BY_RANK, JOB, RANK, RATE, Panel, Query, Row, own, seen

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
        Panel(
            "Batches fenced",
            "Refused by ranks, since they came under an older token than the newest: the fence at work. High: workers that "
            "lost their lanes go on working; look at their heartbeats.",
            "suffix: batches/s",
            (Query(f"max by (namespace, job) (rate(headrace_batches_fenced_total{{{JOB}}}{RATE}))", "{{job}}"),),
        ),
    ),
)
