"""A training that is killed and started again, as a job scheduler does it: attempts of all ranks, one after another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from headrace.core.job import JobSpec
from headrace.testing.attempts import Attempts


class Trainer(Attempts):
    """See the module. transports: one for each rank. environment: variables of each."""

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
        super().__init__(job, coordinators, out, environment)
        self._transports = transports
        self._epochs = epochs
        self._step_s = step_s
        self._rng = rng
        self._progress = [0.0] * len(transports)

    @property
    def progress(self) -> float:
        """How much the slowest rank of the newest attempt has done of all epochs, 0 to 1; 0 until it has taken a batch."""
        return min(1.0 if rank in self._done else share for rank, share in enumerate(self._progress))

    @property
    def stats(self) -> list[dict[str, Any]]:
        """What the ranks said at their end."""
        return [self._done[rank]["stats"] for rank in sorted(self._done)]

    def start(self) -> None:
        """Start all ranks anew: from what was committed, or, as often, from the checkpoint that their journals hold."""
        state = self._checkpoint() if self._rng.random() < 0.5 else None
        self._progress = [0.0] * len(self._transports)
        self._launch(self._transports, self._epochs, self._step_s, {"state": state})

    def _stepped(self, rank: int, event: dict[str, Any]) -> None:
        # A session that began within an epoch counts that epoch's steps from where it began; near enough for a storm.
        self._progress[rank] = (event["epoch"] + event["step"] / event["steps"]) / self._epochs

    def _checkpoint(self) -> dict[str, Any] | None:
        """The state that all ranks of the last attempt have reached; None where one took nothing."""
        if not self.attempts:
            return None
        last = self.journals()[-1]
        if not all(journal.taken for journal in last):
            return None
        return min((journal.taken[-1].state for journal in last), key=lambda state: (state["epoch"], state["step"]))
