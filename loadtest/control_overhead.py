"""What the control and hand-off path costs: coordinator, store and clients at a fixed rate of batches.

Question: with an engine that does nothing, how much CPU do the coordinator, the store and the clients' code take at 100 batches
a second in all (2 ranks, shared memory, small batches, so that no pixel counts)? Target: under 3% of one core for the control
plane: coordinator, store and the clients' threads beside the trainer's. The hand-over of batches, on the trainer's own thread,
is shown with it and without.

Command: python loadtest/control_overhead.py [--rate 100] [--seconds 20]

Each rank is a process that asks for batches at its half of the rate. CPU is user + system time from the kernel's accounting
over the measured span, after a warm-up. `client, all` is the whole trainer process with its pacing loop; `client, control`
leaves out what the pacing loop alone costs, measured in the same process with no stream. The worker is reported apart: it
makes the batches.
Caveat: percent of a core depends on the core, and at this rate on how cold its caches are when a process wakes up 50 times a
second. So the page also says what one wake-up costs that does nothing, and what one and the same piece of work costs cold
(once per wake-up) and warm (in a loop). What else runs on the machine makes caches colder: the page names the load.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

import headrace
from headrace.core.batch import MILESTONES, BatchMeta
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.wire import slot_format
from headrace.wire.batch_meta import encode_meta
from headrace.wire.meta_head import read_head, read_labels

RESULT = Path(__file__).parent / "results" / "control_overhead.md"
RANKS = 2
BATCH = 8
WARM_S = 4.0


def main() -> None:
    """Run the benchmark, or one rank of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="batches a second over all ranks")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured span of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        _rank(json.loads(options.rank))
    else:
        _measure(options.rate, options.seconds, options.rounds)


def _pace(rate: float, seconds: float, body) -> tuple[float, int]:  # type: ignore[no-untyped-def]
    """Call `body` at `rate` for `seconds`; returns (CPU seconds of this process, calls)."""
    cpu, begun, count = time.process_time(), time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        body()
        count += 1
        time.sleep(max(0.0, begun + count / rate - time.monotonic()))
    return time.process_time() - cpu, count


def _cold_and_warm(rate: float) -> tuple[float, float]:
    """CPU microseconds to read the slot of a batch: in a process that wakes up for it at `rate`, and in a loop."""
    ids, zeros, names = np.arange(BATCH, dtype=np.int64), np.zeros(BATCH, np.uint8), [f"{i:08d}" for i in range(BATCH)]
    numbers = (1, 0, 5, 0, 5, 10, 3, 17)
    meta = BatchMeta("job", *numbers, "worker", "0" * 32, "null", ids, ids, zeros, zeros, names, ids)
    meta.milestones = dict.fromkeys(MILESTONES, 1.5)
    shape = (BATCH, 16, 16, 3)
    slot = memoryview(bytearray(16384))
    form = {"dtype": "uint8", "layout": "NHWC", "shape": shape, "pixel_bytes": math.prod(shape)}
    slot_format.seal(slot, encode_meta(meta), index=5, token=17, **form)  # type: ignore[arg-type]

    def read() -> None:
        header, data = slot_format.read_slot(slot)
        labels = read_labels(data, read_head(data))
        if labels is None or len(labels) != header.shape[0]:
            raise AssertionError("a slot without its labels")

    cold = []
    for _ in range(50):
        time.sleep(1 / rate)
        begun = time.thread_time_ns()
        read()
        cold.append(time.thread_time_ns() - begun)
    begun = time.thread_time_ns()
    for _ in range(1000):
        read()
    return statistics.median(cold) / 1e3, (time.thread_time_ns() - begun) / 1e6


