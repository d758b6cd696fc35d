"""Small images of every kind that people feed a loader, good and bad, made from one real photo.

For tests and for the demo's bad samples. Each is made here by an encoder or by byte edits, never stored; the same bytes
in every call with the same libraries. Needs Pillow and scikit-image (the `demo` extra).
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

WIDTH, HEIGHT = 301, 203


@dataclass(frozen=True, slots=True)
class ImageKind:
    """One file. reason: of core.batch.BAD_REASONS that a right engine reports; `none` for images that must be decoded.

    row: the line of the contract's table of kinds that it is tried for (testing.image_variants). truth: what the decoded
    pixels must be within `levels` (of 255, on average), where a rule says so without a decoder. or_decoded: damage that a
    decoder need not see, so that pixels are as right as the reason.
    """

    name: str
    data: bytes
    reason: str = "none"
    row: str = ""
    truth: NDArray[np.uint8] | None = field(default=None, compare=False, repr=False)
    levels: float = 0.0
    or_decoded: bool = False


@lru_cache(maxsize=8)
def photo(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """An RGB photo of that size (an astronaut, from scikit-image)."""
    from skimage import data

    pixels: NDArray[np.uint8] = data.astronaut()  # type: ignore[no-untyped-call]
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    """The image in a format that Pillow writes."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    """EXIF data that hold an orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def png(pixels: NDArray[np.generic], color: int, extra: bytes = b"") -> bytes:
    """A PNG of [H, W] or [H, W, C] of uint8 or uint16 in that color type, for kinds that Pillow doesn't write."""
    depth = 8 * pixels.dtype.itemsize
    big = pixels.astype(pixels.dtype.newbyteorder(">"))
    rows = b"".join(b"\0" + row.tobytes() for row in big)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    """A PNG chunk with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def patch(data: bytes, at: int, new: bytes) -> bytes:
    """The data with `new` written over the bytes at `at`."""
    return data[:at] + new + data[at + len(new) :]


def frame_at(jpeg: bytes) -> int:
    """Where a baseline JPEG's frame segment begins."""
    return jpeg.index(b"\xff\xc0\x00\x11")


def with_alpha() -> Image.Image:
    """The photo with an alpha that runs from clear to solid."""
    ramp = np.linspace(0, 255, WIDTH).astype(np.uint8)
    image = photo().copy()
    image.putalpha(Image.fromarray(np.broadcast_to(ramp, (HEIGHT, WIDTH)).copy()))
    return image


def with_black() -> Image.Image:
    """The photo in CMYK with half of its darkness in the black channel, so that all four matter."""
    ink = 255 - np.asarray(photo()).astype(np.float64)
    black = ink.min(axis=2, keepdims=True) / 2
    colors = (ink - black) * 255 / (255 - black)
    return Image.fromarray(np.concatenate([colors, black], axis=2).round().astype(np.uint8), "CMYK")


def ramp16() -> NDArray[np.uint16]:
    """uint16[H, W], the photo's luma spread over 16 bits, with low bytes that matter if values are clipped."""
    gray = np.asarray(photo().convert("L")).astype(np.uint16)
    return gray * np.uint16(257) - (gray > 0) * (np.arange(WIDTH, dtype=np.uint16) % 200)


def good_jpegs() -> list[ImageKind]:
    """JPEGs that must be decoded."""
    image = photo()
    plain = encode(image, "JPEG", quality=90)
    cmyk = encode(with_black(), "JPEG", quality=90)
    adobe = cmyk.index(b"Adobe")
    kinds = [
        ImageKind(f"jpeg_{name}", encode(image, "JPEG", quality=90, subsampling=i))
        for i, name in enumerate(("444", "422", "420"))
    ]
    kinds += [ImageKind(f"jpeg_exif_{i}", encode(image, "JPEG", quality=90, exif=exif(i))) for i in range(1, 9)]
    return [
        *kinds,
        ImageKind("jpeg_gray", encode(image.convert("L"), "JPEG", quality=90)),
        ImageKind("jpeg_progressive", encode(image, "JPEG", quality=90, progressive=True)),
        ImageKind("jpeg_restart", encode(image, "JPEG", quality=90, restart_marker_rows=2)),
        ImageKind("jpeg_rgb", encode(image, "JPEG", quality=90, keep_rgb=True)),
        ImageKind("jpeg_cmyk", cmyk),
        ImageKind("jpeg_ycck", patch(cmyk, adobe + 11, b"\x02")),
        ImageKind("jpeg_jfif_0_9", patch(plain, plain.index(b"JFIF") + 5, b"\x00")),
        ImageKind("jpeg_trailing_bytes", plain + b"appended by a camera"),
        ImageKind("jpeg_1x1", encode(photo(1, 1), "JPEG")),
    ]


