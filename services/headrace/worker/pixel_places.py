"""Where an engine writes a batch's pixels: into its slot, into its place on a GPU, or into host memory to be copied there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.wire import slot_format
from headrace.wire.device_memory import DeviceMemory, HostBuffer
from headrace.worker.engines.protocol import DeviceSlot, Out, part

# Host buffers that are kept for the next batch: one is enough for an engine that makes one at a time.
_MOST_KEPT = 2


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A batch's place on a GPU, and what copies to it."""

    slot: DeviceSlot
    memory: DeviceMemory


class PixelPlaces:
    """See the module. engine_memory: what the engine writes to (Engine.memory). Any thread."""

    def __init__(self, engine_memory: frozenset[str] = frozenset({"host"})) -> None:
        self._on_gpu = "cuda" in engine_memory
        self._lock = threading.Lock()
        self._kept: list[tuple[DeviceMemory, HostBuffer]] = []

    @contextmanager
    def writing(self, slot: memoryview, device: DevicePlace | None, pixel_bytes: int) -> Iterator[Out]:
        """Gives what the engine is to write to; when left, the pixels are where the rank looks for them.

        Raises TransportUnavailable where they cannot be copied there.
        """
        if device is None:
            yield slot_format.pixels(slot, pixel_bytes)
        elif self._on_gpu:
            yield part(device.slot, 0, pixel_bytes)
        else:
            buffer = self._take(device.memory, pixel_bytes)
            try:
                yield buffer.view[:pixel_bytes]
                device.memory.write(device.slot.pointer, buffer.view[:pixel_bytes])
            finally:
                self._keep(device.memory, buffer)

    def close(self) -> None:
        """Free what is kept; before the GPU is let go of."""
        with self._lock:
            kept, self._kept = self._kept, []
        for _, buffer in kept:
            buffer.close()

    def _take(self, memory: DeviceMemory, nbytes: int) -> HostBuffer:
        with self._lock:
            for at, (of, buffer) in enumerate(self._kept):
                if of is memory and len(buffer.view) >= nbytes:
                    del self._kept[at]
                    return buffer
        return memory.host_buffer(nbytes)

    def _keep(self, memory: DeviceMemory, buffer: HostBuffer) -> None:
        with self._lock:
            self._kept.append((memory, buffer))
            dropped = self._kept.pop(0)[1] if len(self._kept) > _MOST_KEPT else None
        if dropped is not None:
            dropped.close()
