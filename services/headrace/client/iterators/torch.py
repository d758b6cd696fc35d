"""Batches as torch tensors.

`as_tensors(stream)` goes over the rest of the epoch, as `for batch in stream` does. On the CPU pixels are copied once, into
a tensor of the trainer's own, since one that aliased the slot could be written to (in-place operations) and would change
under the trainer when the slot goes back; `zero_copy=True` takes that risk for a loop that only reads. For a CUDA device a
batch is on its way there one batch ahead, on a stream of its own: from a worker on the same GPU (cuda_ipc) by one copy on the
device, else from host memory, pinned where it lies or by way of a pinned buffer. That batch counts as handed over, in
`state_dict()` too, only when it is yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from headrace.client.batch import Batch
from headrace.client.iterators.ahead import Copied, Event, ahead
from headrace.client.stream import Stream

T = TypeVar("T")

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """A batch on a device.

    pixels: in the job's layout and dtype (torch.bfloat16 for bfloat16). labels: int64[B], uint8[B, C] or None for JSON labels
    (see `batch.label_json`). mask: bool[B], False where padded. batch: ids, keys, epoch, step, ...; its own pixels may be
    released already.
    """

    pixels: torch.Tensor
    labels: torch.Tensor | None
    mask: torch.Tensor
    batch: Batch


def as_tensors(stream: Stream, device: str | torch.device = "cpu", *, zero_copy: bool = False) -> Iterator[TensorBatch]:
    """The rest of the stream's epoch on `device`.

    zero_copy: pixels alias the slot, on the CPU, and on the GPU where a worker made them there: writing to them kills the
    process on the CPU and spoils the batch on the GPU, and once the next batch was asked for they hold another batch. On the
    GPU that waits for all that the current stream has been given, the backward pass included. The GPU is asked for when the
    stream joins: call this before anything else that joins it, or give `job.stream(device=...)`.
    Raises what `next()` of the stream raises.
    """
    target = torch.device(device)
    if target.type == "cuda":
        target = torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)
        stream.prefer_gpu(target.index)
        return ahead(stream, DeviceStager(target, CudaLane(target), view=zero_copy))
    if target.type == "cpu":
        return map(partial(_on_cpu, zero_copy=zero_copy), stream)  # a generator would be over after an error of the stream
    return map(partial(_moved, target=target), stream)


def normalize(
    pixels: torch.Tensor,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    *,
    layout: str = "NHWC",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """uint8 pixels to (x / 255 - mean) / std on their device, NCHW in shape; from NHWC they stay channels_last in memory."""
    channels = pixels.permute(0, 3, 1, 2) if layout == "NHWC" else pixels
    scale, shift = _scale_and_shift(tuple(mean), tuple(std), dtype, pixels.device)
    return torch.addcmul(shift, channels.to(dtype), scale)


@lru_cache(maxsize=16)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Made once: bringing them to a GPU waits for it, which no step should do."""
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=dtype, device=device).view(1, 3, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=device).view(1, 3, 1, 1)
    return scale, shift


