"""The index of one shard: a record of fixed width per sample, readable by range.

Layout, little endian: header of 64 bytes | records of 40 bytes each | blob. Record i lies at 64 + 40 * i and says where sample
i's image lies in the shard; its key and label payload lie in the blob, one after the other in record order, so that any block
of records has one contiguous piece of blob. A reader needs two small reads for a block, or one for a whole small index.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.core import limits
from headrace.core.batch import BAD_REASONS, REASON_CODE
from headrace.core.errors import ManifestInvalid

MAGIC = b"HRINDEX1"
HEADER_BYTES = 64
_HEADER = struct.Struct("<8sQQQ")

RECORD = np.dtype(
    [
        ("offset", "<u8"),  # of the image in the tar; 0 in a folder
        ("label", "<i8"),  # integer label, or -1
        ("blob_offset", "<u8"),  # of the key in the blob; the label payload follows it
        ("length", "<u4"),  # bytes of the image
        ("label_length", "<u4"),
        ("crc32", "<u4"),  # of the image, where flag 1 is set
        ("key_length", "<u2"),
        ("reason", "u1"),  # index into core.batch.BAD_REASONS; 0 is good
        ("flags", "u1"),
    ]
)
RECORD_BYTES = RECORD.itemsize
HAS_CRC = 1
MAX_KEY_BYTES = limits.KEY_BYTES
MAX_IMAGE_BYTES = limits.IMAGE_BYTES

_FARTHEST = 2**63 - 2**32

Records = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample as found while indexing.

    key: its name; in a folder the file's path. offset, length: of the image in bytes. label: integer label, -1 where there is
    none. payload: JSON text, or the set labels as u32s. reason: why it is known bad. crc32: of the image, or None.
    """

    key: str
    offset: int
    length: int
    label: int = -1
    payload: bytes = b""
    reason: str = "none"
    crc32: int | None = None


@dataclass(slots=True)
class Header:
    """What the first 64 bytes say. samples, blob_bytes, shard_bytes: counts of records and bytes."""

    samples: int
    blob_bytes: int
    shard_bytes: int

    @property
    def blob_start(self) -> int:
        """Offset of the blob in the index."""
        return HEADER_BYTES + RECORD_BYTES * self.samples

    @property
    def total_bytes(self) -> int:
        """Size of the whole index."""
        return self.blob_start + self.blob_bytes


@dataclass(slots=True)
class IndexBlock:
    """Records [first, first + len(records)) of one shard, with their piece of the blob. blob_start: the piece's place in the
    blob."""

    first: int
    records: Records
    blob: memoryview
    blob_start: int
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.records.nbytes + len(self.blob)

    def key(self, row: int) -> str:
        """Key of a record of this block; row counts from the block's first. Raises ManifestInvalid."""
        record = self.records[row]
        start = int(record["blob_offset"]) - self.blob_start
        try:
            return bytes(self.blob[start : start + int(record["key_length"])]).decode()
        except UnicodeDecodeError as error:
            raise ManifestInvalid(
                f"the key of sample {self.first + row} of its shard is no UTF-8: index the data set again"
            ) from error

    def payload(self, row: int) -> bytes:
        """Label payload of a record of this block."""
        record = self.records[row]
        start = int(record["blob_offset"]) - self.blob_start + int(record["key_length"])
        return bytes(self.blob[start : start + int(record["label_length"])])


def encode_index(entries: list[Entry], shard_bytes: int) -> bytes:
    """The index of a shard with these samples, in this order. Keys longer than MAX_KEY_BYTES must have been refused before."""
    records = np.zeros(len(entries), RECORD)
    pieces: list[bytes] = []
    blob_offset = 0
    for i, entry in enumerate(entries):
        key = entry.key.encode()
        flags = 0 if entry.crc32 is None else HAS_CRC
        records[i] = (
            entry.offset,
            entry.label,
            blob_offset,
            entry.length,
            len(entry.payload),
            entry.crc32 or 0,
            len(key),
            REASON_CODE[entry.reason],
            flags,
        )
        pieces += (key, entry.payload)
        blob_offset += len(key) + len(entry.payload)
    head = _HEADER.pack(MAGIC, len(entries), blob_offset, shard_bytes).ljust(HEADER_BYTES, b"\0")
    return b"".join([head, records.tobytes(), *pieces])


