"""Who holds what in all jobs, by worker: a heartbeat looks at its own lanes, not at everybody's. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.records import LaneRecord

Holder = tuple[str, str]  # worker, incarnation
Leases = Sequence[tuple[int, int]]  # lane, token


class Holdings:
    """Follows the lanes of each job. One event loop."""

    def __init__(self) -> None:
        self._lanes: dict[str, Mapping[int, LaneRecord]] = {}
        self._by_holder: dict[Holder, dict[str, list[tuple[int, int]]]] = {}
        self._holders: dict[str, set[Holder]] = {}

    def note(self, job: str, lanes: Mapping[int, LaneRecord]) -> None:
        """Take a job's newest lanes; cheap where they are those of before."""
        if self._lanes.get(job) == lanes:
            return
        self.drop(job)
        held: dict[Holder, list[tuple[int, int]]] = {}
        for number, lane in lanes.items():
            if lane.owner:
                held.setdefault((lane.owner, lane.incarnation), []).append((number, lane.token))
        for holder, leases in held.items():
            leases.sort()
            self._by_holder.setdefault(holder, {})[job] = leases
        self._lanes[job], self._holders[job] = lanes, set(held)

    def drop(self, job: str) -> None:
        """A job is no more."""
        self._lanes.pop(job, None)
        for holder in self._holders.pop(job, ()):
            jobs = self._by_holder[holder]
            del jobs[job]
            if not jobs:
                del self._by_holder[holder]

    def of(self, worker: str, incarnation: str) -> list[tuple[str, Leases]]:
        """What one worker holds, by job in order of name, lanes in order of number."""
        return sorted(self._by_holder.get((worker, incarnation), {}).items())