class _Aliased:
    """Lends an array's memory as writable, which torch wants to hear; the array itself is kept alive by it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def tensor_of(array: NDArray[Any], dtype: str, *, alias: bool = False) -> torch.Tensor:
    """A tensor of an array of one of the pipeline's dtypes: a copy, or over the same memory, read-only or not."""
    plain = array.view(np.int16) if dtype == "bfloat16" else array
    tensor = torch.from_numpy(np.asarray(_Aliased(plain)) if alias else plain.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _on_cpu(batch: Batch, zero_copy: bool) -> TensorBatch:
    labels = None if batch.labels is None else torch.from_numpy(batch.labels)
    return TensorBatch(tensor_of(batch.pixels, batch.dtype, alias=zero_copy), labels, torch.from_numpy(batch.mask), batch)


def _moved(batch: Batch, target: torch.device) -> TensorBatch:
    tensors = _on_cpu(batch, False)
    labels = None if tensors.labels is None else tensors.labels.to(target)
    return TensorBatch(tensors.pixels.to(target), labels, tensors.mask.to(target), tensors.batch)


class Lane(Protocol):
    """A stream of copies on one device, beside the trainer's. What CUDA is asked for, so that the rest runs without it."""

    def copy(self, make: Callable[[], T]) -> tuple[T, Event]:
        """Call what queues copies, in this stream; the event says when they are done."""
        ...

    def hand_over(self, tensors: Sequence[torch.Tensor], done: Event) -> None:
        """The trainer's stream waits for the event; the allocator hears that it uses the tensors."""
        ...

    def mark(self) -> Event:
        """What the trainer's stream has queued so far."""
        ...

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned host memory of the same shape and dtype."""
        ...


@dataclass(frozen=True, slots=True)
class _View:
    """A pending batch whose pixels are the slot itself: it is read until the trainer's stream is done with it."""

    tensors: Callable[[], TensorBatch]
    lane: Lane

    def finish(self) -> TensorBatch:
        return self.tensors()

    def settle(self) -> None:
        self.lane.mark().synchronize()


class DeviceStager:
    """See client.iterators.ahead. view: lend pixels that lie on the device already, if they outlive their worker there."""

    def __init__(self, device: torch.device, lane: Lane, *, view: bool = False) -> None:
        self._device = device
        self._lane = lane
        self._view = view
        self._buffers: list[torch.Tensor] = []
        self._filled: list[Event | None] = [None, None]  # by buffer: the copy out of it

    def begin(self, batch: Batch) -> Copied[TensorBatch] | _View:
        """See Stager."""
        pixels = batch.on_device
        if pixels is not None:
            source: torch.Tensor = from_dlpack(pixels)
            if self._view and pixels.stays:
                return _View(*self._start(batch, lambda: source)[:1], self._lane)
            finish, done = self._start(batch, source.clone)
            if not pixels.stays:  # it must be here before its worker can die unseen
                done.synchronize()
            return Copied(finish, done, source)
        source = tensor_of(batch.pixels, batch.dtype, alias=True)
        if batch.pinned:
            return Copied(*self._start(batch, lambda: source.to(self._device, non_blocking=True, copy=True)), source)
        return self._by_buffer(batch, source)

    def _by_buffer(self, batch: Batch, source: torch.Tensor) -> Copied[TensorBatch]:
        """By way of one of two pinned buffers in turn, which is filled again once its copy to the device is done."""
        if not self._buffers:
            self._buffers = [self._lane.pinned_like(source) for _ in self._filled]
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        before = self._filled.pop(0)
        if before is not None:
            before.synchronize()
        buffer.copy_(source)
        finish, done = self._start(batch, lambda: buffer.to(self._device, non_blocking=True, copy=True))
        self._filled.append(done)
        return Copied(finish, None)

    def _start(self, batch: Batch, pixels: Callable[[], torch.Tensor]) -> tuple[Callable[[], TensorBatch], Event]:
        """Queue the copies; returns what finishes them, and the event that says that they are done."""
        sides = [None if side is None else torch.from_numpy(side) for side in (batch.labels, batch.mask)]
        sources = [None if side is None else self._lane.pinned_like(side).copy_(side) for side in sides]

        def make() -> list[torch.Tensor | None]:
            moved = [None if side is None else side.to(self._device, non_blocking=True, copy=True) for side in sources]
            return [pixels(), *moved]

        made, done = self._lane.copy(make)

        def finish() -> TensorBatch:
            self._lane.hand_over([tensor for tensor in made if tensor is not None], done)
            images, labels, mask = made
            assert images is not None and mask is not None
            return TensorBatch(images, labels, mask, batch)

        return finish, done


class CudaLane:
    """The real one. Never run on a GPU (docs/gpu.md)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, make: Callable[[], T]) -> tuple[T, Event]:
        """See Lane."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device), torch.cuda.stream(self._copies):
            made = make()
            done.record(self._copies)
        return made, done

    def hand_over(self, tensors: Sequence[torch.Tensor], done: Event) -> None:
        """See Lane."""
        current = torch.cuda.current_stream(self._device)
        assert isinstance(done, torch.cuda.Event)
        current.wait_event(done)
        for tensor in tensors:
            tensor.record_stream(current)

    def mark(self) -> Event:
        """See Lane."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Lane."""
        return torch.empty_like(tensor, pin_memory=True)
