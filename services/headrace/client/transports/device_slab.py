"""A worker's device slab as the trainer sees it: imported once, proven, and unmapped when the last batch in it is done with."""

from __future__ import annotations

import weakref

from headrace.client.device_pixels import DevicePixels
from headrace.core.errors import ProtocolMismatch, TransportUnavailable
from headrace.wire import device_memory
from headrace.wire.device_memory import Device, DeviceMemory, Handle
from headrace.wire.messages import Welcome
from headrace.wire.slot_format import SlotHeader

# As MAX_SLAB_BYTES, for what a worker announces on the GPU.
_MOST_BYTES = 1 << 40


class ImportedSlab:
    """`slots` slots of `slot_bytes` each on a GPU. lost: its worker is gone, and the memory is of no use without it."""

    def __init__(self, memory: DeviceMemory, handle: Handle, welcome: Welcome) -> None:
        self.memory = memory
        self.lost = False
        self._slots = welcome.slots
        self._slot_bytes = welcome.device_slot_bytes
        size = self._slots * self._slot_bytes
        self._block = memory.import_block(handle, size)
        self._lent: weakref.WeakSet[DevicePixels] = weakref.WeakSet()
        try:
            device_memory.answer_ping(memory, self._block, size, welcome.nonce)
        except BaseException:
            memory.free(self._block)
            raise

    def pixels(self, index: int, header: SlotHeader) -> DevicePixels:
        """Those of a slot's batch. Raises ProtocolMismatch where the slot has no room for them."""
        if header.pixel_bytes > self._slot_bytes:
            raise ProtocolMismatch(f"{header.pixel_bytes} bytes of pixels in a device slot of {self._slot_bytes}", index=index)
        pointer = self._block.pointer + index % self._slots * self._slot_bytes
        found = DevicePixels(self, pointer, header.shape, header.dtype, header.pixel_bytes)
        self._lent.add(found)
        return found

    def worker_gone(self) -> bool:
        """Its worker ended; True if its batches are lost with it."""
        self.lost = not self.memory.outlives_owner
        return self.lost

    def close(self) -> bool:
        """Unmap, if nobody holds pixels of it any more. True if it is gone."""
        if self._lent:
            return False
        self.memory.free(self._block)
        return True


def import_slab(device: Device | None, welcome: Welcome, fd: int) -> ImportedSlab:
    """Map what a worker offers; fd: -1 where none came with it, else the caller's to close. Raises TransportUnavailable."""
    memory = None if device is None else device.memory(welcome.memory)
    if device is None or memory is None or welcome.gpu != device.uuid:
        raise ProtocolMismatch(f"worker {welcome.worker} offers GPU memory that was not asked for", worker=welcome.worker)
    if not 0 < welcome.slots * welcome.device_slot_bytes <= _MOST_BYTES or welcome.device_slot_bytes % device_memory.SLOT_ALIGN:
        raise ProtocolMismatch(f"worker {welcome.worker} announces an impossible device slab", worker=welcome.worker)
    try:
        handle = Handle(fd, bytes.fromhex(welcome.handle))
    except ValueError as error:
        raise ProtocolMismatch(f"worker {welcome.worker} sent a handle that is not hexadecimal") from error
    try:
        return ImportedSlab(memory, handle, welcome)
    except TransportUnavailable as error:
        raise TransportUnavailable(f"{welcome.memory}: {error.message}", **error.ids) from error
