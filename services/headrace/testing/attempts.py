"""A job's ranks as processes, attempt after attempt: started, listened to, killed, started again; each writes a journal."""

from __future__ import annotations

import abc
import queue
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.job import JobSpec
from headrace.testing.demo_rank import RankTask
from headrace.testing.job_run import RankFailed, start_rank
from headrace.testing.journal import Journal

# Far above what faults last: a rank that comes to these has been lost.
WAIT_DEADLINE_S = 90.0


class Attempts(abc.ABC):
    """All methods are for the thread that made it: ranks end with it. out: folder of journals and logs, made here."""

    def __init__(self, job: JobSpec, coordinators: str, out: Path, environment: dict[str, str] | None = None) -> None:
        out.mkdir(parents=True)
        self.job = job
        self.ranks: list[subprocess.Popen[str]] = []
        self._coordinators = coordinators
        self._out = out
        self._environment = environment
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._worlds: list[int] = []
        self._done: dict[int, dict[str, Any]] = {}

    @property
    def attempts(self) -> int:
        """How many were started."""
        return len(self._worlds)

    @property
    def done(self) -> bool:
        """Whether all ranks of the newest attempt have ended well."""
        return bool(self.ranks) and len(self._done) == len(self.ranks)

    def kill(self) -> None:
        """SIGKILL to all ranks; idempotent."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
        self._events = queue.Queue()  # their ends are no news

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take in what the ranks have said, and what they say for `timeout_s` from now. Raises RankFailed."""
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                return
            self._take(event)

    def journals(self) -> list[list[Journal]]:
        """Of all attempts, by rank."""
        return [
            [Journal.read(self._path(rank, "journal", attempt)) for rank in range(world)]
            for attempt, world in enumerate(self._worlds, 1)
        ]

    def _launch(self, transports: Sequence[str], epochs: int, step_s: float, more: Mapping[str, Any]) -> None:
        """Start an attempt, a rank for each transport. more: further fields of their RankTask."""
        self._worlds.append(len(transports))
        self._events = queue.Queue()
        self._done = {}
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
                **more,
            )
            self.ranks.append(start_rank(task, self._path(rank, "log"), self._events, self._environment))

    @abc.abstractmethod
    def _stepped(self, rank: int, event: dict[str, Any]) -> None:
        """A rank took a batch."""

    def _take(self, event: dict[str, Any]) -> None:
        rank = event["rank"]
        if event["event"] == "step":
            self._stepped(rank, event)
        elif event["event"] == "done":
            self._done[rank] = event
        elif event["event"] == "end" and (event["code"] or rank not in self._done):
            log = self._path(rank, "log")
            lines = log.read_text().strip().splitlines() or ["no output"]
            raise RankFailed(f"{self.job.name}: rank {rank} ended with {event['code']}: {lines[-1]}; see {log}", rank=rank)

    def _path(self, rank: int, kind: str, attempt: int = 0) -> Path:
        return self._out / f"attempt-{attempt or self.attempts}-rank-{rank}.{kind}"