def decode_header(data: bytes | memoryview, where: str) -> Header:
    """Read the first 64 bytes. Raises ManifestInvalid."""
    if len(data) < HEADER_BYTES:
        raise ManifestInvalid(f"index {where} is cut: index the data set again", index=where)
    magic, samples, blob_bytes, shard_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ManifestInvalid(f"{where} is not a shard index: index the data set again", index=where)
    if samples > limits.SAMPLES or max(blob_bytes, shard_bytes) >= 2**63:
        raise ManifestInvalid(f"{where} says impossible sizes: index the data set again", index=where)
    return Header(samples, blob_bytes, shard_bytes)


def decode_block(
    records_raw: bytes | memoryview, blob: bytes | memoryview, first: int, shard_bytes: int, where: str
) -> IndexBlock:
    """A block from its raw records and its piece of the blob. Raises ManifestInvalid if a record leads outside of either."""
    if len(records_raw) % RECORD_BYTES:
        raise ManifestInvalid(f"index {where} is cut: index the data set again", index=where)
    records: Records = np.frombuffer(records_raw, RECORD)
    blob_start = int(records["blob_offset"][0]) if len(records) else 0
    _check(records, blob_start, len(blob), shard_bytes, where)
    return IndexBlock(first, records, memoryview(blob), blob_start)


def decode_index(data: bytes | memoryview, where: str, shard_bytes: int | None = None) -> IndexBlock:
    """A whole index. shard_bytes: the shard's size where it is known from elsewhere. Raises ManifestInvalid."""
    header = decode_header(data, where)
    if shard_bytes is not None and header.shard_bytes != shard_bytes:
        raise ManifestInvalid(
            f"index {where} is of a shard of {header.shard_bytes} bytes, not {shard_bytes}: index again", index=where
        )
    if header.total_bytes != len(data):
        raise ManifestInvalid(f"index {where} has {len(data)} bytes, not {header.total_bytes}: index again", index=where)
    view = memoryview(data)
    return decode_block(view[HEADER_BYTES : header.blob_start], view[header.blob_start :], 0, header.shard_bytes, where)


def blob_range(records_raw: bytes | memoryview, where: str) -> tuple[int, int]:
    """(start, end) in the blob of the keys and labels of a block of records. Raises ManifestInvalid for too many.

    Keys and labels lie in record order, so the last record ends the piece.
    """
    records: Records = np.frombuffer(records_raw, RECORD)
    last = records[-1]
    start, end = int(records["blob_offset"][0]), int(last["blob_offset"]) + int(last["key_length"]) + int(last["label_length"])
    most = sum(int(records[name].sum(dtype=np.int64)) for name in ("key_length", "label_length"))
    if not 0 <= end - start <= most:
        raise _outside(where)
    return start, end


def _check(records: Records, blob_start: int, blob_bytes: int, shard_bytes: int, where: str) -> None:
    """Raise ManifestInvalid for a record that could not be used: everything after this relies on it."""
    offsets, blob_offsets = records["offset"], records["blob_offset"]
    # What lies so far below 2^63 adds up without wrapping around.
    if np.any(offsets > _FARTHEST) or np.any(blob_offsets > _FARTHEST):
        raise _outside(where)
    image_ends = offsets.astype(np.int64) + records["length"]
    begins = blob_offsets.astype(np.int64)
    ends = begins + records["key_length"] + records["label_length"]
    if (
        np.any(image_ends > shard_bytes)
        or np.any(ends > blob_start + blob_bytes)
        or np.any(begins < blob_start)
        or np.any(records["key_length"] > limits.KEY_BYTES)
        or np.any(records["label_length"] > limits.LABEL_BYTES)
    ):
        raise _outside(where)
    if np.any(records["reason"] >= len(BAD_REASONS)):
        raise ManifestInvalid(f"index {where} names unknown reasons: index the data set again, by this version", index=where)


def _outside(where: str) -> ManifestInvalid:
    return ManifestInvalid(f"index {where} leads outside of its shard: index the data set again", index=where)
