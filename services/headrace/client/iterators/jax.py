"""Batches as jax arrays.

jax arrays never change, so pixels are copied once out of the slot, into memory that jax then owns by DLPack without a
second copy (on the CPU; other devices copy it to themselves). Pixels that a worker left on the trainer's GPU (cuda_ipc) are
copied there, and the copy is waited for before the slot goes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from headrace.client.batch import Batch
from headrace.client.device_pixels import DevicePixels
from headrace.client.stream import Stream


@dataclass(frozen=True, slots=True)
class ArrayBatch:
    """A batch on a device.

    pixels: in the job's layout and dtype. labels: int32[B] (int64 where jax_enable_x64 is on), uint8[B, C], or None for JSON
    labels (see `batch.label_json`). mask: bool[B], False where padded. batch: ids, keys, epoch, step, ...
    """

    pixels: jax.Array
    labels: jax.Array | None
    mask: jax.Array
    batch: Batch


def as_arrays(stream: Stream, device: Any = None) -> Iterator[ArrayBatch]:
    """The rest of the stream's epoch on a jax device (jax.devices()[n]) or sharding; None is jax's default device.

    Raises what `next()` of the stream raises.
    """
    gpu = _gpu_of(device)
    if gpu is not None:
        stream.prefer_gpu(gpu)
    return map(partial(_arrays, device=device), stream)  # a generator would be over after an error of the stream


def _arrays(batch: Batch, device: Any) -> ArrayBatch:
    labels = None if batch.labels is None else jnp.asarray(batch.labels)
    on_device = batch.on_device
    image = array_of(batch.pixels, batch.dtype) if on_device is None else own_copy(on_device)
    arrays = (image, labels, jnp.asarray(batch.mask))
    pixels, labels, mask = jax.device_put(arrays, device) if device is not None else arrays
    return ArrayBatch(pixels, labels, mask, batch)


def _gpu_of(device: Any) -> int | None:
    """The ordinal of a CUDA device; None for others, and for shardings, which have several."""
    found = jax.devices()[0] if device is None else device
    return getattr(found, "local_hardware_id", None) if getattr(found, "platform", "") in ("gpu", "cuda") else None


def own_copy(pixels: DevicePixels) -> jax.Array:
    """A jax array of pixels on a device: one copy there, which is over when this returns, so that the slot may go back."""
    lent: jax.Array = jax.dlpack.from_dlpack(pixels)
    copy: jax.Array = jnp.array(lent, copy=True)
    return copy.block_until_ready()


def array_of(array: NDArray[Any], dtype: str) -> jax.Array:
    """A jax array of an array of one of the pipeline's dtypes; copies once. numpy cannot lend bfloat16, so its bits go."""
    if dtype == "bfloat16":
        return jax.lax.bitcast_convert_type(_owned(array.view(np.uint16)), jnp.bfloat16)
    return _owned(array)


def _owned(array: NDArray[Any]) -> jax.Array:
    lent: jax.Array = jax.dlpack.from_dlpack(array.copy())
    return lent
