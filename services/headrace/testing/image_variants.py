"""Every kind of image of the contract's table, in every format where it can occur, made from one real photo.

Wider than image_kinds, which holds what the engines' own tests go through again and again. The pixels that must come out are
worked out here from the photo by the contract's rules, without a decoder, wherever a format keeps what it was given.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from headrace.testing.image_kinds import (
    ImageKind,
    bad_kinds,
    chunk,
    encode,
    exif,
    frame_at,
    good_kinds,
    patch,
    photo,
    png,
    ramp16,
    with_alpha,
    with_black,
)

Pixels = NDArray[np.uint8]

BACKGROUND = (10, 200, 90)
# Kind of image -> its right answer: the lines of the table in docs/decode_contract.md.
ROWS: dict[str, str] = {
    "CMYK, YCCK": "one stated conversion to RGB",
    "EXIF orientation": "applied before the crop; damaged EXIF counts as 1",
    "16 bits a channel": "the upper 8 bits, never clipped to white",
    "wrong extension": "the content is sniffed, whatever the name says",
    "truncated": "`truncated`, wherever it was cut; tolerant mode is the job's choice",
    "corrupt": "`corrupt` where it can be seen; never an error of the batch; checksums see the rest",
    "empty, no image": "`empty`, `unknown_format`",
    "huge dimensions": "`too_large`, from the header, before memory is taken",
    "palette": "its colours",
    "transparency": "composited on `decode.background`",
    "grayscale": "three equal channels",
    "chroma subsampling": "fancy upsampling, every factor, also at odd sizes",
    "progressive": "decoded; damage in a later scan is seen",
    "several frames, bytes after": "the first image",
    "AVIF, HEIC and others": "sniffed; decoded, or `unsupported`",
}
_LOSSY = 4.5  # mean levels from the photo at quality 90, chroma subsampling included
_UPRIGHT: dict[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
}  # fmt: skip


@lru_cache(maxsize=1)
def image_variants() -> tuple[ImageKind, ...]:
    """Every variant; names are unique."""
    found: list[ImageKind] = []
    for row, make in _MAKERS.items():
        found += [replace(kind, row=row) for kind in make()]
    extra = {"one_byte", "html", "zeros", "empty"}
    for kind in bad_kinds():
        if kind.name not in {each.name for each in found}:
            row = "empty, no image" if kind.name in extra else _row_of_bad(kind)
            found.append(replace(kind, row=row))
    known = {each.name for each in found}
    found += [replace(kind, row=_row_of_good(kind)) for kind in good_kinds() if kind.name not in known]
    return tuple(found)


def variants_of(row: str) -> list[ImageKind]:
    """The variants that are made for one row, without making all others."""
    return [replace(kind, row=row) for kind in _MAKERS[row]()]


def _row_of_bad(kind: ImageKind) -> str:
    rows = {"truncated": "truncated", "too_large": "huge dimensions", "unsupported": "AVIF, HEIC and others"}
    return rows.get(kind.reason, "corrupt")


def _row_of_good(kind: ImageKind) -> str:
    words = {
        "exif": "EXIF orientation", "cmyk": "CMYK, YCCK", "ycck": "CMYK, YCCK", "16": "16 bits a channel",
        "alpha": "transparency",
        "rgba": "transparency", "transparent": "transparency", "key": "transparency", "palette": "palette", "gif": "palette",
        "gray": "grayscale", "bilevel": "grayscale", "progressive": "progressive", "animated": "several frames, bytes after",
        "trailing": "several frames, bytes after", "avif": "AVIF, HEIC and others",
    }  # fmt: skip
    return next((row for word, row in words.items() if word in kind.name), "chroma subsampling")


def rgb() -> Pixels:
    """The photo."""
    return np.asarray(photo())


def three(gray: NDArray[Any]) -> Pixels:
    """Gray as three equal channels."""
    return np.repeat(np.asarray(gray, np.uint8)[..., None], 3, axis=2)


def over(colors: NDArray[Any], alpha: NDArray[Any]) -> Pixels:
    """Composited on the background, by the contract's rule."""
    part = alpha.astype(np.float64)[..., None]
    return np.floor((colors * part + np.array(BACKGROUND) * (255 - part)) / 255 + 0.5).astype(np.uint8)