def good_others() -> list[ImageKind]:
    """Images of other formats that must be decoded."""
    image, alpha = photo(), with_alpha()
    palette = image.quantize(64)
    high = ramp16()
    kinds = [
        ImageKind("png_rgb", encode(image, "PNG")),
        ImageKind("png_gray", encode(image.convert("L"), "PNG")),
        ImageKind("png_bilevel", encode(image.convert("1"), "PNG")),
        ImageKind("png_palette", encode(palette, "PNG")),
        ImageKind("png_palette_transparent", encode(palette, "PNG", transparency=bytes(range(0, 256, 4)))),
        ImageKind("png_palette_key", encode(palette, "PNG", transparency=3)),
        ImageKind("png_rgb_key", encode(image, "PNG", transparency=image.getpixel((10, 10)))),
        ImageKind("png_rgba", encode(alpha, "PNG")),
        ImageKind("png_gray_alpha", encode(alpha.convert("LA"), "PNG")),
        ImageKind("png_gray_16", png(high, 0)),
        ImageKind("png_rgb_16", png(np.stack([high, high[::-1], high[:, ::-1]], axis=2), 2)),
        ImageKind("png_exif_6", encode(image, "PNG", exif=exif(6))),
        ImageKind("gif", encode(image, "GIF")),
        ImageKind(
            "gif_animated", encode(palette, "GIF", save_all=True, append_images=[palette.rotate(180), palette.rotate(90)])
        ),
        ImageKind("gif_transparent", encode(palette, "GIF", transparency=3)),
        ImageKind("bmp", encode(image, "BMP")),
        ImageKind("bmp_palette", encode(palette, "BMP")),
        ImageKind("tiff", encode(image, "TIFF")),
        ImageKind("tiff_lzw", encode(image, "TIFF", compression="tiff_lzw")),
        ImageKind("tiff_cmyk", encode(with_black(), "TIFF")),
        ImageKind("tiff_gray_16", encode(Image.fromarray(high), "TIFF")),
        ImageKind("tiff_exif_8", encode(image, "TIFF", tiffinfo={0x0112: 8})),
    ]
    if features.check("webp"):
        kinds += [
            ImageKind("webp_lossy", encode(image, "WEBP", quality=90)),
            ImageKind("webp_lossless", encode(image, "WEBP", lossless=True)),
            ImageKind("webp_rgba", encode(alpha, "WEBP", lossless=True)),
            ImageKind("webp_exif_5", encode(image, "WEBP", quality=90, exif=exif(5))),
            ImageKind("webp_animated", encode(image, "WEBP", save_all=True, append_images=[image.rotate(180)])),
        ]
    if features.check("avif"):
        kinds += [
            ImageKind("avif", encode(image, "AVIF", quality=90, max_threads=1, speed=10)),
            ImageKind("avif_exif_6", encode(image, "AVIF", quality=90, max_threads=1, speed=10, exif=exif(6))),
            ImageKind("avif_rgba", encode(alpha, "AVIF", quality=90, max_threads=1, speed=10)),
        ]
    return kinds


def cut(kind: ImageKind) -> list[ImageKind]:
    """A good file cut in half, by its last two bytes, and to little more than its header."""
    data = kind.data
    parts = {"half": len(data) // 2, "minus_2": len(data) - 2, "header": min(len(data) // 4, 700)}
    return [ImageKind(f"{kind.name}_cut_{name}", data[:length], "truncated") for name, length in parts.items()]


def unusable() -> list[ImageKind]:
    """Files with no image that can be decoded, whole as they are."""
    plain = encode(photo(), "JPEG", quality=90)
    frame = frame_at(plain)
    huge_png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    rgb = encode(photo(), "PNG")
    data_at = rgb.index(b"IDAT") + 200
    return [
        ImageKind("empty", b"", "empty"),
        ImageKind("one_byte", b"\xff", "unknown_format"),
        ImageKind("html", b"<!DOCTYPE html><title>404</title>", "unknown_format"),
        ImageKind("zeros", bytes(4096), "unknown_format"),
        ImageKind("jpeg_huge", patch(plain, frame + 5, b"\xff\xdc\xff\xdc"), "too_large"),
        ImageKind("png_huge", huge_png + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""), "too_large"),
        ImageKind("jpeg_12_bits", patch(plain, frame + 4, b"\x0c"), "unsupported"),
        ImageKind("jpeg_arithmetic", patch(plain, frame, b"\xff\xc9"), "unsupported"),
        ImageKind("jpeg_lossless", patch(plain, frame, b"\xff\xc3"), "unsupported"),
        ImageKind("jpeg_no_width", patch(plain, frame + 7, b"\0\0"), "corrupt"),
        ImageKind("heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), "unsupported"),
        ImageKind("jpegxl", b"\xff\x0a" + bytes(64), "unsupported"),
        ImageKind("png_bit_rot", patch(rgb, data_at, bytes([rgb[data_at] ^ 0x10])), "corrupt"),
        ImageKind("jpeg_stray_marker", patch(plain, len(plain) // 2, b"\xff\xd8\xff\xd8"), "corrupt"),
        ImageKind("jpeg_bytes_lost", plain[: len(plain) // 2] + plain[len(plain) // 2 + 500 :], "corrupt"),
    ]


@lru_cache(maxsize=1)
def good_kinds() -> tuple[ImageKind, ...]:
    """Every kind that must be decoded."""
    return (*good_jpegs(), *good_others())


@lru_cache(maxsize=1)
def bad_kinds() -> tuple[ImageKind, ...]:
    """Every kind that must be refused, with its reason."""
    whole = {kind.name: kind for kind in good_kinds()}
    to_cut = ("jpeg_420", "jpeg_progressive", "jpeg_exif_6", "jpeg_cmyk", "png_rgb", "webp_lossy", "gif", "bmp", "tiff", "avif")
    kinds = unusable() + [part for name in to_cut if name in whole for part in cut(whole[name])]
    if "avif" in whole:
        # Its primary item is one that isn't there: the library finds out while the header is read.
        data = whole["avif"].data
        kinds.append(ImageKind("avif_no_item", patch(data, data.index(b"pitm") + 8, b"\xff\xff"), "corrupt"))
    return tuple(kinds)
