"""A job's ranks as processes: started, listened to, killed, started again with another world; and what came of it."""

from __future__ import annotations

import queue
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.job import JobSpec
from headrace.testing.audit import EpochAudit
from headrace.testing.demo_rank import RankTask
from headrace.testing.job_run import RankFailed, start_rank
from headrace.testing.journal import Journal, audit, kept
from headrace.testing.soak.dataset import BAD_IDS, SAMPLES

# Far above what a fault lasts: who comes to these has been lost.
WAIT_DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """audits: of each epoch. digests: (epoch, batch) -> hash. wrong: in words. undone: batches taken behind a killed
    attempt's commit. batches: taken in all."""

    audits: list[EpochAudit]
    digests: dict[tuple[int, int], str]
    batches: int
    undone: int
    wrong: list[str]


class Training:
    """All methods are for one thread: ranks end with it. waits: (monotonic time, wait_s) of each next()."""

    def __init__(self, name: str, job: JobSpec, coordinators: str, out: Path) -> None:
        self.name = name
        self.job = job
        self._coordinators = coordinators
        self._out = out / name
        self._out.mkdir(parents=True)
        self._until = self._out / "until"
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._worlds: list[int] = []
        self._done: set[int] = set()
        self.ranks: list[subprocess.Popen[str]] = []
        self.newest = [-1]  # epoch of each rank's last batch
        self.taken = 0
        self.waits: list[tuple[float, float]] = []

    def start(self, transports: tuple[str, ...], epochs: int, step_s: float) -> None:
        """Start an attempt, which goes on from what was committed."""
        self._worlds.append(len(transports))
        self._events = queue.Queue()
        self._done = set()
        self.taken = 0
        self.newest = [-1] * len(transports)
        self.ranks = []
        for rank, transport in enumerate(transports):
            task = RankTask(
                coordinators=self._coordinators,
                job=self.job.to_dict(),
                rank=rank,
                world=len(transports),
                epochs=epochs,
                transport=transport,  # type: ignore[arg-type]
                out="",
                step_s=step_s,
                wait_deadline_s=WAIT_DEADLINE_S,
                join_deadline_s=WAIT_DEADLINE_S,
                journal=str(self._path(rank, "journal")),
                until=str(self._until),
            )
            self.ranks.append(start_rank(task, self._path(rank, "log"), self._events))

    @property
    def done(self) -> bool:
        """Whether all ranks of the newest attempt have ended well."""
        return len(self._done) == len(self.ranks)

    def poll(self) -> None:
        """Take in what the ranks have said. Raises RankFailed."""
        while not self._events.empty():
            self._take(self._events.get())

    def end_soon(self) -> int:
        """Have all ranks end at one and the same epoch's begin, and return its number."""
        epoch = max(self.newest) + 3  # none is that far ahead when it reads this
        self._until.write_text(str(epoch))
        return epoch

    def kill(self) -> None:
        """SIGKILL to all ranks; idempotent."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()

    def outcome(self, epochs: int) -> Outcome:
        """Audit all attempts, by what stands in the journals."""
        attempts = [self._journals(number) for number in range(1, len(self._worlds) + 1)]
        standing, undone = kept(attempts)
        audits = audit(standing, epochs, SAMPLES, 0)
        batches = [taken for part in standing for taken in part]
        wrong = [f"{self.name}: {each}" for each in audits if not each.clean or each.substituted != len(BAD_IDS)]
        for journal in attempts[-1]:
            left = journal.left or {}
            wrong += [f"{self.name}: {kind} {left[kind]} after its stream was closed" for kind in CLEARED if left.get(kind)]
        digests = {(taken.epoch, taken.batch): taken.digest for taken in batches}
        return Outcome(audits, digests, len(batches) + undone, undone, wrong)

    def _take(self, event: dict[str, Any]) -> None:
        rank = event["rank"]
        if event["event"] == "step":
            self.taken += 1
            self.newest[rank] = event["epoch"]
            self.waits.append((time.monotonic(), event["wait_s"]))
        elif event["event"] == "done":
            self._done.add(rank)
        elif event["event"] == "end" and rank not in self._done:
            log = self._path(rank, "log")
            lines = log.read_text().strip().splitlines() or ["no output"]
            raise RankFailed(f"{self.name} rank {rank} ended with {event['code']}: {lines[-1]}; see {log}", rank=rank)

    def _journals(self, attempt: int) -> list[Journal]:
        return [Journal.read(self._path(rank, "journal", attempt)) for rank in range(self._worlds[attempt - 1])]

    def _path(self, rank: int, kind: str, attempt: int = 0) -> Path:
        return self._out / f"attempt-{attempt or len(self._worlds)}-rank-{rank}.{kind}"


CLEARED = ("shared_bytes", "children")


def digests_that_differ(one: dict[tuple[int, int], str], other: dict[tuple[int, int], str]) -> list[tuple[int, int]]:
    """Batches that both have, and not alike."""
    return sorted(key for key in one.keys() & other.keys() if one[key] != other[key])
