"""Decoding with libraries: any supported image to RGB, by the rules of docs/decode_contract.md.

Which decoder takes an image is a pure function of its header. JPEG goes to libjpeg-turbo through simplejpeg, whole, with
every warning an error; JPEG with a chroma sampling that simplejpeg refuses, and all other formats, go to Pillow. Thread-safe:
nothing is kept between calls.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import PIL
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, PngImagePlugin, UnidentifiedImageError, features

from headrace.core.image_header import ImageHeader, check, read_header
from headrace.core.pipeline_spec import Decode

Pixels: TypeAlias = NDArray[np.uint8]

# The size limit is ours, per job and from the header; Pillow's is one number a process.
Image.MAX_IMAGE_PIXELS = None
# Long texts (prompts, work flows, profiles) are no damage; Pillow's own bound on their sum, 64 MB, stays.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
# One image is one thread's work, as with all formats.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

_PILLOW_NAMES = {"jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP", "tiff": "TIFF", "avif": "AVIF"}
_TURBO_SAMPLING = {(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)}
_SIXTEEN_BITS = {"I;16", "I;16L", "I;16B", "I;16N"}
# What Pillow and simplejpeg raise for damaged data (AVIF and WebP: RuntimeError).
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, RuntimeError, struct.error, zlib.error)


class BadImage(Exception):
    """An image that cannot be decoded. reason: one of core.batch.BAD_REASONS. Internal to the engines."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Probe:
    """An image that was looked at but not decoded. reason: `none` if it may be decoded."""

    data: bytes
    header: ImageHeader
    reason: str


def versions() -> str:
    """Names and versions of what decodes, one line without spaces, for the engine's fingerprint."""
    codecs = ("libjpeg_turbo", "zlib_ng", "webp", "avif", "libtiff")
    built = [f"{name}={features.version(name) or 'none'}" for name in codecs]
    return ",".join([f"simplejpeg={simplejpeg.__version__}", f"pillow={PIL.__version__}", *built])


def probe(data: bytes | memoryview, decode: Decode) -> Probe:
    """Read the header and judge it. Takes microseconds; damage is a reason in the answer, not an error."""
    data = data if isinstance(data, bytes) else bytes(data)
    header = read_header(data)
    reason = check(header, decode)
    if reason == "none" and header.format == "avif":
        return _probe_avif(data, header, decode)
    if reason == "none" and header.format == "webp" and not features.check("webp"):
        reason = "unsupported"
    return Probe(data, header, reason)


def _probe_avif(data: bytes, header: ImageHeader, decode: Decode) -> Probe:
    """AVIF keeps size and rotation in properties that only its library resolves."""
    if not features.check("avif"):
        return Probe(data, header, "unsupported")
    try:
        with Image.open(io.BytesIO(data), formats=["AVIF"]) as image:
            orientation = image.getexif().get(0x0112, 1)
            known = replace(
                header, width=image.width, height=image.height, orientation=orientation if orientation in range(1, 9) else 1
            )
    except DAMAGE:
        return Probe(data, header, "corrupt")
    return Probe(data, known, check(known, decode))


def decode_rgb(probed: Probe, decode: Decode) -> Pixels:
    """Decode to uint8[H, W, 3] with the orientation applied (a view; not contiguous where it turned). Raises BadImage."""
    header = probed.header
    try:
        rgb = _decode_jpeg(probed.data, header) if is_turbo(header) else _decode_pillow(probed.data, header, decode)
    except BadImage:
        raise
    except DAMAGE as error:
        raise BadImage(damage_reason(error), str(error)) from error
    # Pillow turns TIFF by itself.
    size = header.oriented_size if header.format == "tiff" else (header.height, header.width)
    if rgb.shape != (*size, 3):
        raise BadImage("corrupt", f"the header says {size} pixels, the data {rgb.shape}")
    return rgb if header.format == "tiff" else orient(rgb, header.orientation)


def damage_reason(error: Exception) -> str:
    """The reason for one of DAMAGE."""
    return "truncated" if "truncated" in str(error).lower() or isinstance(error, EOFError) else "corrupt"


def is_turbo(header: ImageHeader) -> bool:
    """Whether simplejpeg takes it: any JPEG but those of an unusual chroma sampling."""
    if header.format != "jpeg":
        return False
    factors = header.sampling
    if len(factors) == 1:
        return True
    fourth_as_first = len(factors) == 3 or factors[3] == factors[0]
    return factors[0] in _TURBO_SAMPLING and factors[1] == factors[2] == (1, 1) and fourth_as_first


def _decode_jpeg(data: bytes, header: ImageHeader) -> Pixels:
    data = with_known_jfif(data, header)
    # A cut image gets here only if the job tolerates it; its missing rows then are as libjpeg leaves them.
    strict = header.complete
    if header.components == 4:
        return _adobe_cmyk_to_rgb(simplejpeg.decode_jpeg(data, "CMYK", strict=strict))
    rgb: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=strict)
    return rgb


def with_known_jfif(data: bytes, header: ImageHeader) -> bytes:
    """The JPEG with a JFIF version that libjpeg knows: of another it warns, though it is no damage."""
    at = header.jfif_major_at
    return b"".join((data[:at], b"\x01", data[at + 1 :])) if at else data


def _adobe_cmyk_to_rgb(inverted: Pixels) -> Pixels:
    """Inverted CMYK, as Adobe stores it and all JPEGs are taken to: R = C' * K' / 255, rounded."""
    product = inverted[..., :3].astype(np.uint32)
    product *= inverted[..., 3:]
    return ((product + 127) // 255).astype(np.uint8)


def _decode_pillow(data: bytes, header: ImageHeader, decode: Decode) -> Pixels:
    if not header.complete:
        raise BadImage("truncated", "only a JPEG of usual sampling can be decoded though cut")
    try:
        with Image.open(io.BytesIO(data), formats=[_PILLOW_NAMES[header.format]]) as image:
            if image.width * image.height > decode.max_pixels:
                raise BadImage("corrupt", f"the header says {header.width} by {header.height} pixels, the decoder {image.size}")
            image.load()
            return _to_rgb(image, decode.background)
    except UnidentifiedImageError as error:
        raise BadImage("corrupt", str(error)) from error


def _to_rgb(image: Image.Image, background: tuple[int, int, int]) -> Pixels:
    """One rule for each mode that Pillow gives; see docs/decode_contract.md."""
    if image.mode in _SIXTEEN_BITS:
        high = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(high[..., None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        flat = Image.new("RGB", image.size, background)
        flat.paste(rgba, mask=rgba.getchannel("A"))
        return np.asarray(flat)
    if image.mode not in ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"):
        raise BadImage("unsupported", f"no rule makes RGB of mode {image.mode}")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def copy_pixels(pixels: Pixels, out: Pixels) -> None:
    """Copy [H, W, 3] of any strides."""
    if pixels.strides[2] == out.strides[2] and pixels.strides[1] == out.strides[1]:
        out[...] = pixels
        return
    # numpy copies mirrored or turned 3-byte pixels several times faster channel by channel.
    for channel in range(3):
        out[..., channel] = pixels[..., channel]


def contiguous(pixels: Pixels) -> Pixels:
    """The same pixels, C-contiguous; a copy only where they aren't."""
    if pixels.flags.c_contiguous:
        return pixels
    out = np.empty(pixels.shape, np.uint8)
    copy_pixels(pixels, out)
    return out


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Apply an EXIF orientation, as a view."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels
