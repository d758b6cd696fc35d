"""What a parser tells of an image."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Entries, chunks or segments that a parser looks at before it calls a header corrupt: far above any real file's.
MAX_ITEMS = 65_536


class HeaderError(Exception):
    """Internal to the parsers: why a header cannot be used (core.batch.BAD_REASONS). `read_header` makes a record of it."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What can be told of an image without decoding it.

    format: jpeg, png, webp, gif, bmp, tiff, avif, another name that is sniffed but not decoded, or empty. width, height: as
    stored, before orientation; 0 if unknown. orientation: EXIF, 1 to 8. components: channels as stored. bit_depth: bits a
    channel. color: gray, rgb, palette, ycbcr, cmyk, ycck, lab or empty. progressive: more than one scan. complete: False if
    the data surely end too early (True is no promise where that isn't cheap to see). reason: one of BAD_REASONS, none
    if the header is sound. detail: for the log. sampling: JPEG, (horizontal, vertical) factors a component. jfif_major_at:
    JPEG, where an unusual JFIF version stands, 0 if none: libjpeg warns of it, and that is no damage.
    """

    format: str = ""
    width: int = 0
    height: int = 0
    orientation: int = 1
    components: int = 0
    bit_depth: int = 8
    color: str = ""
    progressive: bool = False
    complete: bool = True
    reason: str = "none"
    detail: str = ""
    sampling: tuple[tuple[int, int], ...] = ()
    jfif_major_at: int = 0

    @property
    def oriented_size(self) -> tuple[int, int]:
        """(height, width) once the orientation is applied."""
        if self.orientation >= 5:
            return (self.width, self.height)
        return (self.height, self.width)


def need(data: bytes, end: int, what: str) -> None:
    """Raise HeaderError `truncated` if the data end before `end`."""
    if end > len(data):
        raise HeaderError("truncated", f"the data end within the {what}")


def unpack(layout: str, data: bytes, at: int, what: str) -> tuple[int, ...]:
    """struct.unpack_from that raises HeaderError `truncated` where the data end."""
    need(data, at + struct.calcsize(layout), what)
    numbers: tuple[int, ...] = struct.unpack_from(layout, data, at)
    return numbers
