"""The worker's half of `cuda_ipc`: slabs on its GPU, one for each rank that takes batches there.

```
HELLO asks -> offered (allocated, pattern written, exported once) -> PROBED -> proven -> batches
rank gone: quarantined for a grace period, since its own mapping may still be going down -> freed
```
Messages, slots and credit are those of `shm` (worker.serve_local); only the place of the pixels differs. Calls of the GPU's
driver run in threads; all else on the event loop thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from headrace.core.errors import HeadraceError, TransportUnavailable
from headrace.telemetry.failures import unexpected
from headrace.wire import device_memory
from headrace.wire.device_memory import Block, Device, DeviceMemory, Handle
from headrace.wire.messages import Hello, Welcome
from headrace.worker.engines.protocol import DeviceSlot
from headrace.worker.slab import in_thread

_log = structlog.get_logger()

GRACE_S = 5.0
# Slabs of ranks that left; while there are as many, who asks for another waits until one is freed.
_MOST_QUARANTINED = 16


class DeviceSlab:
    """`slots` slots of `slot_bytes` on a GPU, for one rank. The constructor calls the driver; raises TransportUnavailable."""

    def __init__(self, memory: DeviceMemory, uuid: str, slots: int, slot_bytes: int) -> None:
        self.memory = memory
        self.uuid = uuid
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.nonce = secrets.token_hex(16)
        self.handle = Handle()
        self._block: Block | None = memory.allocate(self.size)
        try:
            device_memory.write_ping(memory, self._block, self.size, self.nonce)
            self.handle = memory.export(self._block)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.slots * self.slot_bytes

    def describe(self, welcome: Welcome) -> Welcome:
        """The WELCOME that tells of it."""
        return replace(
            welcome,
            memory=self.memory.kind,
            gpu=self.uuid,
            device_slot_bytes=self.slot_bytes,
            handle=self.handle.data.hex(),
            nonce=self.nonce,
        )

    def slot(self, number: int) -> DeviceSlot:
        """Where the pixels of slot `number` go."""
        if self._block is None or not 0 <= number < self.slots:
            raise HeadraceError(f"no slot {number} in a device slab of {self.slots}, or it is closed")
        return DeviceSlot(self._block.pointer + number * self.slot_bytes, self.slot_bytes, self.memory.gpu)

    def prove(self) -> None:
        """Check the rank's pattern. Raises TransportUnavailable."""
        assert self._block is not None
        device_memory.check_pong(self.memory, self._block, self.size, self.nonce)

    def close(self) -> None:
        """Give the memory back; may be called again."""
        if self._block is not None:
            block, self._block = self._block, None
            if self.handle.fd >= 0:
                os.close(self.handle.fd)
                self.handle = Handle()
            self.memory.free(block)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank is answered. slab: None where it gets none; why_not says why, or is empty where it did not ask."""

    slab: DeviceSlab | None = None
    why_not: str = ""


class DeviceShare:
    """See the module. open_device: called in a thread for the first rank that asks; None: this worker shares no GPU memory, and
    why_not says why. grace_s: how long a slab stays unused when its rank is gone."""

    def __init__(
        self,
        open_device: Callable[[], Device] | None = None,
        why_not: str = "the worker shares no GPU memory",
        grace_s: float = GRACE_S,
    ) -> None:
        self._open_device = open_device
        self._why_not = why_not
        self._grace_s = grace_s
        self._device: Device | None = None
        self._opening = asyncio.Lock()
        self._quarantined: dict[DeviceSlab, asyncio.TimerHandle] = {}
        self._freed = asyncio.Event()
        self._freeing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def quarantined(self) -> int:
        """Slabs of ranks that are gone, not yet freed."""
        return len(self._quarantined)

    async def offer(self, hello: Hello, pixel_bytes: int, slots: int) -> Offer:
        """A slab for a rank that asks for one, or why not. Never raises HeadraceError: the next rung is always there."""
        if not hello.gpu:
            return Offer()
        try:
            device = await self._opened()
            if device.uuid != hello.gpu:
                return Offer(why_not=device_memory.why_other_gpu(device.uuid, hello.gpu))
            if not pixel_bytes:
                return Offer(why_not="the job's batches have no pixels")
            return await self._offer(device, hello.memories.split(","), pixel_bytes, slots)
        except TransportUnavailable as error:
            return Offer(why_not=error.message)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a driver raises, shared memory is there
            what = "the worker failed to share its GPU"
            return Offer(why_not=unexpected("device_offer_failed", what, error, job=hello.job, rank=hello.rank).message)

    def retire(self, slab: DeviceSlab) -> None:
        """Its rank is gone, or never came: keep it for the grace period, then free it."""
        grace_s = 0.0 if self._closed else self._grace_s
        self._quarantined[slab] = asyncio.get_running_loop().call_later(grace_s, self._free, slab)

    async def close(self) -> None:
        """Free what is quarantined, at once, and let go of the GPU; idempotent. The process ends: no rank's slab is written."""
        self._closed = True
        for slab, timer in list(self._quarantined.items()):
            timer.cancel()
            self._free(slab)
        while self._freeing:
            await asyncio.wait(list(self._freeing))
        if self._device is not None:
            await asyncio.to_thread(self._device.close)

    async def _opened(self) -> Device:
        async with self._opening:
            if self._device is None:
                if self._open_device is None:
                    raise TransportUnavailable(self._why_not)
                try:
                    self._device = await asyncio.to_thread(self._open_device)
                except TransportUnavailable as error:  # a driver does not appear while a process runs
                    self._open_device, self._why_not = None, error.message
                    raise
                _log.info("gpu_opened", uuid=self._device.uuid, name=self._device.name, lacks=self._device.lacks)
            return self._device

    async def _offer(self, device: Device, kinds: list[str], pixel_bytes: int, slots: int) -> Offer:
        await self._less_quarantined(_MOST_QUARANTINED)
        refused = [device.lacks] if device.lacks else []
        slot_bytes = device_memory.slot_bytes(pixel_bytes)
        for memory in device.memories:
            if memory.kind not in kinds:
                refused.append(f"{memory.kind}: not taken by the rank")
                continue
            make = partial(DeviceSlab, memory, device.uuid, slots, slot_bytes)
            try:
                slab = await in_thread(make, DeviceSlab.close)
                return Offer(slab)
            except TransportUnavailable as error:
                refused.append(f"{memory.kind}: {error.message}")
            if self._quarantined:  # what they hold may be what is lacking
                await self._less_quarantined(1)
                return await self._offer(device, kinds, pixel_bytes, slots)
        return Offer(why_not="; ".join(refused) or "it has no way to share GPU memory")

    async def _less_quarantined(self, count: int) -> None:
        """Wait until fewer are quarantined: at most the grace period from now, but for ranks that leave meanwhile."""
        while len(self._quarantined) >= count:
            self._freed.clear()
            await self._freed.wait()

    def _free(self, slab: DeviceSlab) -> None:
        task = asyncio.get_running_loop().create_task(self._close(slab), name="free-device-slab")
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _close(self, slab: DeviceSlab) -> None:
        try:
            await asyncio.to_thread(slab.close)
        except TransportUnavailable as error:
            _log.warning("device_slab_not_freed", bytes=slab.size, error=error.message)
        finally:
            self._quarantined.pop(slab, None)
            self._freed.set()
