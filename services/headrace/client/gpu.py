"""On which GPU a rank takes its batches, if on one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headrace.client.transports.ladder import NO_GPU
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ConfigInvalid, TransportUnavailable
from headrace.wire.device_memory import Device


@dataclass(frozen=True, slots=True)
class Gpu:
    """Where this rank takes batches. device: None where on no GPU, and why_not says why."""

    device: Device | None = None
    why_not: str = NO_GPU


@dataclass(slots=True)
class GpuChoice:
    """What the trainer asked for; iterators may set it until the stream joins.

    device: an ordinal, or an open one; None: no GPU.
    """

    device: int | Device | None = None

    def open(self, transport: TransportChoice) -> Gpu:
        """The GPU, or why there is none. Takes a moment: the driver is loaded."""
        if transport not in ("auto", "cuda_ipc"):
            return Gpu()
        device = 0 if self.device is None and transport == "cuda_ipc" else self.device
        if device is None:
            return Gpu()
        try:
            return Gpu(_opened(device) if isinstance(device, int) else device)
        except TransportUnavailable as error:
            return Gpu(None, error.message)


@lru_cache
def _opened(ordinal: int) -> Device:
    """Once a process: it trains on the same GPU all along."""
    from headrace.wire.cuda_device import open_device

    return open_device(ordinal)


def check_device(device: object) -> None:
    """Raise ConfigInvalid unless it may stand in GpuChoice."""
    ordinal = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if device is not None and not ordinal and not isinstance(device, Device):
        raise ConfigInvalid(f"device must be a GPU's ordinal (0, 1, ...) or None, not {device!r}", field="device")
