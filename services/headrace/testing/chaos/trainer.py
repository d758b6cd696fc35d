"""A training that is killed and started again, as a job scheduler does it: attempts of all ranks, one after another."""

from __future__ import annotations

import queue
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from headrace.core.job import JobSpec
from headrace.testing.demo_rank import RankTask
from headrace.testing.job_run import RankFailed, start_rank
from headrace.testing.journal import Journal

# Far above what faults last: a rank that comes to these has been lost.
WAIT_DEADLINE_S = 90.0
JOIN_DEADLINE_S = 90.0


class Trainer:
    """See the module. transports: one for each rank. environment: variables of each.

    All methods are for the thread that made it: ranks end with that.
    """

    def __init__(
        self,
        job: JobSpec,
        coordinators: str,
        transports: list[str],
        out: Path,
        *,
        epochs: int,
        step_s: float,
        rng: random.Random,
        environment: dict[str, str] | None = None,
    ) -> None:
        out.mkdir(parents=True)
        self.job = job
        self._coordinators = coordinators
        self._transports = transports
        self._out = out
        self._epochs = epochs
        self._step_s = step_s
        self._rng = rng
        self._environment = environment
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._progress = [0.0] * len(transports)
        self._done: dict[int, dict[str, Any]] = {}
        self.attempts = 0
        self.ranks: list[subprocess.Popen[str]] = []

    @property
    def done(self) -> bool:
        """Whether all ranks of the newest attempt have ended well."""
        return len(self._done) == len(self._transports)

    @property
    def progress(self) -> float:
        """How much the slowest rank of the newest attempt has done of all epochs, 0 to 1; 0 until it has taken a batch."""
        return min(self._progress)

    @property
    def stats(self) -> list[dict[str, Any]]:
        """What the ranks said at their end."""
        return [self._done[rank]["stats"] for rank in sorted(self._done)]

    def start(self) -> None:
        """Start all ranks anew: from what was committed, or, as often, from the checkpoint that their journals hold."""
        state = self._checkpoint() if self._rng.random() < 0.5 else None
        self.attempts += 1
        self._events = queue.Queue()
        self._progress = [0.0] * len(self._transports)
        self._done = {}
        self.ranks = []
        for rank, transport in enumerate(self._transports):
            task = RankTask(
                coordinators=self._coordinators,
                job=self.job.to_dict(),
                rank=rank,
                world=len(self._transports),
                epochs=self._epochs,
                transport=transport,  # type: ignore[arg-type]
                out=str(self._path(rank, "npz")),
                step_s=self._step_s,
                state=state,
                wait_deadline_s=WAIT_DEADLINE_S,
                join_deadline_s=JOIN_DEADLINE_S,
                journal=str(self._path(rank, "journal")),
            )
            self.ranks.append(start_rank(task, self._path(rank, "log"), self._events, self._environment))

    def kill(self) -> None:
        """SIGKILL to all ranks."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
        self._events = queue.Queue()  # their ends are no news

    def poll(self, timeout_s: float) -> None:
        """Take in what the ranks say, at least for `timeout_s`. Raises RankFailed."""
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left_s)
            except queue.Empty:
                return
            self._take(event)

    def journals(self) -> list[list[Journal]]:
        """Of all attempts, by rank."""
        ranks = range(len(self._transports))
        return [
            [Journal.read(self._path(rank, "journal", attempt)) for rank in ranks] for attempt in range(1, self.attempts + 1)
        ]

    def _take(self, event: dict[str, Any]) -> None:
        rank = event["rank"]
        if event["event"] == "step":
            # A session that began within an epoch counts that epoch's steps from where it began; near enough for a storm.
            self._progress[rank] = (event["epoch"] + event["step"] / event["steps"]) / self._epochs
        elif event["event"] == "done":
            self._done[rank] = event
            self._progress[rank] = 1.0
        elif event["event"] == "end" and (event["code"] or rank not in self._done):
            log = self._path(rank, "log")
            lines = log.read_text().strip().splitlines() or ["no output"]
            raise RankFailed(f"rank {rank} ended with {event['code']}: {lines[-1]}; see {log}", rank=rank)

    def _checkpoint(self) -> dict[str, Any] | None:
        """The state that all ranks of the last attempt have reached; None where one took nothing."""
        if not self.attempts:
            return None
        last = self.journals()[-1]
        if not all(journal.taken for journal in last):
            return None
        return min((journal.taken[-1].state for journal in last), key=lambda state: (state["epoch"], state["step"]))

    def _path(self, rank: int, kind: str, attempt: int = 0) -> Path:
        return self._out / f"attempt-{attempt or self.attempts}-rank-{rank}.{kind}"
