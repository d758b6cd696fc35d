"""What the intake knows of each worker: how it is reached, since when, and when to try again. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.client.transports.fetch_host import RemoteLink
from headrace.client.transports.ladder import Rung
from headrace.client.transports.local import LocalLink
from headrace.core.job import Endpoint

BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 1.0
HANDSHAKE_S = 15.0
# A worker that was reached by shared memory gets this many tries (some 8 s) before a slower rung is taken: most likely it
# died, and its lanes move long before that.
SHM_TRIES = 12


def backoff_s(failures: int) -> float:
    """Pause before the next try after so many failures in a row."""
    return min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** max(0, min(failures, 16) - 1))


@dataclass(slots=True)
class Peer:
    """One incarnation of one worker.

    wanted: the newest table gives it a lane. link: the connection, being made or up. welcomed: it is up.
    since_s: when that state began. failures: in a row. shm_failure: why shared memory does not work here.
    device_failures: the same of each kind of device memory that was tried.
    shm_worked, grpc_worked: it did once. refused_since_s: since when all it says is that it cannot serve us.
    opening: it said last that it does not know the session yet. slots: how many it said that it has for us.
    """

    endpoint: Endpoint
    since_s: float
    wanted: bool = True
    link: LocalLink | RemoteLink | None = None
    rung: Rung | None = None
    welcomed: bool = False
    draining: bool = False
    failures: int = 0
    retry_at_s: float = 0.0
    shm_failure: str = ""
    device_failures: dict[str, str] = field(default_factory=dict)
    shm_worked: bool = False
    grpc_worked: bool = False
    refused_since_s: float | None = None
    opening: bool = False
    slots: int = 0
    last_error: str = ""

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self.endpoint.worker

    @property
    def connected(self) -> bool:
        """True while batches may come from it."""
        return self.link is not None and self.welcomed

    def linked(self, link: LocalLink | RemoteLink, now_s: float) -> None:
        """A connection is being made."""
        self.link = link
        self.welcomed = False
        self.draining = False
        self.since_s = now_s

    def unlinked(self, reason: str, now_s: float, pause: bool = True) -> None:
        """The connection is over, or could not be made."""
        self.link = None
        self.welcomed = False
        self.since_s = now_s
        self.last_error = reason
        self.failures += pause
        self.retry_at_s = now_s + (backoff_s(self.failures) if pause else 0.0)

    def describe(self, now_s: float) -> str:
        """The connection's state for a person."""
        for_s = f"{now_s - self.since_s:.1f} s"
        if self.link is not None and self.rung is not None:
            state = f"{'up' if self.welcomed else 'no WELCOME yet'} since {for_s}"
            if not self.welcomed and self.last_error:  # it tries again and again: why is in the last answer
                state += f" (the try before: {self.last_error})"
            if isinstance(self.link, RemoteLink) and self.link.trouble:
                state += f" ({self.link.trouble})"
            return f"connection by {self.rung.name} {state}{', draining' if self.draining else ''}"
        return f"no connection since {for_s}" + (f" ({self.last_error})" if self.last_error else "")
