"""core.batch.BatchMeta <-> the meta of a slot: a fixed head, the arrays, then the texts as a headrace.v1.BatchMeta.

```
0                    head: who, where in the plan, how many, milestones (see wire.meta_head), little-endian
HEAD_BYTES           int64[B] planned ids, int64[B] source ids
...                  labels: int64[B], uint8[B, width], or nothing where they are JSON
...                  uint8[B] status, uint8[B] reasons
...                  headrace.v1.BatchMeta: names, keys, JSON labels
```
What each hand-over needs lies in the head, and labels at a fixed place, so that a trainer's thread parses nothing else: code
and data that are touched once a batch are never in a cache. Both directions check every length against B, so that what is
decoded can be indexed without further checks.
"""

from __future__ import annotations

import struct

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.core.batch import BAD_REASONS, MILESTONES, PADDED, SUBSTITUTED, BatchMeta
from headrace.core.errors import ProtocolMismatch
from headrace.wire.gen import batch_pb2
from headrace.wire.meta_head import (
    HEAD,
    HEAD_BYTES,
    INT64,
    JSON,
    MOMENTS,
    NUMBERS,
    ROWS,
    MetaHead,
    read_head,
    read_int64,
    read_labels,
    read_milestones,
    read_status,
    stamp_of,
    texts_at,
)


def encode_meta(meta: BatchMeta) -> bytes:
    """Serialise. Raises ProtocolMismatch if the arrays disagree about B or a field is out of range: a bug of the caller."""
    _check_lengths(meta)
    kind, width, labels = _encode_labels(meta.labels)
    try:
        message = batch_pb2.BatchMeta(
            job=meta.job,
            worker=meta.worker,
            plan_hash=meta.plan_hash,
            fingerprint=meta.fingerprint,
            keys=meta.keys,
            label_json=meta.label_json,
            bad_keys=meta.bad_keys,
        )
        head = HEAD.pack(
            meta.attempt,
            meta.rank,
            meta.index,
            meta.epoch,
            meta.step,
            meta.batch,
            meta.lane,
            len(meta.sample_ids),
            meta.token,
            stamp_of(meta.job, meta.plan_hash, meta.fingerprint),
            kind,
            width,
            int(np.count_nonzero(meta.status == PADDED)),
            len(meta.bad_keys),
        )
        moments = MOMENTS.pack(*(meta.milestones.get(name, 0.0) for name in MILESTONES))
        ids = (np.ascontiguousarray(array, INT64).tobytes() for array in (meta.sample_ids, meta.source_ids))
        return b"".join(
            (head, moments, *ids, labels, meta.status.tobytes(), meta.reasons.tobytes(), message.SerializeToString())
        )
    except (ValueError, TypeError, struct.error) as error:  # UnicodeEncodeError is a ValueError
        raise ProtocolMismatch(f"batch meta cannot be written: {error}", job=meta.job, index=meta.index) from error


def decode_meta(data: bytes | bytearray | memoryview) -> BatchMeta:
    """Parse all of it. Arrays are writable views into `data` where that is a bytearray, else into a copy.

    Raises ProtocolMismatch on anything but a consistent meta with samples.
    """
    data = data if isinstance(data, bytearray) else bytearray(data)
    head = read_head(data)
    count, at = head.samples, texts_at(head)
    try:
        message = batch_pb2.BatchMeta.FromString(bytes(memoryview(data)[at:]))
    except DecodeError as error:
        raise ProtocolMismatch(f"batch meta's texts are not a BatchMeta: {error}", index=head.index) from error
    meta = BatchMeta(
        job=message.job,
        attempt=head.attempt,
        rank=head.rank,
        index=head.index,
        epoch=head.epoch,
        step=head.step,
        batch=head.batch,
        lane=head.lane,
        token=head.token,
        worker=message.worker,
        plan_hash=message.plan_hash,
        fingerprint=message.fingerprint,
        sample_ids=read_int64(data, HEAD_BYTES, count),
        source_ids=read_int64(data, HEAD_BYTES + 8 * count, count),
        status=read_status(data, head),
        reasons=np.frombuffer(data, np.uint8, count, at - count),
        keys=list(message.keys),
        labels=read_labels(data, head),
        label_json=list(message.label_json),
        milestones=read_milestones(data),
        bad_keys=list(message.bad_keys),
    )
    _check_lengths(meta)
    _check_head(meta, head)
    return meta


def _check_head(meta: BatchMeta, head: MetaHead) -> None:
    if head.stamp != stamp_of(meta.job, meta.plan_hash, meta.fingerprint):
        raise ProtocolMismatch("batch meta's stamp does not stand for its job, plan and fingerprint", index=meta.index)
    if head.padded != np.count_nonzero(meta.status == PADDED) or head.substituted != len(meta.bad_keys):
        raise ProtocolMismatch("batch meta counts other padded or substituted samples than it has", index=meta.index)
    if head.label_kind == ROWS and not head.label_width:
        raise ProtocolMismatch("batch meta has label rows without columns", index=meta.index)


def _check_lengths(meta: BatchMeta) -> None:
    count = len(meta.sample_ids)
    if count < 1:
        raise ProtocolMismatch("batch meta has no samples", index=meta.index)
    lengths = {
        "source_ids": len(meta.source_ids),
        "status": len(meta.status),
        "reasons": len(meta.reasons),
        "keys": len(meta.keys),
        "labels": count if meta.labels is None else len(meta.labels),
        "label_json": len(meta.label_json) if meta.labels is None else count,
    }
    for name, length in lengths.items():
        if length != count:
            raise ProtocolMismatch(f"batch meta has {length} {name} for {count} samples", index=meta.index)
    if len(meta.bad_keys) != np.count_nonzero(meta.status == SUBSTITUTED):
        raise ProtocolMismatch("batch meta must name each substituted sample once", index=meta.index)
    if meta.labels is not None and meta.label_json:
        raise ProtocolMismatch("batch meta has both number labels and JSON labels", index=meta.index)
    if meta.status.dtype != np.uint8 or meta.reasons.dtype != np.uint8:
        raise ProtocolMismatch("batch meta's status and reasons must be uint8", index=meta.index)
    if int(meta.status.max()) > SUBSTITUTED or int(meta.reasons.max()) >= len(BAD_REASONS):
        raise ProtocolMismatch("batch meta has an unknown status or reason", index=meta.index)


def _encode_labels(labels: NDArray[np.int64] | NDArray[np.uint8] | None) -> tuple[int, int, bytes]:
    if labels is None:
        return JSON, 0, b""
    if labels.ndim == 1:
        return NUMBERS, 0, np.ascontiguousarray(labels, INT64).tobytes()
    if labels.ndim != 2 or labels.dtype != np.uint8 or labels.shape[1] == 0:
        raise ProtocolMismatch(f"labels must be int64[B] or uint8[B, C], not {labels.dtype}{list(labels.shape)}")
    return ROWS, labels.shape[1], labels.tobytes()
