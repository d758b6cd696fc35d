"""What the `cvcuda` engine needs of a GPU: lanes. On a real one: cvcuda_lane; without any, in tests: testing.numpy_lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nvidia import nvimgcodec

from headrace.worker.engines.codec import Codec, Device
from headrace.worker.engines.cvcuda_plan import GpuPlan, Target
from headrace.worker.engines.pixels import Pixels


class Lane(Protocol):
    """One batch in flight: a stream, decoders and buffers. Not for two threads at once. All raise GpuMemoryFull.

    stream: CUDA's. codec: its decoders. What is asked for is done in order, and surely done after `sync`.
    """

    stream: int
    codec: Codec

    def mark(self, place: int) -> None:
        """Note moment 0, 1 or 2 of a batch."""
        ...

    def seconds(self) -> tuple[float, float]:
        """From moment 0 to 1 and from 1 to 2, after sync."""
        ...

    def scratch(self, nbytes: int) -> int:
        """Address of device memory for a batch that goes on to the host."""
        ...

    def host(self, nbytes: int) -> memoryview:
        """Host memory for a batch on its way."""
        ...

    def write(
        self,
        plan: GpuPlan,
        target: Target,
        images: Mapping[int, nvimgcodec.Image],
        made: Mapping[int, Pixels],
        pointer: int,
    ) -> None:
        """Ask for a batch of target.shape at a device address.

        images, made: the rows that have pixels, decoded by the lane's codec or made by the host; others get what may be there.
        """
        ...

    def download(self, out: memoryview, pointer: int) -> None:
        """Copy from a device address to `out`."""
        ...

    def upload(self, pointer: int, data: memoryview) -> None:
        """Copy `data` to a device address."""
        ...

    def sync(self) -> None:
        """Wait for all that was asked; what was decoded may be thrown away from then on, and not before."""
        ...

    def close(self) -> None:
        """Give back all that it holds."""
        ...


class Lanes(Protocol):
    """Makes lanes of one GPU. gpu: ordinal in this process. device: what codecs are made for."""

    gpu: int
    device: Device

    def use(self) -> None:
        """Make the GPU the calling thread's."""
        ...

    def probe(self) -> None:
        """Raises GpuLost if the GPU can be used no more; in a thread that uses it, after something failed there."""
        ...

    def new(self, threads: int) -> Lane:
        """A lane, with so many threads of the CPU. Raises GpuMemoryFull."""
        ...

    def forget(self) -> None:
        """Give back what the libraries keep for lanes to come."""
        ...
