"""Makers of images that a loader meets and must not stumble over, each from a photo or from nothing. For tests.

All take uint8[H, W, 3] pixels unless they need none, and return the bytes of a file.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def save(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """An image in a format of Pillow."""
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def jpeg(pixels: Pixels, **options: Any) -> bytes:
    """A plain JPEG; options as Pillow's: quality, subsampling (0, 1, 2), progressive, exif."""
    return save(Image.fromarray(pixels), "JPEG", **{"quality": 90, **options})


def cmyk_jpeg(pixels: Pixels) -> bytes:
    """A CMYK JPEG as Adobe writes it."""
    return save(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=90)


def ycck_jpeg(pixels: Pixels) -> bytes:
    """A CMYK JPEG whose Adobe segment says YCCK."""
    data = bytearray(cmyk_jpeg(pixels))
    segment = data.index(b"\xff\xee")
    data[segment + 2 + struct.unpack_from(">H", data, segment + 2)[0] - 1] = 2
    return bytes(data)


def oriented_jpeg(pixels: Pixels, orientation: int) -> bytes:
    """A JPEG with an EXIF orientation from 1 to 8."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(pixels, exif=exif)


def gray_jpeg(pixels: Pixels) -> bytes:
    """A JPEG of one component."""
    return save(Image.fromarray(pixels).convert("L"), "JPEG", quality=90)


def progressive_jpeg(pixels: Pixels) -> bytes:
    """A progressive JPEG."""
    return jpeg(pixels, progressive=True)


def png_16_bit(pixels: Pixels) -> bytes:
    """A gray PNG of 16 bits, the photo's luma times 257."""
    luma = np.asarray(Image.fromarray(pixels).convert("L")).astype(np.uint16) * 257
    return save(Image.fromarray(luma), "PNG")


def palette_png(pixels: Pixels) -> bytes:
    """A palette PNG whose most frequent colour is transparent."""
    image = Image.fromarray(pixels).quantize(64)
    counts = np.bincount(np.asarray(image).ravel(), minlength=64)
    return save(image, "PNG", transparency=int(counts.argmax()))


def alpha_png(pixels: Pixels) -> bytes:
    """An RGBA PNG, opaque on the left and transparent on the right."""
    alpha = np.broadcast_to(np.linspace(255, 0, pixels.shape[1]).astype(np.uint8)[:, None], (*pixels.shape[:2], 1))
    return save(Image.fromarray(np.concatenate([pixels, alpha], axis=2)), "PNG")


def webp(pixels: Pixels) -> bytes:
    """A WebP file; stored under .JPEG it is the `wrong extension` kind."""
    return save(Image.fromarray(pixels), "WEBP", quality=90)


def png(pixels: Pixels) -> bytes:
    """A PNG file; ImageNet has one under .JPEG."""
    return save(Image.fromarray(pixels), "PNG")


def animated_gif(pixels: Pixels) -> bytes:
    """A GIF of two frames, the photo first and its negative second."""
    return save(Image.fromarray(pixels), "GIF", save_all=True, append_images=[Image.fromarray(255 - pixels)])


def truncated(data: bytes, keep: float = 0.5) -> bytes:
    """The first part of a file."""
    return data[: int(len(data) * keep)]


def without_end(data: bytes) -> bytes:
    """A file without its last two bytes: for a JPEG, the end mark."""
    return data[:-2]


def header_only(data: bytes) -> bytes:
    """A JPEG up to its scan."""
    return data[: data.index(b"\xff\xda")]


def corrupt_scan(data: bytes) -> bytes:
    """A JPEG with 40 bytes in the middle of its scan inverted; many decoders give garbage for it without an error."""
    middle = (data.index(b"\xff\xda") + len(data)) // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 40]) + data[middle + 40 :]


def huge_jpeg(pixels: Pixels) -> bytes:
    """A JPEG whose header says 65,500 x 65,500."""
    data = bytearray(jpeg(pixels))
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, 65_500, 65_500)
    return bytes(data)


def huge_png(side: int = 30_000) -> bytes:
    """A real PNG of side x side zeros: under a megabyte, and gigabytes once decoded."""
    packer = zlib.compressobj(6)
    row = bytes(1 + 3 * side)
    scan = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", scan), (b"IEND", b""))
    chunks = (struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def not_an_image() -> bytes:
    """A text that says so."""
    return b"<html><body>503 Service Unavailable</body></html>\n"


# Decodable kinds: the photo must come out, under each one's rule.
GOOD_KINDS: dict[str, Callable[[Pixels], bytes]] = {
    "jpeg": jpeg,
    "progressive": progressive_jpeg,
    "gray": gray_jpeg,
    "cmyk": cmyk_jpeg,
    "ycck": ycck_jpeg,
    "exif": lambda pixels: oriented_jpeg(pixels, 6),
    "png": png,
    "png_16_bit": png_16_bit,
    "palette": palette_png,
    "alpha": alpha_png,
    "webp": webp,
    "gif": animated_gif,
}
# Bad kinds: each must be a bad sample, never pixels.
BAD_KINDS: dict[str, Callable[[Pixels], bytes]] = {
    "empty": lambda pixels: b"",
    "not_an_image": lambda pixels: not_an_image(),
    "truncated_half": lambda pixels: truncated(jpeg(pixels)),
    "truncated_end": lambda pixels: without_end(jpeg(pixels)),
    "header_only": lambda pixels: header_only(jpeg(pixels)),
    "huge": huge_jpeg,
}