def lossless() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, Pillow's format, options) of formats that keep RGB as it is."""
    yield from (
        ("png", "PNG", {}),
        ("bmp", "BMP", {}),
        ("tiff", "TIFF", {}),
        ("tiff_deflate", "TIFF", {"compression": "tiff_adobe_deflate"}),
    )
    if features.check("webp"):
        yield "webp", "WEBP", {"lossless": True, "exact": True}


def lossy() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, Pillow's format, options) of formats that come near."""
    yield "jpeg", "JPEG", {"quality": 90}
    if features.check("webp"):
        yield "webp_lossy", "WEBP", {"quality": 90}
    if features.check("avif"):
        yield "avif", "AVIF", {"quality": 90, "max_threads": 1, "speed": 10}


# --- colours ---------------------------------------------------------------------------------------------------------


def _cmyk() -> Iterator[ImageKind]:
    ink = with_black()
    stored = np.asarray(ink).astype(np.float64)
    exact = np.floor((255 - stored[..., :3]) * (255 - stored[..., 3:]) / 255 + 0.5).astype(np.uint8)
    forms: dict[str, dict[str, Any]] = {
        "444": {"subsampling": 0},
        "420": {"subsampling": 2},
        "progressive": {"progressive": True},
    }
    for name, options in forms.items():
        yield ImageKind(f"jpeg_cmyk_{name}", encode(ink, "JPEG", quality=95, **options), truth=rgb(), levels=6.0)
    yield ImageKind("jpeg_ycck_real", real_ycck(), truth=rgb(), levels=_LOSSY)
    for name, compression in (("raw", "raw"), ("lzw", "tiff_lzw"), ("deflate", "tiff_adobe_deflate")):
        yield ImageKind(f"tiff_cmyk_{name}", encode(ink, "TIFF", compression=compression), truth=exact)
    half = encode(ink, "JPEG", quality=90)
    yield ImageKind("jpeg_cmyk_cut", half[: len(half) // 2], "truncated")


def real_ycck() -> bytes:
    """A JPEG that stores CMYK as Adobe's YCCK: luma and chroma of the ink, and black inverted."""
    ink = np.asarray(with_black())
    luma = np.asarray(Image.fromarray(np.ascontiguousarray(ink[..., :3])).convert("YCbCr"))
    stored = np.concatenate([luma, 255 - ink[..., 3:]], axis=2)
    data = encode(Image.fromarray(255 - stored, "CMYK"), "JPEG", quality=95, subsampling=0)
    return patch(data, data.index(b"Adobe") + 11, b"\x02")


def _sixteen() -> Iterator[ImageKind]:
    gray = ramp16()
    color = np.stack([gray, gray[::-1], gray[:, ::-1]], axis=2)
    alpha = np.broadcast_to(np.linspace(0, 65535, gray.shape[1]).astype(np.uint16), gray.shape)
    yield ImageKind("png_gray_16", png(gray, 0), truth=three(gray >> 8))
    yield ImageKind("png_rgb_16", png(color, 2), truth=(color >> 8).astype(np.uint8))
    rgba = np.concatenate([color, alpha[..., None]], axis=2)
    yield ImageKind("png_rgba_16", png(rgba, 6), truth=over(color >> 8, alpha >> 8))
    yield ImageKind("tiff_gray_16", encode(Image.fromarray(gray), "TIFF"), truth=three(gray >> 8))
    yield ImageKind("tiff_gray_16_big_endian", tiff(gray[..., None], big=True), truth=three(gray >> 8))
    yield ImageKind("tiff_rgb_16", tiff(color), truth=(color >> 8).astype(np.uint8))
    white = np.full((20, 20), 65535, np.uint16)
    yield ImageKind("png_gray_16_white", png(white, 0), truth=three(white >> 8))
    low = np.full((20, 20), 200, np.uint16)  # black in 16 bits, nearly white if it were clipped
    yield ImageKind("png_gray_16_dark", png(low, 0), truth=three(low >> 8))


def tiff(pixels: NDArray[Any], big: bool = False) -> bytes:
    """An uncompressed TIFF of [H, W, C] of uint8 or uint16, in either byte order, for kinds that Pillow doesn't write."""
    order, (height, width, channels) = ">" if big else "<", pixels.shape
    bits, body = 8 * pixels.dtype.itemsize, pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")).tobytes()
    entries = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, 0), (259, 3, 1, 1), (262, 3, 1, 1 if channels == 1 else 2),
        (273, 4, 1, 0), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(body)),
    ]  # fmt: skip
    place = 8 + 2 + 12 * len(entries) + 4
    lines = []
    for tag, kind, count, number in entries:
        value = struct.pack(f"{order}I", number) if kind == 4 else struct.pack(f"{order}HH", number, 0)
        if tag == 258:
            value = struct.pack(f"{order}HH", bits, 0) if channels == 1 else struct.pack(f"{order}I", place)
        if tag == 273:
            value = struct.pack(f"{order}I", place + 8)
        lines.append(struct.pack(f"{order}HHI", tag, kind, count) + value)
    head = (b"MM" if big else b"II") + struct.pack(f"{order}HIH", 42, 8, len(entries))
    depths = struct.pack(f"{order}{channels}H", *[bits] * channels).ljust(8, b"\0")
    return head + b"".join(lines) + bytes(4) + depths + body


