"""Layout of one batch in a slot, the same for shared memory and for the bytes of a gRPC stream.

```
0        header, HEADER_BYTES, little-endian (see `SlotHeader`)
4032     mark: what READY says, once the slot is published (shared memory only; see `mark`)
4096     pixels, C-contiguous in the output layout (page aligned: can be pinned and copied by DMA)
...      meta (wire.batch_meta), at the next multiple of 64 after the pixels
```
Where the pixels lie on a GPU (cuda_ipc), the header says so, and the meta begins at 4096.

Pure apart from struct packing. Writers fill pixels and meta first, then the header, and the mark when the slot is the rank's;
readers check magic, version, index, token, lengths and the meta's CRC before they trust anything.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from headrace.core.errors import ProtocolMismatch
from headrace.core.job import JobSpec

MAGIC = b"HRB1"
FORMAT_VERSION = 2
PIXEL_OFFSET = 4096
ALIGN = 64
PAGE = 4096

DTYPE_CODES: dict[str, int] = {"uint8": 1, "float16": 2, "bfloat16": 3, "float32": 4}
LAYOUT_CODES: dict[str, int] = {"NHWC": 1, "NCHW": 2}
DTYPES = {code: name for name, code in DTYPE_CODES.items()}
LAYOUTS = {code: name for name, code in LAYOUT_CODES.items()}

# magic, version, dtype, layout, place, index, token, pixel bytes, meta offset, meta bytes, meta crc32, shape[4]
# place: 1 where the pixels lie on a GPU
_HEADER = struct.Struct("<4sHBBIQQQQII4I")
HEADER_BYTES = _HEADER.size
# index, token, total bytes, crc32 of these
_MARK = struct.Struct("<QQQI")
_MARK_AT = PIXEL_OFFSET - 64


class SlotHeader(NamedTuple):
    """The header's fields. index: position in the rank's session. shape: of the pixels, 4 numbers.

    on_device: they are not here but on a GPU.
    """

    index: int  # type: ignore[assignment]
    token: int
    dtype: str
    layout: str
    shape: tuple[int, int, int, int]
    pixel_bytes: int
    meta_offset: int
    meta_bytes: int
    meta_crc: int
    on_device: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes from the slot's start to the meta's end: what a gRPC stream sends."""
        return self.meta_offset + self.meta_bytes


def slot_bytes(pixel_bytes: int, max_meta_bytes: int) -> int:
    """Bytes of a slot for these bounds, a multiple of the page size."""
    return -(-(meta_offset(pixel_bytes) + max_meta_bytes) // PAGE) * PAGE


def meta_offset(pixel_bytes: int) -> int:
    """Where the meta begins."""
    return PIXEL_OFFSET + -(-pixel_bytes // ALIGN) * ALIGN


def host_slot_bytes(whole: int, pixel_bytes: int) -> int:
    """Bytes of a slot that has room for the same meta as one of `whole` bytes, but whose pixels lie on a GPU."""
    return slot_bytes(0, whole - meta_offset(pixel_bytes))


def max_meta_bytes(batch_size: int, max_key_bytes: int, max_label_bytes: int, label_width: int) -> int:
    """Upper bound of a serialised BatchMeta: fixed fields with long names; per sample ids, status, keys and label."""
    return 4096 + batch_size * (8 + 8 + 1 + 1 + 2 * (max_key_bytes + 8) + max(8, label_width) + (max_label_bytes + 8))


def job_slot_bytes(job: JobSpec) -> int:
    """Bytes of a slot that holds any batch of a job."""
    meta = max_meta_bytes(job.batch_size, job.max_key_bytes, job.max_label_bytes, job.label_width)
    return slot_bytes(job.pipeline.pixel_bytes(job.batch_size), meta)


def pixels(slot: memoryview, pixel_bytes: int) -> memoryview:
    """The part of a slot that an engine writes to."""
    return slot[PIXEL_OFFSET : PIXEL_OFFSET + pixel_bytes]


def seal(
    slot: memoryview,
    meta: bytes,
    *,
    index: int,
    token: int,
    dtype: str,
    layout: str,
    shape: tuple[int, int, int, int],
    pixel_bytes: int,
    on_device: bool = False,
) -> int:
    """Write meta and header of a slot whose pixels are there, or on a GPU. Returns its total bytes.

    ProtocolMismatch: no room for meta.
    """
    start = meta_offset(0 if on_device else pixel_bytes)
    if start + len(meta) > len(slot):
        raise ProtocolMismatch(
            f"batch meta of {len(meta)} bytes does not fit the slot ({len(slot) - start} left); the manifest's longest key or "
            "label is wrong: re-index"
        )
    slot[start : start + len(meta)] = meta
    header = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        DTYPE_CODES[dtype],
        LAYOUT_CODES[layout],
        int(on_device),
        index,
        token,
        pixel_bytes,
        start,
        len(meta),
        zlib.crc32(meta),
        *shape,
    )
    slot[:HEADER_BYTES] = header
    return start + len(meta)


def mark(slot: memoryview, index: int, token: int, total_bytes: int) -> None:
    """Say in the slot itself that it is published: until it is released it is not written again.

    A rank that maps the slab sees so without a message. Only for slots that are in order once published, never for ones that
    are filled piece by piece.
    """
    fields = struct.pack("<QQQ", index, token, total_bytes)
    slot[_MARK_AT : _MARK_AT + _MARK.size] = fields + zlib.crc32(fields).to_bytes(4, "little")


def read_mark(slot: memoryview) -> tuple[int, int, int] | None:
    """(index, token, total bytes) of the batch that was published last in this slot, or None: none, or being written now."""
    found = bytes(slot[_MARK_AT : _MARK_AT + _MARK.size])
    index, token, total_bytes, crc = _MARK.unpack(found)
    return (index, token, total_bytes) if crc and crc == zlib.crc32(found[:-4]) else None


def read_header(slot: memoryview) -> SlotHeader:
    """As `read_slot`, without the meta."""
    return read_slot(slot)[0]


def read_slot(slot: memoryview) -> tuple[SlotHeader, bytearray]:
    """A slot's header and a copy of its meta, checked against the slot's size and the meta's CRC. Raises ProtocolMismatch."""
    if len(slot) < PIXEL_OFFSET:
        raise ProtocolMismatch(f"a slot of {len(slot)} bytes is too short for a header")
    magic, version, dtype, layout, place, index, token, pixel_bytes, start, meta_bytes, crc, *shape = _HEADER.unpack_from(slot)
    if magic != MAGIC or version != FORMAT_VERSION:
        raise ProtocolMismatch(f"slot has magic {magic!r} version {version}; expected {MAGIC!r} version {FORMAT_VERSION}")
    if dtype not in DTYPES or layout not in LAYOUTS:
        raise ProtocolMismatch(f"slot has unknown dtype {dtype} or layout {layout}")
    if place not in (0, 1) or start != meta_offset(0 if place else pixel_bytes) or start + meta_bytes > len(slot):
        raise ProtocolMismatch("slot lengths do not fit the slot", index=index)
    meta = bytearray(slot[start : start + meta_bytes])
    if zlib.crc32(meta) != crc:
        raise ProtocolMismatch("slot meta does not have its checksum", index=index)
    sides = (shape[0], shape[1], shape[2], shape[3])
    names = (DTYPES[dtype], LAYOUTS[layout])
    return SlotHeader(index, token, *names, sides, pixel_bytes, start, meta_bytes, crc, bool(place)), meta
