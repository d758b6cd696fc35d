"""Writing finished pixels into a slot, in the output's dtype and layout."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError
from headrace.core.pipeline_spec import Output, PipelineSpec
from headrace.worker.engines.pixels import Pixels, copy_pixels

# Elements of a slot: bfloat16 has no numpy dtype and is handled as its bits.
SlotArray: TypeAlias = NDArray[Any]
_DTYPES: dict[str, type[np.generic]] = {"uint8": np.uint8, "float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}


class Writer:
    """Writes rows of one spec's batches. Immutable: any thread.

    A float output is a function of 256 levels and 3 channels, so it is a table, computed in float64 and rounded once to the
    output's dtype (bfloat16: by way of float32): the exact value for every level.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._planar = spec.output.layout == "NCHW"
        self._tables = tables(spec.output)

    def view(self, out: memoryview, rows: int) -> SlotArray:
        """The slot's pixels as an array in spec.shape(rows). Raises HeadraceError if the slot isn't of that size."""
        if out.nbytes != self._spec.pixel_bytes(rows) or out.readonly:
            raise HeadraceError(f"{rows} rows need a writable slot of {self._spec.pixel_bytes(rows)} bytes, not {out.nbytes}")
        return np.frombuffer(out, _DTYPES[self._spec.output.dtype]).reshape(self._spec.shape(rows))

    def write(self, pixels: Pixels, row: SlotArray) -> None:
        """Write uint8[H, W, 3] of any strides into a row of the slot."""
        target = row.transpose(1, 2, 0) if self._planar else row
        if self._tables is not None:
            for channel in range(3):
                # A byte cannot be out of the table's bounds: `clip` only spares the check.
                target[..., channel] = np.take(self._tables[channel], pixels[..., channel], mode="clip")
        else:
            copy_pixels(pixels, target)


def tables(output: Output) -> list[SlotArray] | None:
    """Per channel what the 256 levels become, in the slot's dtype; None where they stay as they are."""
    if output.dtype == "uint8":
        return None
    values = np.arange(256, dtype=np.float64) / 255
    means, stds = (output.normalize.mean, output.normalize.std) if output.normalize else ((0.0,) * 3, (1.0,) * 3)
    exact = [(values - mean) / std for mean, std in zip(means, stds, strict=True)]
    if output.dtype == "bfloat16":
        return [_bfloat16_bits(table.astype(np.float32)) for table in exact]
    return [table.astype(_DTYPES[output.dtype]) for table in exact]


def _bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of float32, rounded half to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