def _palette() -> Iterator[ImageKind]:
    for colors in (2, 4, 16, 256):
        image = photo().quantize(colors)
        truth = np.asarray(image.convert("RGB"))
        for form in ("PNG", "GIF", "BMP", "TIFF"):
            yield ImageKind(f"{form.lower()}_palette_{colors}", encode(image, form), truth=truth)


def _transparency() -> Iterator[ImageKind]:
    image = with_alpha()
    pixels = np.asarray(image)
    truth = over(pixels[..., :3], pixels[..., 3])
    yield ImageKind("png_rgba", encode(image, "PNG"), truth=truth)
    yield ImageKind("tiff_rgba", encode(image, "TIFF"), truth=truth)
    gray = np.asarray(image.convert("LA"))
    yield ImageKind("png_gray_alpha", encode(image.convert("LA"), "PNG"), truth=over(three(gray[..., 0]), gray[..., 1]))
    if features.check("webp"):
        yield ImageKind("webp_rgba", encode(image, "WEBP", lossless=True, exact=True), truth=truth)
        yield ImageKind("webp_rgba_lossy", encode(image, "WEBP", quality=90, exact=True), truth=truth, levels=_LOSSY)
    if features.check("avif"):
        yield ImageKind("avif_rgba", encode(image, "AVIF", quality=90, max_threads=1, speed=10), truth=truth, levels=_LOSSY)
    palette = photo().quantize(64)
    index, colors = np.asarray(palette), np.asarray(palette.convert("RGB"))
    key = int(np.bincount(index.ravel()).argmax())
    clear = over(colors, np.where(index == key, 0, 255))
    for form in ("PNG", "GIF"):
        yield ImageKind(f"{form.lower()}_palette_key", encode(palette, form, transparency=key), truth=clear)
    alphas = np.arange(0, 256, 4)
    yield ImageKind(
        "png_palette_transparent",
        encode(palette, "PNG", transparency=bytes(alphas.tolist())),
        truth=over(colors, alphas[index]),
    )
    color = tuple(int(value) for value in rgb()[10, 10])
    mask = np.where((rgb() == color).all(axis=2), 0, 255)
    yield ImageKind("png_rgb_key", encode(photo(), "PNG", transparency=color), truth=over(rgb(), mask))
    light = np.asarray(photo().convert("L"))
    level = int(np.bincount(light.ravel()).argmax())
    yield ImageKind(
        "png_gray_key", encode(photo().convert("L"), "PNG", transparency=level),
        truth=over(three(light), np.where(light == level, 0, 255)),
    )  # fmt: skip


def _gray() -> Iterator[ImageKind]:
    image = photo().convert("L")
    truth = three(np.asarray(image))
    for name, form, options in lossless():
        yield ImageKind(f"{name}_gray", encode(image, form, **options), truth=truth)
    for name, form, options in lossy():
        yield ImageKind(f"{name}_gray", encode(image, form, **options), truth=truth, levels=_LOSSY)
    yield ImageKind("gif_gray", encode(image, "GIF"), truth=truth)
    bits = photo().convert("1")
    black = three(np.asarray(bits).astype(np.uint8) * 255)
    for form in ("PNG", "BMP", "TIFF", "GIF"):
        yield ImageKind(f"{form.lower()}_bilevel", encode(bits, form), truth=black)
    yield ImageKind("jpeg_gray_progressive", encode(image, "JPEG", quality=90, progressive=True), truth=truth, levels=_LOSSY)


