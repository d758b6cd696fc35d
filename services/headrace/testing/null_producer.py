"""A producer that reads and decodes nothing: it fills slots with a pattern, for tests and benchmarks of the data plane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.core.batch import BatchMeta
from headrace.core.errors import HeadraceError
from headrace.wire import slot_format
from headrace.wire.batch_meta import encode_meta
from headrace.worker.ports import OutPort, Room


def pattern(index: int, pixel_bytes: int) -> bytes:
    """The pixels of `index`: no two indexes agree in any aligned 8 bytes."""
    return (np.arange(-(-pixel_bytes // 8), dtype=np.uint64) * np.uint64(2654435761) + np.uint64(index)).tobytes()[:pixel_bytes]


class NullProducer:
    """Implements worker.ports.PortListener. Makes every wanted index at once, in ascending order, in the caller's thread.

    shape: of the batch, NHWC uint8. window: what `admit` grants. fill: write `pattern` to every batch; without it pixels
    stay as they are, so that only the transport costs. auto: make whatever is wanted; else tests drive the ports. limit: first
    index not made. error: what `admit` raises. on_made: called after each batch.
    """

    def __init__(self, shape: tuple[int, int, int, int], *, window: int = 4, fill: bool = True, auto: bool = True) -> None:
        self.shape = shape
        self.pixel_bytes = int(np.prod(shape))
        self.slot_bytes = slot_format.slot_bytes(self.pixel_bytes, 65536)
        self.window = window
        self.fill = fill
        self.auto = auto
        self.token = 1
        self.limit = 2**63
        self.error: HeadraceError | None = None
        self.ports: list[OutPort] = []
        self.events: list[tuple[str, int]] = []  # (opened | advanced | closed, rank)
        self.made: list[tuple[int, int]] = []  # (rank, index)
        self.on_made: Callable[[OutPort, int], None] | None = None

    async def admit(self, job: str, attempt: int, rank: int, nonce: str) -> Room:
        """See PortListener."""
        if self.error is not None:
            raise self.error
        return Room(self.slot_bytes, self.window, self.pixel_bytes)

    def opened(self, port: OutPort) -> None:
        """See PortListener."""
        self.events.append(("opened", port.rank))
        self.ports.append(port)
        self.pump(port)

    def advanced(self, port: OutPort) -> None:
        """See PortListener."""
        self.events.append(("advanced", port.rank))
        self.pump(port)

    def closed(self, port: OutPort) -> None:
        """See PortListener."""
        self.events.append(("closed", port.rank))
        self.ports.remove(port)

    def pump(self, port: OutPort) -> None:
        """Make what the rank wants, until there is no slot."""
        if not self.auto:
            return
        for index in range(port.next_index, min(port.next_index + port.window, self.limit)):
            if port.wants(index) and not self.make(port, index):
                return

    def make(self, port: OutPort, index: int) -> bool:
        """Make one index; False if no slot is free."""
        slot = port.acquire(index)
        if slot is None:
            return False
        port.started(index, self.token)
        port.publish(index, self.token, self.write(slot, port, index))
        self.made.append((port.rank, index))
        if self.on_made is not None:
            self.on_made(port, index)
        return True

    def write(self, slot: memoryview, port: OutPort, index: int) -> int:
        """Fill and seal a slot; returns its total bytes."""
        place = port.device_place(index)
        if self.fill and place is not None:
            place.memory.write(place.slot.pointer, pattern(index, self.pixel_bytes))
        elif self.fill:
            slot_format.pixels(slot, self.pixel_bytes)[:] = pattern(index, self.pixel_bytes)
        return slot_format.seal(
            slot,
            encode_meta(self.meta(port, index)),
            index=index,
            token=self.token,
            dtype="uint8",
            layout="NHWC",
            shape=self.shape,
            pixel_bytes=self.pixel_bytes,
            on_device=place is not None,
        )

    def meta(self, port: OutPort, index: int) -> BatchMeta:
        """A plain meta: labels and ids count up."""
        count = self.shape[0]
        ids = np.arange(index * count, (index + 1) * count, dtype=np.int64)
        zeros = np.zeros(count, np.uint8)
        return BatchMeta(
            job=port.job,
            attempt=port.attempt,
            rank=port.rank,
            index=index,
            epoch=0,
            step=index,
            batch=index,
            lane=0,
            token=self.token,
            worker="null",
            plan_hash="none",
            fingerprint="null",
            sample_ids=ids,
            source_ids=ids,
            status=zeros,
            reasons=zeros,
            keys=[f"{sample:08d}" for sample in ids],
            labels=ids,
        )
