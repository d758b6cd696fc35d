"""Headers of PNG, WebP, GIF, BMP and AVIF."""

from __future__ import annotations

from headrace.core.headers.record import MAX_ITEMS, HeaderError, ImageHeader, need, unpack
from headrace.core.headers.tiff import exif_orientation

_PNG_COLORS = {0: ("gray", 1), 2: ("rgb", 3), 3: ("palette", 1), 4: ("gray", 2), 6: ("rgb", 4)}
_PNG_DEPTHS = (1, 2, 4, 8, 16)


def parse_png(data: bytes) -> ImageHeader:
    """PNG: the header chunk, then a walk over the chunks for the orientation and the end."""
    width, height, depth, color = unpack(">IIBB", data, 16, "PNG header")
    if data[12:16] != b"IHDR" or color not in _PNG_COLORS or depth not in _PNG_DEPTHS or not width or not height:
        raise HeaderError("corrupt", "a PNG header with impossible numbers")
    name, components = _PNG_COLORS[color]
    orientation, complete = _walk_png(data)
    return ImageHeader(
        format="png",
        width=width,
        height=height,
        orientation=orientation,
        components=components,
        bit_depth=depth,
        color=name,
        complete=complete,
    )


def _walk_png(data: bytes) -> tuple[int, bool]:
    """(orientation, whether the end chunk is there whole)."""
    at, orientation = 8, 1
    for _ in range(MAX_ITEMS):
        if at + 12 > len(data):
            return orientation, False
        length = int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        end = at + 12 + length
        if kind == b"IEND":
            return orientation, end <= len(data)
        if kind == b"eXIf" and end <= len(data):
            orientation = exif_orientation(data[at + 8 : end - 4])
        at = end
    return orientation, data.rfind(b"IEND", at) >= 0


def parse_webp(data: bytes) -> ImageHeader:
    """WebP: lossy, lossless or extended."""
    (riff,) = unpack("<I", data, 4, "WebP header")
    need(data, 30, "WebP header")
    kind = data[12:16]
    orientation, components = 1, 3
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        components = 4 if data[20] & 0x10 else 3
        orientation = _webp_orientation(data) if data[20] & 0x08 else 1
    elif kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        components = 4 if bits >> 28 & 1 else 3
    elif kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in unpack("<HH", data, 26, "WebP header"))
    else:
        raise HeaderError("corrupt", "a WebP file without an image")
    if not width or not height:
        raise HeaderError("corrupt", "a WebP file without a size")
    return ImageHeader(
        format="webp",
        width=width,
        height=height,
        orientation=orientation,
        components=components,
        color="rgb",
        complete=len(data) >= riff + 8,
    )


def _webp_orientation(data: bytes) -> int:
    at = 12
    for _ in range(MAX_ITEMS):
        if at + 8 > len(data):
            return 1
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            return exif_orientation(data[at + 8 : at + 8 + length])
        at += 8 + length + (length & 1)
    return 1


def parse_gif(data: bytes) -> ImageHeader:
    """GIF: the screen, and a walk to the end of the first frame, the only one that is decoded."""
    width, height, flags = unpack("<HHB", data, 6, "GIF header")
    at = 13 + _gif_table_bytes(flags)
    for _ in range(MAX_ITEMS):
        need(data, at + 1, "GIF header")
        kind = data[at]
        if kind == 0x2C:
            left, top, frame_width, frame_height, flags = unpack("<HHHHB", data, at + 1, "GIF frame")
            # A frame may reach over the screen's edge; the canvas is then larger.
            width, height = max(width, left + frame_width), max(height, top + frame_height)
            if not width or not height:
                raise HeaderError("corrupt", "a GIF without a size")
            end = _gif_blocks_end(data, at + 11 + _gif_table_bytes(flags))
            return ImageHeader(
                format="gif", width=width, height=height, components=1, color="palette", complete=0 <= end <= len(data)
            )
        if kind != 0x21:
            raise HeaderError("corrupt", "a GIF without a frame")
        at = _gif_blocks_end(data, at + 2)
        if at < 0:
            raise HeaderError("truncated", "the data end within a GIF extension")
    raise HeaderError("corrupt", "too many GIF extensions")


def _gif_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _gif_blocks_end(data: bytes, at: int) -> int:
    """Position after a chain of sub-blocks, -1 if the data end first. Each step moves on, so it ends."""
    while at < len(data):
        size = data[at]
        at += 1 + size
        if not size:
            return at
    return -1


def parse_bmp(data: bytes) -> ImageHeader:
    """BMP: the core header or any of the later ones."""
    pixels, size = unpack("<II", data, 10, "BMP header")
    if size == 12:
        width, height, _, bits = unpack("<HHHH", data, 18, "BMP header")
        compression = 0
    elif size >= 40:
        width, height, _, bits, compression = unpack("<iiHHI", data, 18, "BMP header")
    else:
        raise HeaderError("corrupt", f"a BMP header of {size} bytes")
    height = abs(height)
    if width <= 0 or not height or bits not in (1, 2, 4, 8, 16, 24, 32):
        raise HeaderError("corrupt", "a BMP header with impossible numbers")
    packed = compression in (0, 3, 6)
    row_bytes = (width * bits + 31) // 32 * 4
    return ImageHeader(
        format="bmp",
        width=width,
        height=height,
        components=max(1, bits // 8),
        color="palette" if bits <= 8 else "rgb",
        complete=not packed or pixels + row_bytes * height <= len(data),
    )


def parse_avif(data: bytes) -> ImageHeader:
    """AVIF: the largest size that its metadata name.

    That is the image's own, or its canvas where it is made of tiles. Rotation is a property that the decoder reports: see
    worker.engines.pixels.
    """
    at, largest = data.find(b"ispe"), (0, 0)
    for _ in range(256):
        if at < 0:
            break
        if at + 16 <= len(data):
            width, height = unpack(">II", data, at + 8, "AVIF header")
            largest = max(largest, (width, height), key=lambda size: size[0] * size[1])
        at = data.find(b"ispe", at + 4)
    if not all(largest):
        raise HeaderError("truncated", "an AVIF file without a size")
    return ImageHeader(
        format="avif", width=largest[0], height=largest[1], components=3, color="ycbcr", complete=_boxes_complete(data)
    )


def _boxes_complete(data: bytes) -> bool:
    """Whether the top-level boxes end within the data."""
    at = 0
    for _ in range(MAX_ITEMS):
        if at + 8 > len(data):
            return at == len(data)
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:
            return size == 0
        at += size
    return True
