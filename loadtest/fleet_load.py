"""Leases and heartbeats of 10,000 workers and 1,000 ranks: what does the control plane take, and where does it end?

    python loadtest/fleet_load.py                     # all steps, some 12 minutes
    python loadtest/fleet_load.py --only workers-100  # one of them; the page then has that one

The store and the coordinators are real processes; workers and ranks are simulated by `fleet_sim.py`: they make the calls of
real ones at the pace of real ones over real gRPC channels (several members a channel), and read no data. Each step starts a
fleet of its own, waits until every worker has registered and every rank has a lane table without a gap, measures a span, then
lets one worker in a hundred fall silent and takes the time until no rank's table names one of them.

Everything shares this machine's cores, the simulated members too: latencies are those of a machine that is also its own load.
A step is called saturated if fewer than 95% of the heartbeats were answered in time. A coordinator that cannot hear all in time
asks for fewer; `asked for` says how many of those that its settings mean were sent.
CPU is user + system time from the kernel's accounting. `store requests` are calls of scripts, `commands` what they run inside.
Numbers go to results/fleet_load.json, the page and plot are made from it (`--page` makes them anew).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import redis
from fleet_load_page import write_page

from headrace.datasets.manifest import Manifest, Shard, store_manifest
from headrace.datasets.storage import open_storage
from headrace.testing.cluster import Cluster

RESULT = Path(__file__).parent / "results" / "fleet_load.json"
BATCH_SIZE = 256
SETTLE_S = 3.0
READY_S = 100.0
ANSWER_S = 90.0
WORKERS_A_PROCESS = 5000
KEPT_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Step:
    """A fleet. heartbeat_s, ttl_s: the coordinators' settings; the defaults where a machine of two cores can bear them."""

    name: str
    workers: int
    jobs: int
    world: int
    samples: int
    heartbeat_s: float = 0.8
    ttl_s: float = 3.0
    coordinators: int = 1
    silence_each: int = 100


IMAGENET = 1_281_167
STEPS = (
    Step("workers-100", 100, 1, 8, IMAGENET, silence_each=20),
    Step("workers-1000", 1000, 1, 8, IMAGENET),
    Step("workers-1000-slow", 1000, 1, 8, IMAGENET, heartbeat_s=2.5, ttl_s=8.0),
    Step("workers-10000", 10_000, 1, 8, 100 * IMAGENET, heartbeat_s=20.0, ttl_s=50.0),
    Step("ranks-1000", 100, 1, 1000, 100 * IMAGENET, silence_each=20),
    Step("jobs-125", 100, 125, 8, IMAGENET, silence_each=20),
    Step("jobs-125-workers-1000", 1000, 125, 8, IMAGENET, heartbeat_s=5.0, ttl_s=15.0),
    Step("all", 10_000, 1, 1000, 100 * IMAGENET, heartbeat_s=20.0, ttl_s=50.0),
    Step("all-jobs", 10_000, 125, 8, IMAGENET, heartbeat_s=20.0, ttl_s=50.0),
)


def _dataset(directory: Path, samples: int) -> str:
    """A manifest alone: the coordinator reads nothing else of a data set, and the simulated workers read nothing at all."""
    shard = Shard("shard-0.tar", samples * 100_000, samples, "0" * 32, "", "index-0", 1000, "0" * 32)
    manifest = Manifest("webdataset", "int", 1, 1000, samples, 0, 32, 0, (), (shard,))
    directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(store_manifest(open_storage(str(directory)), manifest))
    return str(directory)


