"""What an image file is, told from its content alone: format, size, orientation, colour, and whether it is whole.

Pure and bounded: no byte is decoded, nothing is allocated by the sizes that a file claims, no input raises, and the work is at
most proportional to the file (a few microseconds for a photo). File names are never looked at. The rules are in
docs/decode_contract.md.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.headers.containers import parse_avif, parse_bmp, parse_gif, parse_png, parse_webp
from headrace.core.headers.jpeg import parse_jpeg
from headrace.core.headers.record import HeaderError, ImageHeader
from headrace.core.headers.tiff import parse_tiff
from headrace.core.pipeline_spec import Decode

__all__ = ["PARSERS", "ImageHeader", "check", "read_header", "sniff"]

PARSERS: dict[str, Callable[[bytes], ImageHeader]] = {
    "jpeg": parse_jpeg,
    "png": parse_png,
    "webp": parse_webp,
    "gif": parse_gif,
    "bmp": parse_bmp,
    "tiff": parse_tiff,
    "avif": parse_avif,
}
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "bigtiff"),
    (b"MM\0+", "bigtiff"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    (b"\xff\x0a", "jpegxl"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "jpegxl"),
    (b"8BPS", "psd"),
)
_AVIF_BRANDS = {b"avif", b"avis"}
_HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}


def sniff(data: bytes) -> str:
    """Name of the format that the first bytes show, empty if none does."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        end = min(int.from_bytes(data[:4], "big"), 256)
        brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
        if brands & _AVIF_BRANDS:
            return "avif"
        if brands & _HEIC_BRANDS:
            return "heic"
    return ""


def read_header(data: bytes) -> ImageHeader:
    """Read an image's header. Never raises: what cannot be used has a `reason` of core.batch.BAD_REASONS and a `detail`."""
    if not data:
        return ImageHeader(reason="empty", detail="no bytes")
    name = sniff(data)
    if not name:
        return ImageHeader(reason="unknown_format", detail=f"no image format begins with {data[:8].hex()}")
    parse = PARSERS.get(name)
    if parse is None:
        return ImageHeader(format=name, reason="unsupported", detail=f"{name} is not decoded: convert it to JPEG, PNG or WebP")
    try:
        return parse(data)
    except HeaderError as error:
        return ImageHeader(format=name, reason=error.reason, detail=error.detail)


def check(header: ImageHeader, decode: Decode) -> str:
    """Reason for which the header alone makes the sample bad under these rules, `none` if it doesn't.

    Sizes come before completeness, so that a huge image is too_large wherever it was cut. Only JPEG can be decoded though cut.
    """
    if header.reason != "none":
        return header.reason
    if header.width * header.height > decode.max_pixels:
        return "too_large"
    if not header.complete and not (decode.tolerate_truncated and header.format == "jpeg"):
        return "truncated"
    return "none"
