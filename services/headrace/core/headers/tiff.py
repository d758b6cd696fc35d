"""TIFF's first directory, and the EXIF orientation, which is stored as one. Layout: TIFF 6.0, sections 2 and 8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.headers.record import HeaderError, ImageHeader, need, unpack

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
STRIP_OFFSETS, ORIENTATION, CHANNELS, STRIP_BYTES = 273, 274, 277, 279
TILE_OFFSETS, TILE_BYTES = 324, 325
_ITEM_BYTES = {1: 1, 3: 2, 4: 4}  # BYTE, SHORT, LONG: all that these tags use
_COLORS = {0: "gray", 1: "gray", 2: "rgb", 3: "palette", 5: "cmyk", 6: "ycbcr", 8: "lab"}
MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class _Directory:
    """Entries of a directory: tag -> (type, count, offset of the values)."""

    data: bytes
    order: str
    entries: dict[int, tuple[int, int, int]]

    def numbers(self, tag: int) -> list[int]:
        """The tag's whole numbers; empty if it is missing, of another type, or outside the data."""
        kind, count, at = self.entries.get(tag, (0, 0, 0))
        size = _ITEM_BYTES.get(kind, 0)
        if not size or not count or at + count * size > len(self.data):
            return []
        values = np.frombuffer(self.data, np.dtype(f"{self.order}u{size}"), count, at)
        return [int(value) for value in values]

    def number(self, tag: int, default: int) -> int:
        """The tag's first number."""
        kind, count, at = self.entries.get(tag, (0, 0, 0))
        size = _ITEM_BYTES.get(kind, 0)
        if not size or not count or at + size > len(self.data):
            return default
        return int.from_bytes(self.data[at : at + size], "little" if self.order == "<" else "big")


def _read_directory(data: bytes) -> _Directory:
    """The first directory of a TIFF structure that begins at byte 0."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise HeaderError("corrupt", "not a TIFF structure")
    magic, at = unpack(f"{order}HI", data, 2, "TIFF header")
    if magic != 42:
        raise HeaderError("unsupported", "BigTIFF is not read")
    (count,) = unpack(f"{order}H", data, at, "TIFF directory")
    if count > MAX_ENTRIES:
        raise HeaderError("corrupt", f"a TIFF directory of {count} entries")
    need(data, at + 2 + 12 * count, "TIFF directory")
    entries: dict[int, tuple[int, int, int]] = {}
    for i in range(count):
        entry = at + 2 + 12 * i
        tag, kind, items = unpack(f"{order}HHI", data, entry, "TIFF directory")
        inline = _ITEM_BYTES.get(kind, 8) * items <= 4
        place = entry + 8 if inline else unpack(f"{order}I", data, entry + 8, "TIFF directory")[0]
        entries.setdefault(tag, (kind, items, place))
    return _Directory(data, order, entries)


def exif_orientation(exif: bytes) -> int:
    """The orientation in an EXIF block, 1 if there is none or the block is damaged: metadata never makes a sample bad."""
    if exif[:6] == b"Exif\0\0":
        exif = exif[6:]
    try:
        value = _read_directory(exif).number(ORIENTATION, 1)
    except HeaderError:
        return 1
    return value if 1 <= value <= 8 else 1


def parse_tiff(data: bytes) -> ImageHeader:
    """The first page of a TIFF file."""
    directory = _read_directory(data)
    width, height = directory.number(WIDTH, 0), directory.number(HEIGHT, 0)
    if not width or not height:
        raise HeaderError("corrupt", "a TIFF without a size")
    orientation = directory.number(ORIENTATION, 1)
    tiled = TILE_OFFSETS in directory.entries
    offsets = directory.numbers(TILE_OFFSETS if tiled else STRIP_OFFSETS)
    lengths = directory.numbers(TILE_BYTES if tiled else STRIP_BYTES)
    ends = [offset + length for offset, length in zip(offsets, lengths, strict=False)]
    return ImageHeader(
        format="tiff",
        width=width,
        height=height,
        orientation=orientation if 1 <= orientation <= 8 else 1,
        components=directory.number(CHANNELS, 1),
        bit_depth=directory.number(BITS, 1),
        color=_COLORS.get(directory.number(PHOTOMETRIC, 1), ""),
        complete=bool(ends) and max(ends) <= len(data),
    )
