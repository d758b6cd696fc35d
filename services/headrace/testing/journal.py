"""What a rank was handed, written down batch by batch, so that a rank that is killed has told all up to then.

One file a rank and attempt, a line of JSON each: first where the session began, then the batches, at the end what was left in
the process once its stream was closed. A last line that was cut by a kill is no line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace.core.job import Session
from headrace.testing.audit import EpochAudit, Seen, audit_epoch
from headrace.testing.leaks import measure, resting, totals

REST_S, REST_DEADLINE_S = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Taken:
    """One batch as a rank saw it. state: to go on from after it. digest: of pixels, ids, labels and mask."""

    epoch: int
    batch: int
    pixel_ids: list[int]
    planned_ids: list[int]
    status: list[int]
    digest: str
    state: dict[str, Any]


class JournalWriter:
    """Appends to a file; each line is with the kernel when the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def begin(self, session: Session) -> None:
        """The session is joined."""
        begun = {"attempt": session.attempt, "world": session.world, "epoch": session.epoch, "first": session.first}
        self._line({"begun": begun})

    def take(self, taken: Taken) -> None:
        """A batch was handed over, and is trained."""
        self._line({"taken": asdict(taken)})

    def end(self, pid: int) -> None:
        """The stream is closed: note what this process still has once nothing goes any more, as gRPC ends in its own time."""
        left = resting(lambda: measure({"rank": pid}), quiet_s=REST_S, deadline_s=REST_DEADLINE_S)
        self._line({"left": totals(left.processes["rank"])})
        self._file.close()

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")


@dataclass(frozen=True, slots=True)
class Journal:
    """One rank's part in one attempt. attempt 0: it was killed before its session formed. left: None if it was killed."""

    attempt: int
    begin: tuple[int, int]
    taken: list[Taken]
    left: dict[str, int] | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what is there; a file that was never made is an empty journal."""
        attempt, begin, taken, left = 0, (0, 0), [], None
        text = path.read_text() if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            value = json.loads(line)
            if "begun" in value:
                attempt, begin = value["begun"]["attempt"], (value["begun"]["epoch"], value["begun"]["first"])
            elif "taken" in value:
                taken.append(Taken(**value["taken"]))
            else:
                left = value["left"]
        return cls(attempt, begin, taken, left)


def kept(attempts: Sequence[Sequence[Journal]]) -> tuple[list[list[Taken]], int]:
    """What stands of each attempt: the batches before the place at which the next one began; and how many don't stand.

    attempts: in the order in which they were started, each with its ranks' journals; one without a session counts for nothing.
    """
    formed = [(max(journal.begin for journal in ranks), ranks) for ranks in attempts if any(j.attempt for j in ranks)]
    standing, undone = [], 0
    for number, (_, ranks) in enumerate(formed):
        end = formed[number + 1][0] if number + 1 < len(formed) else (1 << 62, 0)
        # A later attempt may go back behind several earlier ones, so each is cut at the least of all later beginnings.
        end = min([end, *(begin for begin, _ in formed[number + 1 :])])
        all_taken = [taken for journal in ranks for taken in journal.taken]
        standing.append([taken for taken in all_taken if (taken.epoch, taken.batch) < end])
        undone += len(all_taken) - len(standing[-1])
    return standing, undone


def audit(standing: Iterable[Sequence[Taken]], epochs: int, samples: int, dropped: int) -> list[EpochAudit]:
    """Audit each epoch over what stands of all attempts, by the ids read from the pixels."""
    batches = [taken for part in standing for taken in part]
    return [
        audit_epoch(epoch, samples, dropped, [_seen(taken) for taken in batches if taken.epoch == epoch])
        for epoch in range(epochs)
    ]


def _seen(taken: Taken) -> Seen:
    ids, planned = np.asarray(taken.pixel_ids, np.int64), np.asarray(taken.planned_ids, np.int64)
    return Seen.of_rows(np.asarray(taken.status), ids, planned)
