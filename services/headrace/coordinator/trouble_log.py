"""What ranks say of workers that they cannot use, for whoever reads the log: each reason once, when it is first heard."""

from __future__ import annotations

import re

import structlog

from headrace.coordinator.recent_events import RecentEvents
from headrace.wire.gen import coordinator_service_pb2 as pb

log = structlog.get_logger()

_MOST_CHARS = 300
_MOST_REMEMBERED = 10_000
# "no connection since 3.1 s" is the same reason a second later.
_NUMBER = re.compile(r"\d+(\.\d+)?")


class TroubleLog:
    """Remembers what this replica has logged; one event loop. What a new attempt complains of is logged anew."""

    def __init__(self, events: RecentEvents) -> None:
        self._events = events
        self._told: set[tuple[str, int, int, str, str]] = set()

    def tell(self, report: pb.ReportProgressRequest) -> None:
        """Log the troubles of an accepted report, one line for each (rank, worker, reason) that is new."""
        rank = report.id
        for trouble in report.troubles:
            reason = trouble.reason[:_MOST_CHARS]
            key = (rank.job, rank.attempt, rank.rank, trouble.worker, _NUMBER.sub("0", reason))
            if not reason or key in self._told:
                continue
            if len(self._told) >= _MOST_REMEMBERED:
                self._told.clear()
            self._told.add(key)
            text = f"rank {rank.rank} does not get lane {trouble.lane} from {trouble.worker or 'anybody'}: {reason}"
            self._events.add("lane_trouble", text, job=rank.job, level="warning", group=f"{rank.rank} {trouble.worker}")
            log.warning(
                "lane_trouble",
                job=rank.job, attempt=rank.attempt, rank=rank.rank, worker=trouble.worker, lane=trouble.lane,
                connected=trouble.connected, reason=reason,
            )  # fmt: skip
