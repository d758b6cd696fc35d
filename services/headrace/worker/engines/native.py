"""The native core: libheadrace_native (native/*.c), called by ctypes, which releases the GIL for each call.

It decodes JPEG with the libjpeg-turbo that Pillow is linked with: one libjpeg in the process, its version known and in the
fingerprint, nothing to install. Where the library was not built, or Pillow's libjpeg cannot be had or used, `load` says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import _imaging, features

from headrace.core.errors import HeadraceError
from headrace.core.image_header import ImageHeader
from headrace.worker.engines.pixels import Pixels, contiguous, is_turbo

ABI = 1
# Raise when a change of native/*.c can change a pixel.
VERSION = 1
ISAS = ("scalar", "sse41", "avx2")
OK, CORRUPT, NO_MEMORY, BAD_ARGUMENT = range(4)

LIBRARY = Path(__file__).with_name("libheadrace_native.so.1")
_JPEG_FUNCTIONS = (
    "jpeg_std_error",
    "jpeg_CreateDecompress",
    "jpeg_destroy_decompress",
    "jpeg_mem_src",
    "jpeg_read_header",
    "jpeg_start_decompress",
    "jpeg_crop_scanline",
    "jpeg_skip_scanlines",
    "jpeg_read_scanlines",
    "jpeg_finish_decompress",
)
# Columns of a row's numbers, as in hn_row.
COLUMNS = (
    "data_bytes",
    "width",
    "height",
    "orientation",
    "box_y",
    "box_x",
    "box_height",
    "box_width",
    "size_height",
    "size_width",
    "window_y",
    "window_x",
    "mirror",
    "flip",
    "place",
)


class _Output(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class NativeMissing(Exception):
    """There is no native core to be had; its text says why. Internal to the engines."""


def takes(header: ImageHeader) -> bool:
    """Whether the core decodes this image: a whole JPEG of gray, RGB or YCbCr, of a usual sampling."""
    return header.complete and header.components != 4 and is_turbo(header)


@dataclass(frozen=True, slots=True)
class NativeCore:
    """The library's functions. Any thread. isa: which of ISAS is used; all give the same bits."""

    isa: str
    _library: ctypes.CDLL
    _libjpeg: ctypes.Array[ctypes.c_void_p]

    def versions(self) -> str:
        """For the fingerprint. The libjpeg is Pillow's, which pixels.versions names; no instruction set."""
        return f"native={VERSION}"

    def rows(
        self, data: Sequence[bytes], numbers: NDArray[np.int64], out: Pixels
    ) -> tuple[NDArray[np.int32], tuple[float, float]]:
        """Decode, cut, scale and mirror images into rows of `out`.

        data: B encoded images. numbers: int64[B, len(COLUMNS)]. out: uint8[rows, H, W, 3], C-contiguous and writable.
        Returns int32[B] of OK, CORRUPT, NO_MEMORY, BAD_ARGUMENT, and the thread-seconds of (decode, the rest).
        """
        count = len(data)
        numbers = np.ascontiguousarray(numbers, np.int64)
        if numbers.shape != (count, len(COLUMNS)) or out.dtype != np.uint8 or out.ndim != 4 or out.shape[3] != 3:
            raise HeadraceError(f"{count} rows don't fit numbers {numbers.shape} and output {out.dtype}{out.shape}")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise HeadraceError("the output must be contiguous and writable")
        status = np.full(count, BAD_ARGUMENT, np.int32)
        cpu_ns = np.zeros(2, np.int64)
        self._library.hn_rows(
            self._libjpeg,
            ISAS.index(self.isa),
            (ctypes.c_char_p * count)(*data),
            numbers.ctypes.data,
            count,
            ctypes.byref(_Output(out.ctypes.data, *out.shape[:3])),
            status.ctypes.data,
            cpu_ns.ctypes.data,
        )
        return status, (int(cpu_ns[0]) * 1e-9, int(cpu_ns[1]) * 1e-9)

    def decode(
        self, data: bytes, size: tuple[int, int], region: tuple[int, int, int, int], strict: bool = True
    ) -> Pixels | None:
        """uint8[height, width, 3] of the region (y, x, height, width) of a stored image of that size; None if it is damaged.

        For tests and measurements. strict: see damage below the region, too, as `rows` does.
        """
        out = np.empty((*region[2:], 3), np.uint8)
        sides, box = (ctypes.c_int64 * 2)(*size), (ctypes.c_int64 * 4)(*region)
        status = self._library.hn_decode(self._libjpeg, data, len(data), sides, box, strict, out.ctypes.data)
        if status not in (OK, CORRUPT):
            raise HeadraceError(f"the native core cannot decode region {region} of {size}: status {status}")
        return out if status == OK else None

    def undamaged(self, data: bytes, size: tuple[int, int]) -> bool:
        """Whether libjpeg has nothing to say of an image that `takes` takes: its entropy code is read to the end, next to
        nothing of it is transformed. size: stored (height, width). For decoders that pass over damage.
        """
        out = np.empty((1, 1, 3), np.uint8)
        sides, box = (ctypes.c_int64 * 2)(*size), (ctypes.c_int64 * 4)(0, 0, 1, 1)
        status = self._library.hn_decode(self._libjpeg, data, len(data), sides, box, True, out.ctypes.data)
        if status == NO_MEMORY:
            raise MemoryError("the native core found no memory")
        return bool(status == OK)

    def resize(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """Scale uint8[h, w, 3] of any strides to uint8[height, width, 3]. The same array where nothing changes."""
        if pixels.shape[:2] == (height, width):
            return pixels
        if pixels.strides[1:] != (3, 1) or pixels.strides[0] < 3 * pixels.shape[1]:
            pixels = contiguous(pixels)
        out = np.empty((height, width, 3), np.uint8)
        rows, columns = pixels.shape[:2]
        status = self._library.hn_resize(
            ISAS.index(self.isa), pixels.ctypes.data, rows, columns, pixels.strides[0], out.ctypes.data, height, width
        )
        if status == NO_MEMORY:
            raise MemoryError("no memory for a resize")
        if status != OK:
            raise HeadraceError(f"the native core refused to scale {pixels.shape} to {height} by {width}")
        return out


@lru_cache(maxsize=8)
def load(isa: str = "") -> NativeCore:
    """The core with that instruction set, the best one here if none is named. Raises NativeMissing."""
    if not LIBRARY.exists():
        raise NativeMissing("it was not built: a C compiler or libjpeg's headers were missing when Headrace was installed")
    try:
        library = ctypes.CDLL(str(LIBRARY))
        # The handle of Pillow's extension finds what the extension is linked with.
        pillow = ctypes.CDLL(_imaging.__file__)
        libjpeg = (ctypes.c_void_p * len(_JPEG_FUNCTIONS))(
            *[ctypes.cast(getattr(pillow, name), ctypes.c_void_p) for name in _JPEG_FUNCTIONS]
        )
        abi = library.hn_abi()
    except (OSError, AttributeError) as error:
        raise NativeMissing(f"it could not be loaded: {error}") from error
    if abi != ABI:
        raise NativeMissing(f"it has interface {abi}, not {ABI}: install Headrace again")
    if not features.version("libjpeg_turbo") or library.hn_check_libjpeg(libjpeg) != OK:
        raise NativeMissing("Pillow's libjpeg is not a libjpeg-turbo of the 6.2 interface")
    best = library.hn_best_isa()
    if isa and ISAS.index(isa) > best:
        raise NativeMissing(f"this processor has no {isa}")
    _declare(library)
    return NativeCore(isa or ISAS[best], library, libjpeg)


def _declare(library: ctypes.CDLL) -> None:
    pointer, number, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.hn_rows.argtypes = (pointer, whole, pointer, pointer, number, pointer, pointer, pointer)
    library.hn_rows.restype = None
    library.hn_resize.argtypes = (whole, pointer, number, number, number, pointer, number, number)
    library.hn_decode.argtypes = (pointer, pointer, number, pointer, pointer, whole, pointer)
