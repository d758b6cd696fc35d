"""A connected rank of this node, as the producer sees it: see worker.serve_local."""

from __future__ import annotations

from typing import Protocol

from headrace.wire import messages, slot_format
from headrace.worker.device_share import DeviceShare, DeviceSlab
from headrace.worker.pixel_places import DevicePlace
from headrace.worker.rank_port import RankPort, RankRegister
from headrace.worker.slab import Slab


class Connection(Protocol):
    """The rank's socket."""

    def send(self, data: bytes) -> None:
        """Send, or keep for later; never blocks."""
        ...

    def end(self, reason: str) -> None:
        """Close it; may be called again."""
        ...


class LocalPort(RankPort):
    """A rank that maps the slab, and the device slab if there is one.

    Slot = index mod window; a slot is busy while an engine writes to it.
    """

    transport = "shm"

    def __init__(
        self,
        register: RankRegister,
        hello: messages.Hello,
        slab: Slab,
        window: int,
        *,
        connection: Connection,
        generation: int,
    ) -> None:
        super().__init__(register, hello, slab, window)
        self._connection = connection
        self._generation = generation
        self._device: DeviceSlab | None = None
        self._devices: DeviceShare | None = None

    def use_device(self, slab: DeviceSlab, devices: DeviceShare) -> None:
        """The pixels lie there; the slab is this port's from now on."""
        self.transport = "cuda_ipc"
        self.slab_bytes = slab.size
        self._device = slab
        self._devices = devices

    def device_place(self, index: int) -> DevicePlace | None:
        """See OutPort."""
        if self._device is None:
            return None
        return DevicePlace(self._device.slot(self._writing[index]), self._device.memory)

    def _free_slab_if_idle(self) -> None:
        super()._free_slab_if_idle()
        if self._device is not None and self._devices is not None and self.closed and not self._busy():
            self._devices.retire(self._device)
            self._device = None

    def _free_slot(self, index: int) -> int | None:
        # An overtaken index (made elsewhere meanwhile) may still be written to the slot of a later one.
        number = index % self.window
        return None if number in self._writing.values() else number

    def _hand_over(self, index: int, number: int, token: int, total_bytes: int) -> None:
        slot_format.mark(self._slab.slot(number), index, token, total_bytes)
        self._send(messages.Ready(index, token, self._generation, total_bytes))

    def _send(self, message: messages.Message) -> None:
        self._connection.send(messages.encode(message))

    def _disconnect(self, reason: str) -> None:
        self._connection.end(reason)
