"""What does it cost to seek in an epoch plan, cold?

    python loadtest/planning.py

Question: does making a plan and asking it for a batch far into an epoch stay flat from a thousand to a billion samples?
Each row is the median of fresh processes, so nothing is warm: after the imports, the process makes the table of 100,000 shards
(int64 sums, as an index does), then is timed while it makes the plan of an epoch and locates a random late batch down to the
shard of each sample; then 50 more batches, warm. Memory is the peak resident set of the process's own pages, before and after
the plan; the table is in both.

Caveat: the cold time is mostly the first call of each numpy routine. Clock times grow with the machine's load.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZES = [10**exponent for exponent in range(3, 10)]
BATCH_SIZE = 256
SHARDS = 100_000
REPEATS = 9
WARM_BATCHES = 50
PROCESS_DEADLINE_S = 60
REPORT = Path(__file__).parent / "results" / "planning.md"


def peak_kib() -> int:
    """Peak resident set of this process in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(samples: int, seed: int) -> dict[str, float]:
    """One cold measurement, in this process."""
    import numpy as np

    from headrace.core.epoch_plan import EpochPlan
    from headrace.core.job import Shuffle

    shards = min(SHARDS, samples)
    ends = np.arange(1, shards + 1, dtype=np.int64) * (samples // shards)
    ends[-1] = samples
    np.searchsorted(ends, np.zeros(1, dtype=np.int64), side="right")
    draw = random.Random(seed)
    before_kib, begin_s, begin_cpu_s = peak_kib(), time.perf_counter(), time.process_time()
    plan = EpochPlan(samples, min(BATCH_SIZE, samples), seed, draw.randrange(1000), Shuffle(), "pad")
    found = plan.batch_samples(draw.randrange(plan.batches // 2, plan.batches))
    np.searchsorted(ends, found.sample_ids, side="right")
    cold_s, cold_cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    after_kib = peak_kib()
    warm_begin_s = time.process_time()
    for _ in range(WARM_BATCHES):
        plan.batch_samples(draw.randrange(plan.batches))
    warm_s = (time.process_time() - warm_begin_s) / WARM_BATCHES
    return {
        "cold_ms": cold_s * 1e3,
        "cold_cpu_ms": cold_cpu_s * 1e3,
        "warm_cpu_ms": warm_s * 1e3,
        "grown_kib": after_kib - before_kib,
        "peak_mib": after_kib / 1024,
        "lanes": plan.lanes,
    }


def measure_cold(samples: int) -> dict[str, float]:
    """Medians over fresh processes."""
    runs = []
    for seed in range(REPEATS):
        command = [sys.executable, __file__, "--one", str(samples), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_DEADLINE_S, check=True)
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def report(rows: list[tuple[int, dict[str, float]]]) -> str:
    """The page as markdown."""
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    lines = [
        "# Seeking in an epoch plan, cold",
        "",
        f"`python loadtest/planning.py`: batch size {BATCH_SIZE}, run 16, window 4096, a table of up to {SHARDS:,} shards;",
        f"medians of {REPEATS} fresh processes on {machine}.",
        "",
        "- *cold*: making the plan and a random batch of the epoch's second half, down to shard numbers, as the first calls",
        "  after the imports; by the clock, and in CPU time.",
        f"- *warm*: CPU time of a random batch, the mean of the next {WARM_BATCHES}.",
        "- *grown*: growth of the peak resident set over the cold part.",
        "- *peak*: of the whole process, with interpreter, numpy and the table.",
        "",
        "| samples | lanes | cold, ms | cold CPU, ms | warm CPU, ms | grown, KiB | peak, MiB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for samples, row in rows:
        lines.append(
            f"| {samples:,} | {row['lanes']:.0f} | {row['cold_ms']:.2f} | {row['cold_cpu_ms']:.2f} | {row['warm_cpu_ms']:.2f} "
            f"| {row['grown_kib']:.0f} | {row['peak_mib']:.1f} |"
        )
    lines += [
        "",
        "Caveat: the cold time is mostly the first call of each numpy routine; clock times grow with the machine's load.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure all sizes, print the page and write it."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]), int(sys.argv[3]))))
        return
    page = report([(samples, measure_cold(samples)) for samples in SIZES])
    print(page)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(page)


if __name__ == "__main__":
    main()
