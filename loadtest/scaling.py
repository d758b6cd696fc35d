"""How speed grows with workers, what the whole path costs a batch, and how long one waits for the first.

    python loadtest/scaling.py                            # some 10 minutes; results/scaling.json, .md and .png
    python loadtest/scaling.py --seconds 4 --rounds 1     # to try
    python loadtest/scaling.py --page                     # page and plot of the numbers that are there

Four questions, each in rounds that take turns, on fleets of real processes (store, coordinator, workers, a trainer's process):

- images/s with 1, 2 and 4 workers of one thread: photos of ImageNet's sizes, random-resized-crop 224, flip, batches of 64
  over shared memory, engine `cpu`. The store, the coordinator and the trainer take their part of the same cores.
- CPU of all processes a batch with engine `null`, which makes nothing: what planning, leases, scheduling, reading, hand-over
  and reports cost. The trainer takes batches as fast as they come. Small batches (8 of 16x16) cost control alone; those of 256
  of 224x224 add what is done for each byte (over gRPC: sent, received, checked). User + system time, by the kernel.
- Time to the first batch: from `headrace.connect` in a process that has all imported, to the batch; and from the start of a
  whole fleet's processes, with a trainer that is already there and waits.
- Time to resume: a trainer is killed (SIGKILL) and started again at once with the state that it saved. From `connect` to its
  first batch, and from the start of the new process (Python and imports included). With the number of the attempt given, as a
  launcher does, and without, where the dead trainer's claim must lapse first (5 s after its last report, --rank-ttl-s).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from scaling_page import write_page

import headrace
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset

RESULT = Path(__file__).parent / "results" / "scaling.json"
WORKERS = (1, 2, 4)
WARM_S = 3.0
SMALL, LARGE = (8, 16), (256, 224)  # (batch size, edge)
DEADLINE_S = 120.0


def _trainer(task: dict[str, Any]) -> None:
    """One rank in this process: says what it does in lines, takes batches until its standard input ends or time is up."""
    print(json.dumps({"imported": True}), flush=True)
    if task.get("wait"):
        sys.stdin.readline()
    begun_s = time.monotonic()
    with headrace.connect(task["coordinators"], deadline_s=60.0) as client:
        job = client.open(headrace.JobSpec.from_dict(task["job"]))
    with job.stream(transport=task["transport"], attempt=task.get("attempt")) as stream:
        if task.get("state"):
            stream.load_state_dict(task["state"])
        batches = (batch for _ in stream.epochs() for batch in stream)
        next(batches)
        state = stream.state_dict()
        print(json.dumps({"first_s": time.monotonic() - begun_s, "at_s": time.monotonic(), "state": state}), flush=True)
        if task.get("seconds"):
            end_s = time.monotonic() + WARM_S
            while time.monotonic() < end_s:
                next(batches)
            print(json.dumps({"measuring": True}), flush=True)
            begun_s, count = time.monotonic(), 0
            while time.monotonic() - begun_s < task["seconds"]:
                next(batches)
                count += 1
            print(json.dumps({"batches": count, "span_s": time.monotonic() - begun_s}), flush=True)
        sys.stdin.readline()


class Trainer:
    """A process of `_trainer`."""

    def __init__(self, **task: Any) -> None:
        command = [sys.executable, __file__, "--trainer", json.dumps(task)]
        self.begun_s = time.monotonic()
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def told(self) -> dict[str, Any]:
        """Its next line. Raises RuntimeError where it ended."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise RuntimeError(f"the trainer ended with {self.popen.wait()}; what it said is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def go(self) -> None:
        """Let it go on."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.terminate() if self.popen.poll() is None else None
        self.popen.communicate(timeout=DEADLINE_S)


class Bench:
    """The data and the rounds."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._jobs = 0
        self._photos = str(make_demo_dataset(directory / "set", samples=2000, shards=4))

    def job(self, size: tuple[int, int], ops: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """A job that nobody knows yet."""
        self._jobs += 1
        batch_size, edge = size
        pipeline = headrace.PipelineSpec(ops=ops or (headrace.Resize((edge, edge)),))
        return headrace.JobSpec(f"scaling-{self._jobs}", self._photos, batch_size, pipeline).to_dict()

    @contextmanager
    def fleet(self, workers: int, engine: str) -> Iterator[Cluster]:
        """A fleet of its own, on what was measured before."""
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            args = ["--engine", engine, "--log-level", "warning"]
            with Cluster(Path(directory), workers=workers, threads=1, worker_args=args) as cluster:
                yield cluster

    def speed(self, workers: int) -> float:
        """Images/s."""
        ops = (headrace.RandomResizedCrop((224, 224)), headrace.HorizontalFlip())
        with self.fleet(workers, "cpu") as cluster:
            job = self.job((64, 224), ops)
            with Trainer(coordinators=cluster.addresses, job=job, transport="shm", seconds=self._seconds) as trainer:
                for _ in range(3):
                    trainer.told()
                found = trainer.told()
        return float(64 * found["batches"] / found["span_s"])

    def overhead(self, transport: str, size: tuple[int, int]) -> dict[str, float]:
        """CPU microseconds a batch, by process, and batches/s."""
        with (
            self.fleet(1, "null") as cluster,
            Trainer(coordinators=cluster.addresses, job=self.job(size), transport=transport, seconds=self._seconds) as trainer,
        ):
            for _ in range(3):
                trainer.told()
            members = {"store": cluster.store, "coordinator": cluster.coordinators[0], "worker": cluster.workers[0]}
            processes = {name: [psutil.Process(member.running.pid)] for name, member in members.items()}
            processes["trainer"] = [psutil.Process(trainer.popen.pid)]
            processes["fetcher"] = processes["trainer"][0].children(recursive=True)
            before = {name: sum(map(_cpu_s, found)) for name, found in processes.items()}
            told = trainer.told()
            used = {name: sum(map(_cpu_s, found)) - before[name] for name, found in processes.items()}
        row = {name: 1e6 * cpu_s / told["batches"] for name, cpu_s in used.items()}
        return {**row, "all": sum(row.values()), "batches_s": told["batches"] / told["span_s"]}

    def first(self) -> dict[str, float]:
        """Seconds to the first batch: on a running fleet, and with the fleet's start."""
        row: dict[str, float] = {}
        with self.fleet(1, "cpu") as cluster:
            for transport in ("shm", "grpc"):
                with Trainer(
                    coordinators=cluster.addresses, job=self.job((64, 224)), transport=transport, wait=True
                ) as trainer:
                    trainer.told()
                    trainer.go()
                    row[f"running fleet, {transport}"] = trainer.told()["first_s"]
        with tempfile.TemporaryDirectory(dir=self._directory) as directory:
            cluster = Cluster(Path(directory), workers=1, threads=1, worker_args=["--engine", "cpu"])
            with Trainer(coordinators=cluster.addresses, job=self.job((64, 224)), transport="shm", wait=True) as trainer:
                trainer.told()
                trainer.go()
                begun_s = time.monotonic()
                try:
                    cluster.start()
                    row["with the fleet's start, shm"] = trainer.told()["at_s"] - begun_s
                finally:
                    cluster.close()
        return row

    def resume(self) -> dict[str, float]:
        """Seconds from a killed trainer's new start to its first batch."""
        row: dict[str, float] = {}
        with self.fleet(1, "cpu") as cluster:
            for attempt, kind in ((2, "attempt given"), (None, "without an attempt")):
                job = self.job((64, 224))
                common = {"coordinators": cluster.addresses, "job": job, "transport": "shm"}
                with Trainer(attempt=1 if attempt else None, **common) as trainer:
                    trainer.told()
                    state = trainer.told()["state"]
                    trainer.popen.send_signal(signal.SIGKILL)
                with Trainer(attempt=attempt, state=state, **common) as trainer:
                    trainer.told()
                    found = trainer.told()
                    row[f"{kind}, from connect"] = found["first_s"]
                    row[f"{kind}, from the process's start"] = found["at_s"] - trainer.begun_s
        return row


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _run(seconds: float, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "seconds": seconds, "rounds": rounds, "load": [], "speed": {}, "overhead": {}, "first": {}, "resume": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), seconds)
        for number in range(rounds):
            found["load"].append(os.getloadavg()[0])
            for workers in WORKERS:
                found["speed"].setdefault(str(workers), []).append(bench.speed(workers))
            for transport in ("shm", "grpc"):
                for name, size in (("small", SMALL), ("large", LARGE)):
                    found["overhead"].setdefault(f"{transport} {name}", []).append(bench.overhead(transport, size))
            for kind, row in (("first", bench.first()), ("resume", bench.resume())):
                for name, value in row.items():
                    found[kind].setdefault(name, []).append(value)
            print(
                f"round {number + 1} of {rounds}: speed {[round(statistics.median(v)) for v in found['speed'].values()]}",
                flush=True,
            )
    return found


def main() -> None:
    """Measure, write numbers, page and plot; or be one trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="measured span of a rate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help="only make page and plot of the numbers that are there")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        _trainer(json.loads(options.trainer))
        return
    if not options.page:
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(json.dumps(_run(options.seconds, options.rounds), indent=1) + "\n")
    write_page(json.loads(options.out.read_text()), options.out)


if __name__ == "__main__":
    main()
