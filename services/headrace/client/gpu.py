"""On which GPU a rank takes its batches, if on one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from headrace.client.transports.ladder import NO_GPU
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ConfigInvalid, TransportUnavailable
from headrace.wire.device_memory import Device


class Pinner(Protocol):
    """Makes host memory that a GPU copies from without anybody's waiting. Any thread. Both raise TransportUnavailable."""

    def pin(self, address: int, nbytes: int) -> None:
        """Pin what is mapped there, also read-only."""
        ...

    def unpin(self, address: int) -> None:
        """Before it is unmapped."""
        ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """Where this rank takes batches. device: None where on no GPU, and why_not says why. pinner: of slabs in host memory."""

    device: Device | None = None
    why_not: str = NO_GPU
    pinner: Pinner | None = None


@dataclass(slots=True)
class GpuChoice:
    """What the trainer asked for; iterators may set it until the stream joins.

    device: an ordinal, or an open one; None: no GPU. pinner: of an ordinal's GPU, unless one is given.
    """

    device: int | Device | None = None
    pinner: Pinner | None = None

    def open(self, transport: TransportChoice) -> Gpu:
        """The GPU, or why there is none. Takes a moment: the driver is loaded."""
        device = 0 if self.device is None and transport == "cuda_ipc" else self.device
        if device is None:
            return Gpu(pinner=self.pinner)
        try:
            opened, pinner = _opened(device) if isinstance(device, int) else (device, None)
        except TransportUnavailable as error:
            return Gpu(None, error.message, self.pinner)
        pinner = self.pinner or pinner
        # What is demanded comes through host memory: only its way to the GPU can be made short.
        return Gpu(pinner=pinner) if transport in ("shm", "grpc") else Gpu(opened, pinner=pinner)


@lru_cache
def _opened(ordinal: int) -> tuple[Device, Pinner]:
    """Once a process: it trains on the same GPU all along."""
    from headrace.wire.cuda_device import open_device, open_pinner

    return open_device(ordinal), open_pinner(ordinal)


def check_device(device: object) -> None:
    """Raise ConfigInvalid unless it may stand in GpuChoice."""
    ordinal = isinstance(device, int) and not isinstance(device, bool) and device >= 0
    if device is not None and not ordinal and not isinstance(device, Device):
        raise ConfigInvalid(f"device must be a GPU's ordinal (0, 1, ...) or None, not {device!r}", field="device")
