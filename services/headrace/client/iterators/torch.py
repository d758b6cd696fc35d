"""Batches as torch tensors.

`as_tensors(stream)` goes over the rest of the epoch, as `for batch in stream` does. On the CPU pixels are copied once, into
a tensor of the trainer's own, since one that aliased the slot could be written to (in-place operations) and would change
under the trainer when the slot goes back; `zero_copy=True` takes that risk for a loop that only reads. For a CUDA device a
batch goes through a pinned buffer and is on its way to the device one batch ahead, on a stream of its own; that batch
counts as handed over, in `state_dict()` too, only when it is yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client.batch import Batch
from headrace.client.stream import Stream

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

    zero_copy: on the CPU, pixels alias the slot: writing to them kills the process, and once the next batch was asked for
    they hold another batch.
    Raises what `next()` of the stream raises.
    """
    target = torch.device(device)
    if target.type == "cuda":
        return ahead(stream, _CudaStager(target))
    if target.type == "cpu":
        return (_on_cpu(batch, zero_copy) for batch in stream)
    return (_moved(_on_cpu(batch, False), target) for batch in stream)


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
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=dtype, device=pixels.device).view(1, 3, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=pixels.device).view(1, 3, 1, 1)
    return torch.addcmul(shift, channels.to(dtype), scale)


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


def _moved(tensors: TensorBatch, target: torch.device) -> TensorBatch:
    labels = None if tensors.labels is None else tensors.labels.to(target)
    return TensorBatch(tensors.pixels.to(target), labels, tensors.mask.to(target), tensors.batch)


class Stager(Protocol):
    """Brings batches to a device in two parts, so that the next one travels while this one is computed on."""

    def begin(self, batch: Batch) -> Callable[[], TensorBatch]:
        """Read the batch's pixels out of the slot (before it returns) and start the copy; the answer finishes it."""
        ...


def ahead(stream: Stream, stager: Stager) -> Iterator[TensorBatch]:
    """Yields batch n while batch n + 1, if it has come already, is being copied."""
    following: Batch | None = None
    finish: Callable[[], TensorBatch] | None = None
    for batch in stream:
        if finish is None or following is not batch:
            finish = stager.begin(batch)
        tensors = finish()
        following = stream.stage_next()
        finish = stager.begin(following) if following is not None else None
        yield tensors


class _CudaStager:
    """Through two pinned buffers in turn and a copy stream: a buffer is filled again once its copy to the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: list[torch.Tensor] = []
        self._done: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def begin(self, batch: Batch) -> Callable[[], TensorBatch]:
        source = tensor_of(batch.pixels, batch.dtype, alias=True)
        if not self._pinned:
            self._pinned = [torch.empty_like(source, pin_memory=True) for _ in self._done]
        turn, self._turn = self._turn, 1 - self._turn
        before = self._done[turn]
        if before is not None:
            before.synchronize()
        self._pinned[turn].copy_(source)
        labels = None if batch.labels is None else torch.from_numpy(batch.labels).pin_memory()
        mask = torch.from_numpy(batch.mask).pin_memory()
        with torch.cuda.stream(self._copies):
            tensors = TensorBatch(
                self._pinned[turn].to(self._device, non_blocking=True),
                None if labels is None else labels.to(self._device, non_blocking=True),
                mask.to(self._device, non_blocking=True),
                batch,
            )
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._copies)
        self._done[turn] = done
        return lambda: self._finish(tensors, done)

    def _finish(self, tensors: TensorBatch, done: torch.cuda.Event) -> TensorBatch:
        """The trainer's stream waits for the copy; the allocator is told that it uses the memory."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        for tensor in (tensors.pixels, tensors.labels, tensors.mask):
            if tensor is not None:
                tensor.record_stream(current)
        return tensors