def _thread_cpu_s() -> dict[str, float]:
    """CPU seconds of this process's threads: the trainer's own, ours by name, and all others, which are gRPC's."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    total: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "")
        kind = {"MainThread": "trainer's thread"}.get(name, name if name.startswith("headrace-") else "gRPC's threads")
        total[kind] = total.get(kind, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return total


def _rank(task: dict) -> None:  # type: ignore[type-arg]
    rate, seconds = task["rate"], task["seconds"]
    idle_cpu_s, idle = _pace(rate, seconds / 4, lambda: None)
    with headrace.connect(task["coordinators"]) as client:
        job = client.open(headrace.JobSpec.from_dict(task["job"]))
    with job.stream(rank=task["rank"], world=RANKS, transport="shm") as stream:
        batches = (batch for _ in stream.epochs() for batch in stream)

        def take() -> None:
            """What any training step does with a batch."""
            batch = next(batches)
            if batch.labels is None or len(batch.pixels) != len(batch.labels):
                raise AssertionError("a batch without its labels")

        _pace(rate, WARM_S, take)
        print("measuring", flush=True)
        before = _thread_cpu_s()
        cpu_s, count = _pace(rate, seconds, take)
        threads = {name: used - before.get(name, 0.0) for name, used in _thread_cpu_s().items()}
        stats = stream.stats()
        cold_us, warm_us = _cold_and_warm(rate)
    print(
        json.dumps(
            {
                "cpu_s": cpu_s,
                "idle_cpu_s": idle_cpu_s * count / idle,
                "batches": count,
                "threads": threads,
                "cold_us": cold_us,
                "warm_us": warm_us,
                "transport": stats.transport,
                "wait_s": stats.wait_s,
            }
        ),
        flush=True,
    )


def _round(cluster: Cluster, job: dict, rate: float, seconds: float, name: str) -> dict[str, float]:  # type: ignore[type-arg]
    tasks = [
        {
            "coordinators": cluster.addresses,
            "job": {**job, "name": name},
            "rank": rank,
            "rate": rate / RANKS,
            "seconds": seconds,
        }
        for rank in range(RANKS)
    ]
    ranks = [
        subprocess.Popen([sys.executable, __file__, "--rank", json.dumps(task)], stdout=subprocess.PIPE, text=True)
        for task in tasks
    ]
    services = {
        "coordinator": psutil.Process(cluster.coordinators[0].running.pid),
        "store": psutil.Process(cluster.store.running.pid),
        "worker": psutil.Process(cluster.workers[0].running.pid),
    }
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()
    before, begun = {name: _cpu_s(process) for name, process in services.items()}, time.monotonic()
    time.sleep(seconds)
    span = time.monotonic() - begun
    row = {name: (_cpu_s(process) - before[name]) / span for name, process in services.items()}
    reports = [json.loads(rank.communicate()[0]) for rank in ranks]
    row["client, all"] = sum(report["cpu_s"] for report in reports) / seconds
    row["client, control"] = sum(report["cpu_s"] - report["idle_cpu_s"] for report in reports) / seconds
    row["idle wake"] = statistics.mean(report["idle_cpu_s"] / report["batches"] for report in reports)
    row["cold"], row["warm"] = (statistics.mean(report[name] for report in reports) for name in ("cold_us", "warm_us"))
    for report in reports:
        for thread, used_s in report["threads"].items():
            idle_s = report["idle_cpu_s"] if thread.startswith("trainer") else 0.0
            row[f"- {thread}"] = row.get(f"- {thread}", 0.0) + (used_s - idle_s) / seconds
    row["load"] = os.getloadavg()[0]
    row["rate"] = sum(report["batches"] for report in reports) / seconds
    return row


def _cpu_s(process: psutil.Process) -> float:
    """CPU of a process and its children."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        times = member.cpu_times()
        total += times.user + times.system
    return total


def _measure(rate: float, seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        dataset = make_demo_dataset(Path(directory) / "set", samples=800, shards=2)
        pipeline = headrace.PipelineSpec(ops=(headrace.Resize((16, 16)),))
        job = headrace.JobSpec("control", str(dataset), BATCH, pipeline).to_dict()
        with Cluster(Path(directory) / "run", workers=1, worker_args=["--engine", "null"]) as cluster:
            rows = [_round(cluster, job, rate, seconds, f"control-{number}") for number in range(rounds)]
    report = _page(rows, rate, seconds)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(report)
    print(report)


def _median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _page(rows: list[dict[str, float]], rate: float, seconds: float) -> str:
    def cells(values: list[float]) -> str:
        return f"{100 * statistics.median(values):.2f} | {100 * min(values):.2f} to {100 * max(values):.2f}"

    lines = [
        "# Control overhead",
        "",
        "How much CPU do coordinator, store and clients take to hand over batches that cost nothing to make? Engine `null`,",
        f"1 worker, 1 coordinator, {RANKS} ranks over shared memory, batches of {BATCH} images of 16x16,",
        f"{rate:g} batches a second in all, {len(rows)} rounds of {seconds:g} s.",
        "",
        f"Command: `python loadtest/control_overhead.py --rate {rate:g} --seconds {seconds:g}`",
        "",
        f"Reached {statistics.median(row['rate'] for row in rows):.1f} batches a second.",
        "",
        "| part | % of one core, median | range |",
        "|---|---|---|",
    ]
    threads = sorted((name for name in rows[0] if name.startswith("- ")), key=lambda name: -rows[0][name])
    lines += [
        f"| {part} | {cells([row.get(part, 0.0) for row in rows])} |"
        for part in ("coordinator", "store", "client, control", *threads, "client, all", "worker")
    ]
    totals = [row["coordinator"] + row["store"] + row["client, control"] for row in rows]
    planes = [total - row["- trainer's thread"] for total, row in zip(totals, rows, strict=True)]
    lines += [
        f"| **control plane: coordinator + store + client without the trainer's thread** | {cells(planes)} |",
        f"| **the same with the hand-over on the trainer's thread** | {cells(totals)} |",
        "",
    ]
    batch_us = 1e6 * statistics.median(row["client, control"] / row["rate"] for row in rows)
    wake_us, cold_us, warm_us = 1e6 * _median(rows, "idle wake"), _median(rows, "cold"), _median(rows, "warm")
    loads = [row["load"] for row in rows]
    plane, total = ("met" if statistics.median(values) < 0.03 else "missed" for values in (planes, totals))
    lines += [
        f"Target: under 3 % of one core: {plane} by the control plane, {total} with the hand-over.",
        "",
        "Rows that begin with `-` are parts of the one before them, by thread, over both ranks.",
        "`client, all` is both trainer processes with their pacing loops; `client, control` leaves out what those loops cost",
        "without a stream. The worker reads, schedules, writes slots and publishes; it is not part of the target. A percentage",
        "of a core depends on the core.",
        "",
        "## How much of it is the machine",
        "",
        f"`client, control` is {batch_us:.0f} us a batch, all threads of a rank together. Here ({os.cpu_count()} CPUs,",
        f"load average {min(loads):.1f} to {max(loads):.1f}, this benchmark's own included) one wake-up of a process that",
        f"does nothing takes {wake_us:.0f} us of CPU. Reading the slot of one batch, a part of each hand-over, takes",
        f"{cold_us:.0f} us where the process wakes up for it and {warm_us:.0f} us in a loop: cold caches are most of",
        "what is measured.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
