"""What a coordinator replica says of itself: its store, its certificate, what it saw happen lately."""

from __future__ import annotations

import socket
import time
from importlib import metadata
from typing import Literal

from pydantic import BaseModel

from headrace.coordinator.board import Board
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.recent_events import RecentEvent
from headrace.telemetry.metrics import MOST_SERIES
from headrace.wire.certificate import overdue

# Leases are judged by the store's clock alone, so that a skew breaks nothing; but certificates and logs go by ours.
_SKEW_S = 5.0


class EventView(BaseModel):
    """Something that this replica saw. count: how often within seconds; text: of the last time. job: empty if none."""

    at_s: float
    level: Literal["info", "warning"]
    kind: str
    job: str
    text: str
    count: int


class ReplicaView(BaseModel):
    """The replica that answers; others tell other events. Times: seconds since 1970, by its own clock.

    loaded: it has read all jobs once. store_error: empty while the store answers; store_failing_s: for how long it hasn't.
    store_ahead_s: the store's clock against this replica's. certificate_not_after_s: 0 without TLS. troubles: sentences on
    what is wrong with this replica now, none if nothing is. events: newest first, at most 200, gone with the replica.
    """

    version: str
    host: str
    now_s: float
    up_s: float
    loaded: bool
    store_error: str
    store_failing_s: float
    store_ahead_s: float
    certificate_not_after_s: float
    troubles: list[str]
    events: list[EventView]


class Replica:
    """Makes the view. Built when the replica begins to serve."""

    def __init__(self, board: Board, instruments: Instruments) -> None:
        self._board = board
        self._instruments = instruments
        self._begun_s = time.monotonic()

    def view(self) -> ReplicaView:
        """As it is now."""
        board, now_s = self._board, time.time()
        ahead_s = board.store_ahead_s()
        begins_s, not_after_s = self._instruments.certificate_valid_s()
        left_s = not_after_s - now_s if overdue(begins_s, not_after_s, now_s) and not_after_s else None
        return ReplicaView(
            version=metadata.version("headrace"),
            host=socket.gethostname(),
            now_s=now_s,
            up_s=time.monotonic() - self._begun_s,
            loaded=board.loaded,
            store_error=board.store_error,
            store_failing_s=board.failing_s,
            store_ahead_s=ahead_s,
            certificate_not_after_s=not_after_s,
            troubles=_troubles(board, ahead_s, left_s) + _outside(self._instruments),
            events=[_event(event) for event in self._instruments.events.newest()],
        )


def _event(event: RecentEvent) -> EventView:
    return EventView(at_s=event.at_s, level=event.level, kind=event.kind, job=event.job, text=event.text, count=event.count)


def _troubles(board: Board, ahead_s: float, left_s: float | None) -> list[str]:
    found = list[str]()
    if board.store_error:
        shown = "What is shown was read before" if board.loaded else "Nothing was read from it yet"
        found.append(
            f"the store has failed for {board.failing_s:.0f} s: {board.store_error}. {shown}; workers and trainers go on with "
            "the leases they hold"
        )
    elif not board.loaded:
        found.append("jobs are still being read from the store")
    found += [f"the store {weakness}" for weakness in board.store_weaknesses or ()]
    if abs(ahead_s) > _SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        found.append(f"the store's clock is {abs(ahead_s):.0f} s {way} this replica's: set both by NTP")
    if left_s is not None:
        when = f"expires in {_span(left_s)}" if left_s > 0 else "has expired"
        found.append(f"the coordinator's certificate {when}: put a new one in its place, nothing is restarted for it")
    return found


def _outside(instruments: Instruments) -> list[str]:
    """What is wrong with those who come, and with the secrets that they are judged by."""
    found = [f"{fault}; the token before stays in use" for secret in instruments.secrets if (fault := secret.fault)]
    found += instruments.refusals.troubles()
    if instruments.series > MOST_SERIES:
        found.append(
            f"this replica exports {instruments.series} series, more than {MOST_SERIES}: mostly many jobs, each under a new "
            f"name; give trainings fixed names, a new attempt keeps the name"
        )
    return found


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.1f} hours"
