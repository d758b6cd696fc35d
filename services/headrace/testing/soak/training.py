"""A job's ranks as processes: started, listened to, killed, started again with another world; and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.job import JobSpec
from headrace.testing.attempts import Attempts
from headrace.testing.audit import EpochAudit
from headrace.testing.journal import audit, kept
from headrace.testing.soak.dataset import BAD_IDS, SAMPLES


@dataclass(frozen=True, slots=True)
class Outcome:
    """audits: of each epoch. digests: (epoch, batch) -> hash. wrong: in words. undone: batches taken behind a killed
    attempt's commit. batches: taken in all."""

    audits: list[EpochAudit]
    digests: dict[tuple[int, int], str]
    batches: int
    undone: int
    wrong: list[str]


class Training(Attempts):
    """taken: batches of the newest attempt. waits: (monotonic time, wait_s) of each next()."""

    def __init__(self, name: str, job: JobSpec, coordinators: str, out: Path) -> None:
        super().__init__(job, coordinators, out / name)
        self.name = name
        self._until = self._out / "until"
        self.newest = [-1]  # epoch of each rank's last batch
        self.taken = 0
        self.waits: list[tuple[float, float]] = []

    def start(self, transports: tuple[str, ...], epochs: int, step_s: float) -> None:
        """Start an attempt, which goes on from what was committed."""
        self.taken = 0
        self.newest = [-1] * len(transports)
        self._launch(transports, epochs, step_s, {"until": str(self._until)})

    def end_soon(self) -> int:
        """Have all ranks end at one and the same epoch's begin, and return its number."""
        epoch = max(self.newest) + 3  # none is that far ahead when it reads this
        self._until.write_text(str(epoch))
        return epoch

    def outcome(self, epochs: int) -> Outcome:
        """Audit all attempts, by what stands in the journals."""
        attempts = self.journals()
        standing, undone = kept(attempts)
        audits = audit(standing, epochs, SAMPLES, 0)
        batches = [taken for part in standing for taken in part]
        wrong = [f"{self.name}: {each}" for each in audits if not each.clean or each.substituted != len(BAD_IDS)]
        for journal in attempts[-1]:
            left = journal.left or {}
            wrong += [f"{self.name}: {kind} {left[kind]} after its stream was closed" for kind in CLEARED if left.get(kind)]
        digests = {(taken.epoch, taken.batch): taken.digest for taken in batches}
        return Outcome(audits, digests, len(batches) + undone, undone, wrong)

    def _stepped(self, rank: int, event: dict[str, Any]) -> None:
        self.taken += 1
        self.newest[rank] = event["epoch"]
        self.waits.append((time.monotonic(), event["wait_s"]))


CLEARED = ("shared_bytes", "children")


def digests_that_differ(one: dict[tuple[int, int], str], other: dict[tuple[int, int], str]) -> list[tuple[int, int]]:
    """Batches that both have, and not alike."""
    return sorted(key for key in one.keys() & other.keys() if one[key] != other[key])
