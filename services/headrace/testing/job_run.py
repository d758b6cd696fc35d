"""Runs a job's ranks as processes against a running fleet, and audits what they saw.

The demo and the integration tests share it: they differ in the fleet's size and in what they break on the way.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.core.job import JobSpec
from headrace.telemetry.parent import PARENT_VARIABLE
from headrace.testing.audit import EpochAudit, Seen, audit_epoch
from headrace.testing.demo_rank import RankTask


class RankFailed(HeadraceError):
    """A rank's process ended with an error."""

    code = "rank_failed"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A rank took a batch, for which next() took wait_s. step counts from 1 to steps within the epoch."""

    rank: int
    epoch: int
    step: int
    steps: int
    rows: int
    wait_s: float


@dataclass(slots=True)
class RunResult:
    """What a run showed. hashes: (epoch, batch) -> hash of pixels, ids, labels, mask. stats, states: by rank."""

    audits: list[EpochAudit]
    stats: list[dict[str, Any]]
    states: list[dict[str, Any]]
    hashes: dict[tuple[int, int], str]
    seconds: float
    planned: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """True if the audit of every epoch is."""
        return all(audit.clean for audit in self.audits)


def run_job(
    job: JobSpec,
    coordinators: str,
    transports: list[str],
    out: Path,
    *,
    samples: int,
    dropped: int,
    epochs: int,
    deadline_s: float,
    on_step: Callable[[StepEvent], None] = lambda event: None,
    environment: dict[str, str] | None = None,
    **task: Any,
) -> RunResult:
    """Run one rank per entry of `transports` to the end of `epochs` and audit each epoch.

    samples, dropped: of an epoch, from the manifest and the tail policy. on_step is called in this thread. task: further
    RankTask fields; `sheet` and `stop_after` may be lists by rank. Raises RankFailed, or WaitTimeout after `deadline_s`.
    """
    out.mkdir(parents=True, exist_ok=True)
    world = len(transports)
    events: queue.Queue[dict[str, Any]] = queue.Queue()
    ranks = []
    begun = time.monotonic()
    try:
        for rank, transport in enumerate(transports):
            own = {key: value[rank] if isinstance(value, list) else value for key, value in task.items()}
            description = RankTask(
                coordinators=coordinators,
                job=job.to_dict(),
                rank=rank,
                world=world,
                epochs=epochs,
                transport=transport,  # type: ignore[arg-type]
                out=str(out / f"rank-{rank}.npz"),
                **own,
            )
            ranks.append(start_rank(description, out / f"rank-{rank}.log", events, environment))
        done = _follow(ranks, events, begun + deadline_s, on_step, out)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    seconds = time.monotonic() - begun
    return _result(out, done, epochs=epochs, samples=samples, dropped=dropped, seconds=seconds)


def start_rank(
    task: RankTask, log: Path, events: queue.Queue[dict[str, Any]], environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a rank's process; what it says goes to `events`, at last `end` with its exit code. It ends with this thread."""
    with log.open("w") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "headrace.testing.demo_rank", json.dumps(asdict(task))],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {}), PARENT_VARIABLE: str(os.getpid())},
        )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                events.put(json.loads(line))
            except ValueError:
                with log.open("a") as file:
                    file.write(line)
        events.put({"event": "end", "rank": task.rank, "code": process.wait()})

    threading.Thread(target=read, name=f"demo-rank-{task.rank}", daemon=True).start()
    return process


def _follow(
    ranks: list[subprocess.Popen[str]],
    events: queue.Queue[dict[str, Any]],
    deadline: float,
    on_step: Callable[[StepEvent], None],
    out: Path,
) -> dict[int, dict[str, Any]]:
    done: dict[int, dict[str, Any]] = {}
    ended: set[int] = set()
    while len(ended) < len(ranks):
        try:
            event = events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            left = sorted(set(range(len(ranks))) - ended)
            raise WaitTimeout(f"ranks {left} did not finish in time; their logs are in {out}") from None
        kind = event.pop("event")
        if kind == "step":
            event.pop("substituted")
            on_step(StepEvent(**event))
        elif kind == "done":
            done[event["rank"]] = event
        else:
            ended.add(event["rank"])
            if event["code"] != 0 or event["rank"] not in done:
                log = (out / f"rank-{event['rank']}.log").read_text().strip().splitlines()
                raise RankFailed(
                    f"rank {event['rank']} ended with {event['code']}: {log[-1] if log else 'no output'}", rank=event["rank"]
                )
    return done


def _result(
    out: Path, done: dict[int, dict[str, Any]], *, epochs: int, samples: int, dropped: int, seconds: float
) -> RunResult:
    world = len(done)
    files = [np.load(out / f"rank-{rank}.npz") for rank in range(world)]
    audits, planned = [], {}
    for epoch in range(epochs):
        seen = []
        for file in files:
            here = file["epoch"] == epoch
            seen.append(Seen.of_rows(file["status"][here], file["pixel_ids"][here], file["planned_ids"][here]))
        audits.append(audit_epoch(epoch, samples, dropped, seen))
        planned[epoch] = np.concatenate([part.pixel_ids for part in seen])
    hashes = {
        (int(epoch), int(batch)): digest.decode()
        for file in files
        for epoch, batch, digest in zip(file["batch_epoch"], file["batch"], file["hashes"], strict=True)
    }
    stats = [done[rank]["stats"] for rank in range(world)]
    states = [done[rank]["state"] for rank in range(world)]
    return RunResult(audits, stats, states, hashes, seconds, planned)
