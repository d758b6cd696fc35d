"""The client's intake: where a rank's batches arrive, whatever worker and transport they come by.

`client.stream` (main thread) takes and releases; the intake's own thread `headrace-intake` owns all sockets, so that
connections are mended and batches noted while the trainer computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from headrace.client.device_pixels import DevicePixels
from headrace.core.errors import HeadraceError
from headrace.core.job import LaneTable
from headrace.wire.meta_head import MetaHead
from headrace.wire.slot_format import SlotHeader

TransportChoice = Literal["auto", "cuda_ipc", "shm", "grpc"]


class TakenSlot(NamedTuple):
    """A batch in a slot that is mapped here.

    slot: read-only view of the whole slot; valid until `release` is called with an index above `index`. meta: a copy of the
    slot's meta (wire.batch_meta), head: what its head says. worker: as it is connected. received_s: CLOCK_MONOTONIC of this
    host when it was known to be complete. waited: it was not here yet when `take` was called. released_s: when the slot was
    given back that its worker could make it in; None where it had one from the beginning of its connection. device: the pixels
    where they lie on a GPU, not in the slot. pinned: a GPU copies from the slot without anybody's waiting.
    """

    index: int  # type: ignore[assignment]
    slot: memoryview
    header: SlotHeader
    head: MetaHead
    meta: bytearray
    transport: str
    worker: str
    received_s: float
    waited: bool = False
    released_s: float | None = None
    device: DevicePixels | None = None
    pinned: bool = False

    @property
    def lost(self) -> bool:
        """True where the pixels went with their worker: the batch must be taken again."""
        return self.device is not None and self.device.lost


@dataclass(frozen=True, slots=True)
class LaneTrouble:
    """A lane that its owner does not serve to this rank; see the protocol. waited_s: 0 where the rank does not wait for it."""

    lane: int
    worker: str
    token: int
    waited_s: float
    connected: bool
    reason: str


@dataclass(slots=True)
class IntakeStatus:
    """For people and reports. transports: worker id -> (rung, reason). refused: batches refused for an old token. remade:
    batches STARTED under one lease and delivered under another. awaited: who makes the next index and since when.
    milestones: of the awaited batch, as core.starvation.split_wait takes them: what is to come is infinite. troubles: what
    the coordinator is to know of lanes."""

    transports: dict[str, tuple[str, str]] = field(default_factory=dict)
    refused: int = 0
    remade: int = 0
    awaited: str = ""
    milestones: dict[str, float] = field(default_factory=dict)
    troubles: tuple[LaneTrouble, ...] = ()


class Intake(Protocol):
    """See the module. Every method may be called from any thread; `take` from one at a time."""

    def update(self, table: LaneTable) -> None:
        """A newer lane table: connect to new owners, raise the known tokens, change the window."""
        ...

    def take(self, index: int, deadline_s: float) -> TakenSlot:
        """Block until `index` is complete, `deadline_s` seconds at most; an index may be taken again until it is released.

        Raises WaitTimeout naming who is awaited and since when, the error of FAILED, or what `fail` set.
        """
        ...

    def release(self, next_index: int) -> None:
        """All indexes below `next_index` are done with; tells the producers."""
        ...

    def fail(self, error: HeadraceError) -> None:
        """Make the running and later `take` raise `error` (session superseded, ...)."""
        ...

    def status(self) -> IntakeStatus:
        """Counts and names so far."""
        ...

    def close(self) -> None:
        """End the thread, the fetcher process and all sockets and mappings; idempotent; at most a few seconds."""
        ...
