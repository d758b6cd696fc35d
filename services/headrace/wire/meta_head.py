"""The fixed part of a slot's meta: what each hand-over needs, read without parsing the rest of it (wire.batch_meta).

Code and data that are touched once a batch are never in a cache, so that this is most of what a hand-over costs.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.batch import MILESTONES
from headrace.core.errors import ProtocolMismatch

INT64 = np.dtype("<i8")
HEAD = struct.Struct("<QIQQQQIIQ16sIIII4x")  # a multiple of 8, so that arrays lie aligned
MOMENTS = struct.Struct(f"<{len(MILESTONES)}d")
HEAD_BYTES = HEAD.size + MOMENTS.size
JSON, NUMBERS, ROWS = range(3)
# A batch of more samples than any job may have; keeps sums of lengths small.
_MAX_SAMPLES = 1 << 20
_MOST_STAMPS = 100


class MetaHead(NamedTuple):
    """The head's numbers.

    attempt to lane: as in BatchMeta; samples: B. stamp: see `stamp_of`. label_kind: 0 JSON, 1 int64, 2 rows of label_width.
    padded, substituted: how many samples of that status.
    """

    attempt: int
    rank: int
    index: int  # type: ignore[assignment]
    epoch: int
    step: int
    batch: int
    lane: int
    samples: int
    token: int
    stamp: bytes
    label_kind: int
    label_width: int
    padded: int
    substituted: int


def stamp_of(job: str, plan_hash: str, fingerprint: str) -> bytes:
    """16 bytes that stand for the texts which all batches of a session share."""
    parts = (part.encode(errors="surrogatepass") for part in (job, plan_hash, fingerprint))
    return hashlib.blake2b(b"".join(len(part).to_bytes(4) + part for part in parts), digest_size=16).digest()


class KnownStamps:
    """Stamps whose texts were looked at. There are as many as engines make a session's batches: the newest 100 are kept."""

    __slots__ = ("_stamps",)

    def __init__(self) -> None:
        self._stamps: dict[bytes, None] = {}  # in the order in which they came

    def __contains__(self, stamp: bytes) -> bool:
        return stamp in self._stamps

    def add(self, stamp: bytes) -> None:
        """The texts behind it are the session's."""
        self._stamps[stamp] = None
        if len(self._stamps) > _MOST_STAMPS:
            del self._stamps[next(iter(self._stamps))]


def read_head(data: bytearray) -> MetaHead:
    """The head. Raises ProtocolMismatch where `data` has no room for it and the arrays that it announces."""
    if len(data) < HEAD_BYTES:
        raise ProtocolMismatch(f"batch meta of {len(data)} bytes is too short for its head")
    head = tuple.__new__(MetaHead, HEAD.unpack_from(data))  # as _make does, without its frame
    if not 0 < head.samples <= _MAX_SAMPLES or head.label_kind > ROWS or texts_at(head) > len(data):
        raise ProtocolMismatch(
            f"batch meta of {len(data)} bytes does not hold {head.samples} samples with labels of kind {head.label_kind}",
            index=head.index,
        )
    return head


def read_milestones(data: bytearray) -> dict[str, float]:
    """The worker's milestones, without those that were not reached. Raises ProtocolMismatch on one that is not a time."""
    moments = MOMENTS.unpack_from(data, HEAD.size)
    if not math.isfinite(sum(moments)):
        raise ProtocolMismatch("batch meta has a milestone that is not a time")
    return {name: moment for name, moment in zip(MILESTONES, moments, strict=True) if moment}


def read_labels(data: bytearray, head: MetaHead) -> NDArray[np.int64] | NDArray[np.uint8] | None:
    """Labels as a writable view into `data`, or None where they are JSON."""
    start = HEAD_BYTES + 16 * head.samples
    if head.label_kind == NUMBERS:
        return read_int64(data, start, head.samples)
    if head.label_kind == JSON:
        return None
    return np.frombuffer(data, np.uint8, head.samples * head.label_width, start).reshape(head.samples, head.label_width)


def read_status(data: bytearray, head: MetaHead) -> NDArray[np.uint8]:
    """Status of each sample, uint8[B], as a writable view into `data`."""
    return np.frombuffer(data, np.uint8, head.samples, texts_at(head) - 2 * head.samples)


def texts_at(head: MetaHead) -> int:
    """Where the texts begin."""
    label_bytes = (0, 8, head.label_width)[head.label_kind]
    return HEAD_BYTES + head.samples * (18 + label_bytes)


def read_int64(data: bytearray, start: int, count: int) -> NDArray[np.int64]:
    """An array of whole numbers, as a writable view into `data` where this machine's byte order allows."""
    array = np.frombuffer(data, INT64, count, start)
    return array if INT64.isnative else array.astype(np.int64)
