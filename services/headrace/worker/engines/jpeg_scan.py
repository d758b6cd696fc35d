"""Damage within a JPEG's scan, for decoders that do not tell of it.

nvImageCodec decodes over damaged Huffman code as if nothing were there: of 200 photos with 40 random bytes overwritten it
refused none. What libjpeg warns of is damage by docs/decode_contract.md, so libjpeg is asked. It reads all of the Huffman code;
the native core has one pixel transformed, the library an eighth of the rows and columns, which is some half of a whole
decode's work. The verdict is that of the whole decode, a pure function of the bytes.
"""

from __future__ import annotations

import simplejpeg  # type: ignore[import-untyped]

from headrace.worker.engines.native import NativeCore
from headrace.worker.engines.pixels import DAMAGE, Probe, damage_reason, with_known_jfif

# Largest scale-down that libjpeg has.
_FACTOR = 8


def scan_fault(probe: Probe, core: NativeCore | None) -> str:
    """Why the scan of a JPEG that the core takes (`native.takes`) is damaged, of core.batch.BAD_REASONS; `none` if it is sound.

    core: None where it was not built.
    """
    if core is not None:
        return "none" if core.undamaged(probe.data, (probe.header.height, probe.header.width)) else "corrupt"
    try:
        data = with_known_jfif(probe.data, probe.header)
        simplejpeg.decode_jpeg(data, "RGB", min_height=1, min_width=1, min_factor=_FACTOR, strict=True)
    except DAMAGE as error:
        return damage_reason(error)
    return "none"
