"""What a stream needs of the session that it joined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.client.progress import Progress
from headrace.client.transports.protocol import Intake
from headrace.core.job import Session, Stop, StreamState


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is in its session. nonce: random text of this stream. node: see telemetry.node."""

    rank: int
    nonce: str
    node: str


class Link(Protocol):
    """A rank's tie to a session: real (client.session_link) or in memory (testing.memory_stream). For the trainer's thread."""

    @property
    def session(self) -> Session:
        """The session."""
        ...

    @property
    def intake(self) -> Intake:
        """Where its batches arrive."""
        ...

    @property
    def stop(self) -> Stop | None:
        """Where the session ends for too many bad samples, once the coordinator said so."""
        ...

    def clock_of(self, worker: str) -> str:
        """Whose monotonic clock a worker's times are of: empty if it runs on this kernel, so that they are ours."""
        ...

    def wait_recorded(self, committed: int, deadline_s: float) -> None:
        """Block until the coordinator has recorded a commit count. Raises WaitTimeout, or what ended the session."""
        ...

    def abandon(self) -> None:
        """The stream is gone unclosed: close soon, in another thread. Takes no lock and does not wait."""
        ...

    def close(self) -> None:
        """Leave the session with the last cursors and end all threads, processes and sockets; idempotent; seconds at most."""
        ...


Connector = Callable[[StreamState | None, Progress], Link]
