"""Lane tables as they travel: made once for all watchers of a job, who may be thousands. No I/O."""

from __future__ import annotations

from headrace.core.events import JobState
from headrace.core.job import LaneTable
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb

_RENEW_US = 600_000_000


class LaneTables:
    """The newest table of each job. One event loop."""

    def __init__(self) -> None:
        self._made: dict[str, pb.WatchSessionResponse] = {}

    def of(self, job: JobState, version: int) -> pb.WatchSessionResponse:
        """A job's table as it is made of its newest snapshot, not to be written to.

        version: the store's time, so that it grows whatever replica one asks. Ranks take no token that is much newer.
        """
        table = self._made.get(job.name)
        if table is None or version - table.version > _RENEW_US:
            table = self._made[job.name] = convert.lane_table_to_proto(_table(job, version))
        return table

    def drop(self, job: str) -> None:
        """A job is no more, or there is a snapshot that differs in what watchers see."""
        self._made.pop(job, None)


def _table(job: JobState, version: int) -> LaneTable:
    assert job.session is not None
    lanes = [job.lanes.get(number) for number in range(job.session.lanes)]
    owners = tuple(lane.owner if lane and lane.owner in job.workers else "" for lane in lanes)
    endpoints = {owner: job.workers[owner].endpoint for owner in set(owners) if owner}
    tokens = tuple(lane.token if lane else 0 for lane in lanes)
    return LaneTable(version, job.session.window, owners, tokens, endpoints, job.session.stop)


def seen_by_watchers(job: JobState) -> object:
    """What a watcher must be told of when it changes.

    Endpoints, too: the fleet is read before the job, so that lanes may be newer than what is known of their owner.
    """
    ranks = {rank: (record.attempt, record.nonce) for rank, record in job.ranks.items()}
    named = {lane.owner: job.workers[lane.owner].endpoint for lane in job.lanes.values() if lane.owner in job.workers}
    return job.session, job.lanes, ranks, named
