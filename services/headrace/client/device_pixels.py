"""A batch's pixels on a GPU, in the slot that the worker filled: for torch, jax, cupy and all that read DLPack."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.client.dlpack import capsule
from headrace.core.errors import BatchReleased
from headrace.wire.device_memory import DeviceMemory

_CUDA = 2  # kDLCUDA
# numpy's names, for __cuda_array_interface__; bfloat16 has none there, so its bits go.
_TYPES = {"uint8": "|u1", "float16": "<f2", "float32": "<f4", "bfloat16": "<u2"}


class Lender(Protocol):
    """What the memory belongs to. lost: it must not be read any more. memory: of its GPU."""

    lost: bool
    memory: DeviceMemory


class DevicePixels:
    """Pixels on a GPU, C-contiguous in `shape`; valid as long as the batch's `pixels` would be.

    The worker has waited until all of them were there, so that any stream may read them at once. Whoever reads them must have
    finished, on the device, before the next batch is asked for: the iterators of torch and jax see to that.

    shape, dtype: of the pipeline. `torch.from_dlpack(pixels)`, `jax.dlpack.from_dlpack(pixels)` and `cupy.asarray(pixels)` make
    arrays over the same memory; writing there spoils this batch alone.
    """

    __slots__ = ("__weakref__", "_lender", "_pointer", "dtype", "nbytes", "shape")

    def __init__(self, lender: Lender, pointer: int, shape: tuple[int, int, int, int], dtype: str, nbytes: int) -> None:
        self._lender = lender
        self._pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes

    @property
    def pointer(self) -> int:
        """Device address. Raises BatchReleased where the worker's end took the memory with it (legacy handles)."""
        if self._lender.lost:
            raise BatchReleased(
                "the worker that made this batch is gone, and its GPU memory with it; go on with the next batch, or let the "
                "iterator copy (the default) instead of keeping a view"
            )
        return self._pointer

    @property
    def lost(self) -> bool:
        """True where the memory must not be read any more."""
        return self._lender.lost

    @property
    def stays(self) -> bool:
        """True where the memory stays readable when its worker dies."""
        return self._lender.memory.outlives_owner

    @property
    def gpu(self) -> int:
        """Ordinal of the GPU in this process."""
        return self._lender.memory.gpu

    def __getattr__(self, name: str) -> Any:
        # Only where it is true: libraries ask for the attribute to learn whether this is on a GPU.
        if name == "__cuda_array_interface__" and self.__dlpack_device__()[0] == _CUDA:
            return {
                "shape": self.shape,
                "typestr": _TYPES[self.dtype],
                "data": (self.pointer, False),
                "strides": None,
                "stream": None,  # all is there already
                "version": 3,
            }
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._lender.memory.dlpack_device

    def __dlpack__(self, *, stream: object = None, **_: object) -> Any:
        """The DLPack capsule; `stream` needs no wait, since all is there already."""
        return capsule(self, self.pointer, self.shape, self.dtype, self.__dlpack_device__())

    def to_host(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A copy in host memory. Raises TransportUnavailable, BatchReleased."""
        array = np.empty(self.shape, dtype)
        self._lender.memory.read(self.pointer, array.reshape(-1).view(np.uint8).data)
        return array