# --- JPEG ------------------------------------------------------------------------------------------------------------


def _chroma() -> Iterator[ImageKind]:
    import simplejpeg  # type: ignore[import-untyped]

    pixels = np.ascontiguousarray(rgb())
    for factor in ("444", "422", "440", "420", "411"):
        data = simplejpeg.encode_jpeg(pixels, quality=92, colorspace="RGB", colorsubsampling=factor)
        yield ImageKind(f"jpeg_{factor}", data, truth=rgb(), levels=_LOSSY)
    for width, height in ((1, 1), (2, 3), (7, 5), (17, 33), (16, 16)):
        small = photo(width, height)
        data = encode(small, "JPEG", quality=95, subsampling=2)
        yield ImageKind(f"jpeg_420_{width}x{height}", data, truth=np.asarray(small), levels=25.0)
    for name, form, options in (*lossless(), *lossy()):
        levels = 0.0 if "quality" not in options else _LOSSY
        yield ImageKind(f"{name}_rgb", encode(photo(), form, **options), truth=rgb(), levels=levels)


def _progressive() -> Iterator[ImageKind]:
    for factor, name in ((0, "444"), (1, "422"), (2, "420")):
        data = encode(photo(), "JPEG", quality=90, progressive=True, subsampling=factor)
        yield ImageKind(f"jpeg_progressive_{name}", data, truth=rgb(), levels=_LOSSY)
        for part in (0.3, 0.6, 0.95):
            yield ImageKind(f"jpeg_progressive_{name}_cut_{part:.0%}", data[: int(len(data) * part)], "truncated")
    restarts = encode(photo(), "JPEG", quality=90, progressive=True, restart_marker_rows=1)
    yield ImageKind("jpeg_progressive_restart", restarts, truth=rgb(), levels=_LOSSY)


# --- EXIF, names, frames ---------------------------------------------------------------------------------------------


def _orientation() -> Iterator[ImageKind]:
    for value in range(1, 9):
        turn = _UPRIGHT.get(value)
        stored = photo() if turn is None else photo().transpose(turn)
        block = exif(value)
        for name, form, options in (*lossless(), *lossy()):
            if form == "BMP":
                continue  # it has no place for EXIF
            levels = 0.0 if "quality" not in options else _LOSSY
            extra: dict[str, Any] = {"tiffinfo": {0x0112: value}} if form == "TIFF" else {"exif": block}
            yield ImageKind(f"{name}_exif_{value}", encode(stored, form, **options, **extra), truth=rgb(), levels=levels)
        big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", value, 0) + bytes(4)
        yield ImageKind(
            f"jpeg_exif_big_endian_{value}", encode(stored, "JPEG", quality=90, exif=big), truth=rgb(), levels=_LOSSY
        )
    for name, block_bytes in {
        "garbage": b"Exif\0\0garbage",
        "9": exif(9).tobytes(),
        "loop": b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
    }.items():
        for form in ("JPEG", "PNG"):
            data = encode(photo(), form, exif=block_bytes)
            yield ImageKind(f"{form.lower()}_exif_{name}", data, truth=rgb(), levels=0.0 if form == "PNG" else _LOSSY)


def _extension() -> Iterator[ImageKind]:
    endings = {"png": "JPEG", "webp": "JPEG", "jpeg": "png", "bmp": "jpg", "tiff": "webp", "avif": "gif", "webp_lossy": "tif"}
    for name, form, options in (*lossless(), *lossy()):
        if ending := endings.get(name):
            levels = 0.0 if "quality" not in options else _LOSSY
            yield ImageKind(f"{name}_as.{ending}", encode(photo(), form, **options), truth=rgb(), levels=levels)
    yield ImageKind("text_as.jpg", b"not an image, but a note about one", "unknown_format")
    yield ImageKind("gzip_as.png", b"\x1f\x8b\x08\0" + zlib.compress(bytes(500)), "unknown_format")


