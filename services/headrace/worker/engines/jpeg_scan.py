"""Damage within a JPEG's scan, for decoders that do not tell of it.

nvImageCodec decodes over damaged Huffman code as if nothing were there: of 200 photos with 40 random bytes overwritten it
refused none. What libjpeg warns of is damage by docs/decode_contract.md, so libjpeg is asked: it reads all of the Huffman code,
but only an eighth of the rows and columns is transformed, which is some half of a whole decode's work. Its verdict is that of
the whole decode, a pure function of the bytes.
"""

from __future__ import annotations

import simplejpeg  # type: ignore[import-untyped]

from headrace.worker.engines.pixels import DAMAGE, Probe, damage_reason, with_known_jfif

# Largest scale-down that libjpeg has.
_FACTOR = 8


def scan_fault(probe: Probe) -> str:
    """Why the scan of a whole gray or three-channel JPEG is damaged, of core.batch.BAD_REASONS; `none` if it is sound."""
    try:
        data = with_known_jfif(probe.data, probe.header)
        simplejpeg.decode_jpeg(data, "RGB", min_height=1, min_width=1, min_factor=_FACTOR, strict=True)
    except DAMAGE as error:
        return damage_reason(error)
    return "none"
