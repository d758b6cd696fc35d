"""Where finished batches go: one `OutPort` for each connected rank, whatever the transport.

The producer (worker.producer) asks each port what may be made, writes into the slot that it gives, and publishes.
`worker.serve_local` and `worker.serve_grpc` implement ports and call the `PortListener`. All methods of both run on the
worker's event loop thread; only the slot's memory is written by engine threads.

The credit rule (core.credit): an index may be made if next <= index < next + window and it is not in `have`; its slot is
`index % slots`. Since NEXT is an index and not a count, a lost or repeated message cannot create or destroy credit.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.core.errors import HeadraceError
from headrace.worker.pixel_places import DevicePlace


class Room(NamedTuple):
    """What a session's batches need. window: slots wanted by its bounds. pixel_bytes: of one batch; 0: unknown."""

    slot_bytes: int
    window: int
    pixel_bytes: int = 0


class SlotStates(NamedTuple):
    """A rank's slots on this worker: an engine writes them; they hold a batch for the rank, or one being sent; the rest."""

    making: int
    ready: int
    free: int


class OutPort(Protocol):
    """One connected rank."""

    job: str
    attempt: int
    rank: int
    window: int
    transport: str  # cuda_ipc | shm | grpc
    slab_bytes: int  # memory of its slots; of cuda_ipc that on the GPU

    @property
    def next_index(self) -> int:
        """Lowest index that the rank has not released. Only grows."""
        ...

    @property
    def closed(self) -> bool:
        """True once the rank is gone; the port is then dropped and a reconnect makes a new one."""
        ...

    def grant(self, window: int) -> None:
        """The session's window is this now: a rank that asked for more than it has here shall connect anew."""
        ...

    def close(self, reason: str) -> None:
        """End the connection; the rank may connect anew. May be called again."""
        ...

    def slot_states(self) -> SlotStates:
        """How its slots are used now; any thread."""
        ...

    def wants(self, index: int) -> bool:
        """True if the rank may be sent `index` now and was not sent it on this connection nor said to have it."""
        ...

    def acquire(self, index: int) -> memoryview | None:
        """The slot to write `index` into, or None while no buffer is free (gRPC: earlier batches are still being sent)."""
        ...

    def device_place(self, index: int) -> DevicePlace | None:
        """Where the pixels of an acquired index go if not into its slot."""
        ...

    def started(self, index: int, token: int) -> None:
        """Tell the rank that production began."""
        ...

    def publish(self, index: int, token: int, total_bytes: int) -> None:
        """Hand over a sealed slot (wire.slot_format)."""
        ...

    def abandon(self, index: int) -> None:
        """Give an acquired slot back unpublished (the lease was lost); the index may be acquired again."""
        ...

    def fail(self, index: int, error: HeadraceError) -> None:
        """Tell the rank that `index` cannot be made."""
        ...


class PortListener(Protocol):
    """What serves listen to: the producer."""

    async def admit(self, job: str, attempt: int, rank: int, nonce: str) -> Room:
        """Check a HELLO.

        Waits a bounded time for the session to become known. Raises SessionUnknown, SessionSuperseded or WorldMismatch.
        """
        ...

    def opened(self, port: OutPort) -> None:
        """A rank connected; an earlier port of the same rank is closed by the server first."""
        ...

    def advanced(self, port: OutPort) -> None:
        """Its next index grew, or a buffer came free."""
        ...

    def closed(self, port: OutPort) -> None:
        """It is gone."""
        ...
