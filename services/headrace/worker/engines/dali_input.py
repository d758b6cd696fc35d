"""What DALI is given of an image: the same pixels, with nothing in the header that it reads otherwise than Headrace does.

Of two EXIF blocks, or a damaged one, nvImageCodec makes another orientation than core.image_header; so the file that it gets
has one plain block with the orientation that the header's record says, or none. Pure.
"""

from __future__ import annotations

from headrace.core.image_header import ImageHeader
from headrace.worker.engines.pixels import with_known_jfif

_SOI, _SOS, _APP1 = 0xD8, 0xDA, 0xE1
_STANDALONE = {0x01, *range(0xD0, 0xD8)}
_EXIF = b"Exif\0\0"


def plain_jpeg(data: bytes, header: ImageHeader) -> bytes:
    """The JPEG with exactly header.orientation in its EXIF; the same object where it already is so. data: header's own."""
    data = with_known_jfif(data, header)
    if _EXIF not in data:
        return data
    parts = [data[:2], _exif(header.orientation)] if header.orientation != 1 else [data[:2]]
    kept = at = 2
    while (start := data.find(b"\xff", at)) >= 0:
        code = start + 1
        while data[code] == 0xFF:
            code += 1
        marker, at = data[code], code + 1
        if marker == _SOS:
            break
        if marker == 0 or marker in _STANDALONE:
            continue
        end = at + int.from_bytes(data[at : at + 2], "big")
        if marker == _APP1 and data.startswith(_EXIF, at + 2):
            parts.append(data[kept:start])
            kept = end
        at = end
    parts.append(data[kept:])
    return b"".join(parts)


def _exif(orientation: int) -> bytes:
    """An APP1 segment that holds an orientation alone: a big-endian TIFF of one directory with one entry."""
    body = _EXIF + b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation]) + b"\0\0\0\0\0\0"
    return b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
