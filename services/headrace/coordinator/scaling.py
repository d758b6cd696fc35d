"""The coordinator's part of scaling: what each rank did since the last decision, and the decision once in a while.

The rules are core.autoscale's. Every replica decides for itself from the same records: they may differ for one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from headrace.coordinator.recent import waited_s
from headrace.core.autoscale import Class, JobDemand, Scale, Taken, demand, scale
from headrace.core.events import JobState, Rules
from headrace.core.records import RankRecord, WorkerRecord
from headrace.core.tick import active

log = structlog.get_logger()

_Key = tuple[str, int, str]  # job, rank, nonce
_Totals = tuple[float, float, int]  # elapsed_s, waited_s, consumed


class Scaling:
    """See the module. interval_s: between decisions; each sees what happened since the last one."""

    def __init__(self, interval_s: float) -> None:
        self._interval_us = int(interval_s * 1e6)
        self._decided_us = 0
        self._totals: dict[_Key, _Totals] = {}
        self.classes: dict[Class, Scale] = {}
        self.demand: dict[str, float] = {}  # samples/s by job; a job that is not here has told nothing yet

    def look(self, jobs: Iterable[JobState], workers: Mapping[str, WorkerRecord], now_us: int, rules: Rules) -> None:
        """Decide anew if it is time."""
        if 0 <= now_us - self._decided_us < self._interval_us:
            return
        self._decided_us = now_us
        training = [
            state
            for state in jobs
            if state.job is not None
            and state.session is not None
            and state.session.formed
            and active(state.session, state.ranks, now_us, rules)
        ]
        totals: dict[_Key, _Totals] = {}
        found: dict[str, float] = {}
        demands = list[JobDemand]()
        for state in training:
            assert state.job is not None
            assert state.session is not None
            members = {rank: record for rank, record in state.members.items() if record.alive(now_us)}
            totals |= {(state.name, rank, record.nonce): _totals(record) for rank, record in members.items()}
            taken = [self._taken(state.name, rank, record) for rank, record in members.items()]
            told = demand(taken, state.session.world, state.job.spec.batch_size)
            told = self.demand.get(state.name) if told is None else told
            if told is not None:
                found[state.name] = told
            demands.append(JobDemand(state.job.spec, state.session.lanes, told))
        self._totals, self.demand = totals, found
        before, self.classes = self.classes, scale(self.classes, demands, workers, now_us)
        for (pool, fingerprint), decided in self.classes.items():
            known = before.get((pool, fingerprint))
            if known is None or known.desired != decided.desired:
                log.info(
                    "workers_wanted", pool=pool, engine=fingerprint, desired=decided.desired, live=decided.live,
                    demand=round(decided.demand, 1), speed=round(decided.speed, 1),
                )  # fmt: skip

    def _taken(self, job: str, rank: int, record: RankRecord) -> Taken:
        """What a rank did since the last decision, or since it began."""
        before = self._totals.get((job, rank, record.nonce), (0.0, 0.0, 0))
        elapsed_s, waited_s, consumed = (now - then for now, then in zip(_totals(record), before, strict=True))
        return Taken(elapsed_s, max(0.0, waited_s), int(consumed))


def _totals(record: RankRecord) -> _Totals:
    return record.elapsed_s, waited_s(record), record.consumed
