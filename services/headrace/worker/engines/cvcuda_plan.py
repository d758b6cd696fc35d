"""What CV-CUDA is told to do with a batch, as numbers: no GPU is needed to work it out, or to test it.

First call, for rows that are scaled: the antialiased resize of each row's cut. A cut is a view of the decoded image, so that
the filter never sees pixels outside of it. Second call, for all rows: window, flips, normalisation, cast and layout, into
the slot.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.pipeline_spec import ITEM_BYTES, Output
from headrace.worker.engines.rows import Rows

# CV-CUDA's flip codes: 0 top and bottom, 1 left and right, -1 both; any other is none.
FLIP_BOTH, FLIP_ROWS, FLIP_COLUMNS, FLIP_NONE = -1, 0, 1, 2
# Device pointers are kept to multiples of this, as cudaMalloc's are.
ALIGN = 256


@dataclass(frozen=True, slots=True)
class Target:
    """How the second call writes a batch.

    dtype: numpy's name. layout: NHWC or NCHW. base, scale: float32[3]; a value x of 0 to 255 becomes (x - base) * scale.
    by_host: it is uint8 NHWC, and the host makes the slot's format of it.
    """

    dtype: str
    layout: str
    base: NDArray[np.float32]
    scale: NDArray[np.float32]
    by_host: bool

    def shape(self, size: tuple[int, int], count: int) -> tuple[int, int, int, int]:
        """Of `count` images of (height, width)."""
        return (count, *size, 3) if self.layout == "NHWC" else (count, 3, *size)

    def nbytes(self, size: tuple[int, int], count: int) -> int:
        """Of `count` images of (height, width)."""
        return count * size[0] * size[1] * 3 * ITEM_BYTES[self.dtype]


def target_of(output: Output, by_host: bool = False) -> Target:
    """How a batch of this output is written. by_host: the host goes on with the pixels, whatever the format."""
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    if by_host or output.dtype in ("uint8", "bfloat16"):
        by_host = by_host or output.dtype == "bfloat16"
        return Target("uint8", "NHWC" if by_host else output.layout, zero, one, by_host)
    means, stds = (output.normalize.mean, output.normalize.std) if output.normalize else ((0.0,) * 3, (1.0,) * 3)
    base = np.array([255.0 * mean for mean in means]).astype(np.float32)
    scale = np.array([1.0 / (255.0 * std) for std in stds]).astype(np.float32)
    return Target(output.dtype, output.layout, base, scale, by_host=False)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """Of B rows; decoded images are as stored, before EXIF orientation.

    cuts: int64[B, 4], y, x, height, width of the decoded image. sizes: int64[B, 2], height, width that the cut is scaled to.
    scaled: bool[B], whether that is another size. windows: int32[B, 4], x, y, width, height of the scaled cut. flips: int32[B].
    Rows that were made by the host are not cut, scaled or flipped again.
    """

    cuts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    scaled: NDArray[np.bool_]
    windows: NDArray[np.int32]
    flips: NDArray[np.int32]

    @property
    def scaled_rows(self) -> list[int]:
        """Rows of the first call, in order."""
        return np.flatnonzero(self.scaled).tolist()

    def places_of_scaled(self) -> tuple[dict[int, int], int]:
        """(row -> offset of its scaled cut in one buffer, that buffer's bytes)."""
        offsets: dict[int, int] = {}
        end = 0
        for row in self.scaled_rows:
            offsets[row] = end
            end += -(-3 * int(self.sizes[row].prod()) // ALIGN) * ALIGN
        return offsets, end


def plan(rows: Rows, size: tuple[int, int], decoded: Collection[int], cut_already: Collection[int] = ()) -> GpuPlan:
    """The plan of a batch.

    size: (height, width) of the spec's images. decoded: rows that have a decoded image; cut_already: those of them whose image
    is no more than their cut.
    """
    count = len(rows.samples)
    height, width = size
    cuts = np.tile(np.array([0, 0, height, width], np.int64), (count, 1))
    sizes = np.tile(np.array([height, width], np.int64), (count, 1))
    windows = np.tile(np.array([0, 0, width, height], np.int32), (count, 1))
    flips = np.full(count, FLIP_NONE, np.int32)
    for row in decoded:
        cuts[row], sizes[row], windows[row], flips[row] = _decoded_row(rows, row, size)
        if row in cut_already:
            cuts[row, :2] = 0
    return GpuPlan(cuts, sizes, (cuts[:, 2:] != sizes).any(axis=1), windows, flips)


def _decoded_row(rows: Rows, row: int, size: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...], int]:
    """(cut, size, window, flip) of one row, in the coordinates of the image as it is stored."""
    probe = rows.probes[row]
    assert probe is not None
    assert rows.geometry is not None
    y, x, height, width, to_height, to_width, window_y, window_x, mirror, flip = rows.geometry.numbers[row].tolist()
    # Orientations 1 to 4 are mirrorings: of what is cut out there, cut the mirrored place here, and mirror it back at the end.
    if probe.header.orientation in (2, 3):
        x = probe.header.width - x - width
        window_x = to_width - window_x - size[1]
        mirror = not mirror
    if probe.header.orientation in (3, 4):
        y = probe.header.height - y - height
        window_y = to_height - window_y - size[0]
        flip = not flip
    code = {(False, False): FLIP_NONE, (True, False): FLIP_COLUMNS, (False, True): FLIP_ROWS, (True, True): FLIP_BOTH}
    window = (window_x, window_y, size[1], size[0])
    return (y, x, height, width), (to_height, to_width), window, code[bool(mirror), bool(flip)]