def _frames() -> Iterator[ImageKind]:
    palette = photo().quantize(64)
    more = {"save_all": True, "append_images": [palette.rotate(180), palette.rotate(90)]}
    truth = np.asarray(palette.convert("RGB"))
    yield ImageKind("gif_animated", encode(palette, "GIF", **more), truth=truth)
    animated = encode(palette, "GIF", **more)
    yield ImageKind("gif_animated_cut_in_frame_3", animated[:-500], truth=truth)
    others = {"save_all": True, "append_images": [photo().rotate(180)]}
    yield ImageKind("png_animated", encode(photo(), "PNG", **others), truth=rgb())
    yield ImageKind("tiff_pages", encode(photo(), "TIFF", **others), truth=rgb())
    yield ImageKind("jpeg_mpo", encode(photo(), "MPO", **others, quality=90), truth=rgb(), levels=_LOSSY)
    if features.check("webp"):
        yield ImageKind("webp_animated", encode(photo(), "WEBP", lossless=True, exact=True, **others), truth=rgb())
    if features.check("avif"):
        data = encode(photo(), "AVIF", quality=90, max_threads=1, speed=10, **others)
        yield ImageKind("avif_sequence", data, truth=rgb(), levels=_LOSSY)
    for name, form, options in (*lossless(), *lossy()):
        if form in ("PNG", "JPEG", "BMP", "WEBP"):
            levels = 0.0 if "quality" not in options else _LOSSY
            yield ImageKind(f"{name}_bytes_after", encode(photo(), form, **options) + b"\0more" * 9, truth=rgb(), levels=levels)


# --- damage ----------------------------------------------------------------------------------------------------------


def _sound() -> Iterator[tuple[str, bytes]]:
    for name, form, options in (*lossless(), *lossy()):
        yield name, encode(photo(), form, **options)
    yield "gif", encode(photo(), "GIF")
    yield "tiff_lzw", encode(photo(), "TIFF", compression="tiff_lzw")
    yield "jpeg_exif", encode(photo(), "JPEG", quality=90, exif=exif(6))
    yield "jpeg_gray", encode(photo().convert("L"), "JPEG", quality=90)
    yield "jpeg_cmyk", encode(with_black(), "JPEG", quality=90)
    yield "png_palette", encode(photo().quantize(64), "PNG")


def _truncated() -> Iterator[ImageKind]:
    for name, data in _sound():
        for part in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            yield ImageKind(f"{name}_cut_{part:.0%}", data[: int(len(data) * part)], "truncated")
        yield ImageKind(f"{name}_cut_minus_2", data[:-2], "truncated")
        yield ImageKind(f"{name}_cut_24_bytes", data[:24], "truncated")


def _corrupt() -> Iterator[ImageKind]:
    for name, data in _sound():
        for place, part in (("early", 0.35), ("middle", 0.5), ("late", 0.8)):
            at = int(len(data) * part)
            flipped = bytes(byte ^ 0xA5 for byte in data[at : at + 40])
            yield ImageKind(f"{name}_xor_{place}", patch(data, at, flipped), "corrupt", or_decoded=not name.startswith("png"))
        zeroed = patch(data, len(data) // 2, bytes(200))
        yield ImageKind(f"{name}_zeroed", zeroed, "corrupt", or_decoded=not name.startswith("png"))
    plain = encode(photo(), "JPEG", quality=90)
    # As cameras' MJPEG frames are: the standard tables are meant.
    yield ImageKind("jpeg_standard_tables", plain.replace(b"\xff\xc4", b"\xff\xec"), truth=rgb(), levels=_LOSSY)
    yield ImageKind("jpeg_no_frame", plain.replace(b"\xff\xc0", b"\xff\xec"), "corrupt")
    data = encode(photo(), "PNG")
    yield ImageKind("png_header_sum", patch(data, 29, b"\0\0\0\0"), "corrupt")
    yield ImageKind("png_no_data", data[:33] + chunk(b"IEND", b""), "corrupt")
    yield ImageKind(
        "png_no_width", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 9, 8, 2, 0, 0, 0)), "corrupt"
    )
    yield ImageKind("bmp_no_width", patch(encode(photo(), "BMP"), 18, bytes(4)), "corrupt")
    yield ImageKind("gif_no_frame", patch(encode(photo(), "GIF")[:13], 10, b"\0") + b";" * 9, "corrupt")


