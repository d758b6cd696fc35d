"""JPEG markers up to the first scan, and whether the data reach an end-of-image marker. ITU-T T.81, annex B."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.headers.record import MAX_ITEMS, HeaderError, ImageHeader
from headrace.core.headers.tiff import exif_orientation

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_APP0, _APP1, _APP14 = 0xE0, 0xE1, 0xEE
_DECODED = {0xC0: False, 0xC1: False, 0xC2: True}  # baseline, extended, progressive Huffman: is it progressive
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_READ = _FRAMES | {_APP0, _APP1, _APP14}
_STANDALONE = {0x01, *range(0xD0, 0xD8)}


@dataclass(slots=True)
class _Seen:
    """What the segments said so far."""

    frame: int = 0
    width: int = 0
    height: int = 0
    precision: int = 8
    ids: bytes = b""
    sampling: tuple[tuple[int, int], ...] = ()
    jfif: bool = False
    jfif_major_at: int = 0
    adobe: int = -1
    orientation: int = 0


def parse_jpeg(data: bytes) -> ImageHeader:
    """Header of a JPEG whose first two bytes are SOI."""
    seen = _Seen()
    at = 2
    for _ in range(MAX_ITEMS):
        at, marker = _next_marker(data, at)
        if marker in _STANDALONE:
            continue
        if marker in (_SOI, _EOI):
            raise HeaderError("corrupt", f"marker {marker:#x} before the image")
        end = at + int.from_bytes(data[at : at + 2], "big")
        if end > len(data) or at + 2 > len(data):
            raise HeaderError("truncated", "the data end within the JPEG header")
        if end < at + 2:
            raise HeaderError("corrupt", "a JPEG segment of negative length")
        if marker == _SOS:
            return _header(data, end, seen)
        if marker in _READ:
            _segment(data[at + 2 : end], marker, at + 2, seen)
        at = end
    raise HeaderError("corrupt", "too many JPEG segments")


def _next_marker(data: bytes, at: int) -> tuple[int, int]:
    """(position after the next marker, its code). Skips bytes between segments, as libjpeg does (with a warning)."""
    if data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] not in (b"\xff", b"\0", b""):
        return at + 2, data[at + 1]
    at = data.find(b"\xff", at)
    while at >= 0:
        end = at + 1
        while end < len(data) and data[end] == 0xFF:
            end += 1
        if end >= len(data):
            break
        if data[end]:
            return end + 1, data[end]
        at = data.find(b"\xff", end)
    raise HeaderError("truncated", "the data end within the JPEG header")


def _segment(body: bytes, marker: int, at: int, seen: _Seen) -> None:
    if marker in _FRAMES:
        if seen.frame:
            raise HeaderError("corrupt", "two frames in one JPEG")
        _frame(body, marker, seen)
    elif marker == _APP0 and body[:5] == b"JFIF\0" and len(body) >= 14:
        seen.jfif = True
        if body[5] not in (1, 2):
            seen.jfif_major_at = at + 5
    elif marker == _APP14 and body[:5] == b"Adobe" and len(body) >= 12:
        seen.adobe = body[11]
    elif marker == _APP1 and body[:6] == b"Exif\0\0" and not seen.orientation:
        seen.orientation = exif_orientation(body)


def _frame(body: bytes, marker: int, seen: _Seen) -> None:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise HeaderError("corrupt", "a short JPEG frame header")
    seen.frame = marker
    seen.precision = body[0]
    seen.height, seen.width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    end = 6 + 3 * body[5]
    seen.ids = body[6:end:3]
    seen.sampling = tuple([(factors >> 4, factors & 15) for factors in body[7:end:3]])


def _header(data: bytes, scan: int, seen: _Seen) -> ImageHeader:
    """The record, once the scan that begins at `scan` was reached."""
    if not seen.frame:
        raise HeaderError("corrupt", "a JPEG scan without a frame")
    components = len(seen.ids)
    if seen.frame not in _DECODED or seen.precision != 8 or components not in (1, 3, 4) or not seen.height:
        raise HeaderError(
            "unsupported",
            f"a JPEG of frame type {seen.frame:#x}, {seen.precision} bits, {components} components, height {seen.height}",
        )
    if not seen.width or not all(1 <= x <= 4 and 1 <= y <= 4 for x, y in seen.sampling):
        raise HeaderError("corrupt", "a JPEG frame with impossible numbers")
    return ImageHeader(
        format="jpeg",
        width=seen.width,
        height=seen.height,
        orientation=seen.orientation or 1,
        components=components,
        color=_color(seen),
        progressive=_DECODED[seen.frame],
        # Within a scan 0xFF is followed by 0 or a restart marker, so these two bytes can only be the end of an image.
        complete=data.rfind(b"\xff\xd9", scan) >= 0,
        sampling=seen.sampling,
        jfif_major_at=seen.jfif_major_at,
    )


def _color(seen: _Seen) -> str:
    """The colour space, by the rules that libjpeg goes by."""
    if len(seen.ids) == 1:
        return "gray"
    if len(seen.ids) == 4:
        return "ycck" if seen.adobe == 2 else "cmyk"
    if seen.jfif:
        return "ycbcr"
    if seen.adobe >= 0:
        return "rgb" if seen.adobe == 0 else "ycbcr"
    return "rgb" if seen.ids == b"RGB" else "ycbcr"