class Simulated:
    """A process of fleet_sim.py."""

    def __init__(self, task: dict[str, Any], log: Path) -> None:
        self._log = log.open("wb")
        command = [sys.executable, str(Path(__file__).with_name("fleet_sim.py")), json.dumps(task)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def answer(self) -> dict[str, Any]:
        """What it says next."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            said = Path(self._log.name).read_text()[-2000:]
            raise RuntimeError(f"a simulated part of the fleet ended; it said:\n{said}")
        told: dict[str, Any] = json.loads(line)
        return told

    def ask(self, *words: str) -> dict[str, Any]:
        """Send a line and hear the answer."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(" ".join(words) + "\n")
        self.popen.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End it."""
        self.popen.kill()
        self.popen.wait()
        self._log.close()


@dataclass(frozen=True, slots=True)
class Look:
    """Totals at one moment."""

    at_s: float
    coordinators_s: float
    store_s: float
    simulated_s: float
    requests: int
    commands: int
    store_in: int
    store_out: int


class Fleet:
    """One step's processes."""

    def __init__(self, step: Step, directory: Path) -> None:
        self._step = step
        self._store = redis.Redis.from_url("redis://127.0.0.1:1")  # made anew once there is an address
        args = ["--heartbeat-s", str(step.heartbeat_s), "--worker-ttl-s", str(step.ttl_s), "--log-level", "warning"]
        self._cluster = Cluster(directory, coordinators=step.coordinators, workers=0, coordinator_args=args)
        self._directory = directory
        self.workers: list[Simulated] = []
        self.ranks: Simulated | None = None

    def __enter__(self) -> Fleet:
        step = self._step
        self._cluster.start()
        self._store = redis.Redis.from_url(self._cluster.store_url)
        common = {"addresses": self._cluster.addresses.split(","), "deadline_s": READY_S}
        for first in range(0, step.workers, WORKERS_A_PROCESS):
            count = min(WORKERS_A_PROCESS, step.workers - first)
            task = {"kind": "workers", "first": first, "count": count, "members_a_channel": 20,
                    "spread_s": max(step.heartbeat_s, step.workers / 400), **common}  # fmt: skip
            self.workers.append(Simulated(task, self._directory / f"workers-{first}.log"))
        return self

    def start_ranks(self) -> dict[str, Any]:
        """Begin all jobs; returns once every rank has a whole table."""
        step = self._step
        dataset = _dataset(self._directory / "set", step.samples)
        task = {"kind": "ranks", "jobs": step.jobs, "world": step.world, "dataset": dataset, "batch_size": BATCH_SIZE,
                "members_a_channel": 8, "ranks_spread_s": step.world / 200, "jobs_spread_s": step.jobs / 4,
                "addresses": self._cluster.addresses.split(","), "deadline_s": READY_S}  # fmt: skip
        self.ranks = Simulated(task, self._directory / "ranks.log")
        return self.ranks.answer()

    def __exit__(self, *_: object) -> None:
        for part in [*self.workers, *([self.ranks] if self.ranks else [])]:
            part.close()
        self._store.close()
        self._cluster.close()

    def look(self) -> Look:
        """Totals now."""
        info: Any = self._store.info("all")
        parts = [*self.workers, *([self.ranks] if self.ranks else [])]
        return Look(
            time.monotonic(),
            sum(_cpu_s(member.running.pid) for member in self._cluster.coordinators),
            _cpu_s(self._cluster.store.running.pid),
            sum(_cpu_s(part.popen.pid) for part in parts),
            info["cmdstat_evalsha"]["calls"] if "cmdstat_evalsha" in info else 0,
            info["total_commands_processed"],
            info["total_net_input_bytes"],
            info["total_net_output_bytes"],
        )

    def memory(self) -> dict[str, float]:
        """Resident MiB of the coordinators (the largest) and the store, and what the store's records take."""
        info: Any = self._store.info("memory")
        return {
            "coordinator_mib": max(_rss(member.running.pid) for member in self._cluster.coordinators),
            "store_mib": _rss(self._cluster.store.running.pid),
            "store_used_mib": info["used_memory"] / 2**20,
        }

    def scraped(self) -> tuple[dict[str, float], float]:
        """The first coordinator's own metrics without labels, histograms' sums and counts too; and how long it took."""
        begun_s = time.monotonic()
        url = f"http://{self._cluster.coordinators[0].admin_address}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        took_s = time.monotonic() - begun_s
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#") and "{" not in line]
        totals = {name: float(value) for name, value in lines}
        moves = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("headrace_lane_moves_total{")]
        return {**totals, "moves": sum(map(float, moves))}, took_s


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _rss(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 2**20


def _measure(step: Step, span_s: float, directory: Path) -> dict[str, Any]:
    """One step. Raises RuntimeError where the fleet does not come up."""
    with Fleet(step, directory) as fleet:
        registered = [part.answer() for part in fleet.workers]
        joined = fleet.start_ranks()
        assert fleet.ranks is not None
        time.sleep(SETTLE_S + step.heartbeat_s)
        parts = [*fleet.workers, fleet.ranks]
        for part in parts:
            part.ask("measure")
        before, (metrics_before, _) = fleet.look(), fleet.scraped()
        time.sleep(span_s)
        after, (metrics, scrape_s) = fleet.look(), fleet.scraped()
        told = [part.ask("report") for part in parts]
        memory = fleet.memory()
        silenced = [part.ask("silence", str(step.silence_each)) for part in fleet.workers]
        names = [name for part in silenced for name in part["gone"]]
        moved = fleet.ranks.ask("watch", str(silenced[0]["at_s"]), *names)
    span_s = after.at_s - before.at_s
    beats = [part["calls"].get("Heartbeat", {"count": 0}) for part in told[:-1]]
    passes = metrics["headrace_coordinator_pass_seconds_count"] - metrics_before["headrace_coordinator_pass_seconds_count"]
    pass_s = metrics["headrace_coordinator_pass_seconds_sum"] - metrics_before["headrace_coordinator_pass_seconds_sum"]
    count = sum(beat["count"] for beat in beats) * span_s / max(part["span_s"] for part in told)
    failed = sum(number for part in told for call, number in part["failed"].items() if call.startswith("Heartbeat "))
    return {
        "step": asdict(step),
        "span_s": span_s,
        "registered_s": max(part["ready_s"] for part in registered),
        "joined_s": joined["ready_s"],
        "join_failed": joined["failed"],
        "heartbeats": {
            name: max((beat.get(name, 0.0) for beat in beats), default=0.0) for name in ("p50", "p90", "p99", "most")
        },
        "heartbeats_s": count / span_s,
        "kept": count / max(1.0, count + failed),
        "asked_for": min(1.0, (count + failed) * step.heartbeat_s / step.workers / span_s),
        "reports": told[-1]["calls"].get("ReportProgress", {}),
        "reports_s": told[-1]["calls"].get("ReportProgress", {"count": 0})["count"] / told[-1]["span_s"],
        "failed": {key: value for part in told for key, value in part["failed"].items()},
        "table_bytes": told[-1]["table_bytes"],
        "tables": told[-1]["tables"],
        "workers_holding": sum(part["holding"] for part in told[:-1]),
        "most_lanes": max((part["lanes"][0] for part in told[:-1] if part["lanes"]), default=0),
        "lane_moves": metrics["moves"] - metrics_before["moves"],
        "passes_s": passes / span_s,
        "pass_mean_s": pass_s / max(1.0, passes),
        "scrape_s": scrape_s,
        "coordinator_cpu": (after.coordinators_s - before.coordinators_s) / span_s,
        "store_cpu": (after.store_s - before.store_s) / span_s,
        "simulated_cpu": (after.simulated_s - before.simulated_s) / span_s,
        "store_requests_s": (after.requests - before.requests) / span_s,
        "store_commands_s": (after.commands - before.commands) / span_s,
        "store_in_s": (after.store_in - before.store_in) / span_s,
        "store_out_s": (after.store_out - before.store_out) / span_s,
        **memory,
        "silenced": len(names),
        "moved": moved["moved"],
    }


def main() -> None:
    """Measure the steps, print each, write numbers, page and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of steps, with commas between")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured span of a step")
    parser.add_argument("--coordinators", type=int, default=0, help="replicas, in place of each step's own number")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help="only make page and plot of the numbers that are there")
    options = parser.parse_args()
    if not options.page:
        wanted = [step for step in STEPS if not options.only or step.name in options.only.split(",")]
        if options.coordinators:
            wanted = [replace(step, coordinators=options.coordinators) for step in wanted]
        found: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
                                 "load": os.getloadavg()[0], "steps": []}  # fmt: skip
        for step in wanted:
            with tempfile.TemporaryDirectory() as directory:
                try:
                    row = _measure(step, options.seconds, Path(directory))
                except RuntimeError as error:
                    row = {"step": asdict(step), "failed_because": str(error).splitlines()[-1]}
                    print(error, file=sys.stderr)
            print(json.dumps(row, indent=1), flush=True)
            found["steps"].append(row)
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    write_page(json.loads(options.out.read_text()), options.out)


if __name__ == "__main__":
    main()