def _huge() -> Iterator[ImageKind]:
    side = struct.pack(">HH", 65500, 65500)
    for name, options in {"baseline": {}, "progressive": {"progressive": True}}.items():
        data = encode(photo(), "JPEG", quality=90, **options)
        at = frame_at(data) if name == "baseline" else data.index(b"\xff\xc2\x00\x11")
        yield ImageKind(f"jpeg_{name}_huge", patch(data, at + 5, side), "too_large")
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 65500, 65500, 8, 2, 0, 0, 0))
    yield ImageKind("png_huge", patch(encode(photo(), "PNG"), 8, header), "too_large")
    yield ImageKind("png_zeros_30000x30000", zeros_png(30_000), "too_large")
    gif = encode(photo(), "GIF")
    yield ImageKind("gif_huge_screen", patch(gif, 6, b"\xff\xff\xff\xff"), "too_large")
    frame = gif.index(b"\x2c\0\0\0\0" + struct.pack("<HH", *photo().size))
    yield ImageKind("gif_huge_frame", patch(gif, frame + 5, b"\xff\xff\xff\xff"), "too_large")
    yield ImageKind("bmp_huge", patch(encode(photo(), "BMP"), 18, struct.pack("<ii", 60_000, 60_000)), "too_large")
    yield ImageKind("bmp_huge_upside_down", patch(encode(photo(), "BMP"), 18, struct.pack("<ii", 60_000, -60_000)), "too_large")
    large = tiff(rgb())
    for at in (18, 30):  # the values of width and height
        large = patch(large, at, struct.pack("<I", 60_000))
    yield ImageKind("tiff_huge", large, "too_large")
    if features.check("webp"):
        lossy_webp = encode(photo(), "WEBP", quality=90)
        yield ImageKind("webp_lossy_huge", patch(lossy_webp, 26, b"\xff\x3f\xff\x3f"), "too_large")
        bits = encode(photo(), "WEBP", lossless=True)
        yield ImageKind("webp_lossless_huge", patch(bits, 21, b"\xff\xff\xff\x0f"), "too_large")
        extended = encode(photo(), "WEBP", quality=90, exif=exif(1))
        yield ImageKind("webp_extended_huge", patch(extended, 24, b"\xff\xff\xff" * 2), "too_large")
    if features.check("avif"):
        data = encode(photo(), "AVIF", quality=90, max_threads=1, speed=10)
        yield ImageKind("avif_huge", patch(data, data.index(b"ispe") + 8, struct.pack(">II", 60_000, 60_000)), "too_large")


@lru_cache(maxsize=1)
def zeros_png(side: int) -> bytes:
    """A PNG of zeros: a few kB that would take side * side bytes."""
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _nothing() -> Iterator[ImageKind]:
    yield ImageKind("empty", b"", "empty")
    yield ImageKind("spaces", b"  \n", "unknown_format")
    yield ImageKind("json", b'{"error": "not found"}', "unknown_format")
    yield ImageKind("svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "unknown_format")
    for name, magic in {
        "jpeg": b"\xff\xd8",
        "png": b"\x89PNG\r\n\x1a\n",
        "gif": b"GIF89a",
        "bmp": b"BM",
        "tiff": b"II*\0",
    }.items():
        yield ImageKind(f"{name}_magic_alone", magic, "truncated")


def _others() -> Iterator[ImageKind]:
    for brand in (b"heic", b"heix", b"hevc", b"mif1"):
        yield ImageKind(
            f"heif_{brand.decode()}", b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1" + brand + bytes(64), "unsupported"
        )
    if features.check("jpg_2000"):
        yield ImageKind("jpeg2000", encode(photo(), "JPEG2000"), "unsupported")
    yield ImageKind("psd", b"8BPS\0\x01" + bytes(60), "unsupported")
    yield ImageKind("bigtiff", b"II+\0\x08\0\0\0" + bytes(64), "unsupported")
    if features.check("avif"):
        for factor in ("4:4:4", "4:2:2", "4:2:0"):
            data = encode(photo(), "AVIF", quality=90, max_threads=1, speed=10, subsampling=factor)
            yield ImageKind(f"avif_{factor.replace(':', '')}", data, truth=rgb(), levels=_LOSSY)


_MAKERS: dict[str, Callable[[], Iterator[ImageKind]]] = {
    "CMYK, YCCK": _cmyk, "EXIF orientation": _orientation, "16 bits a channel": _sixteen, "wrong extension": _extension,
    "truncated": _truncated, "corrupt": _corrupt, "empty, no image": _nothing, "huge dimensions": _huge, "palette": _palette,
    "transparency": _transparency, "grayscale": _gray, "chroma subsampling": _chroma, "progressive": _progressive,
    "several frames, bytes after": _frames, "AVIF, HEIC and others": _others,
}  # fmt: skip
