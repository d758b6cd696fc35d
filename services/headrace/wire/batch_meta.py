"""core.batch.BatchMeta <-> the bytes of headrace.v1.BatchMeta.

Arrays travel as little-endian bytes. Both directions check every length against B, so that what is decoded can be
indexed without further checks.
"""

from __future__ import annotations

import math

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.core.batch import BAD_REASONS, MILESTONES, SUBSTITUTED, BatchMeta
from headrace.core.errors import ProtocolMismatch
from headrace.wire.gen import batch_pb2

_INT64 = np.dtype("<i8")


def encode_meta(meta: BatchMeta) -> bytes:
    """Serialise. Raises ProtocolMismatch if the arrays disagree about B or a field is out of range: a bug of the caller."""
    _check_lengths(meta)
    labels, width = _encode_labels(meta.labels)
    try:
        message = batch_pb2.BatchMeta(
            job=meta.job,
            attempt=meta.attempt,
            rank=meta.rank,
            index=meta.index,
            epoch=meta.epoch,
            step=meta.step,
            batch=meta.batch,
            lane=meta.lane,
            token=meta.token,
            worker=meta.worker,
            plan_hash=meta.plan_hash,
            fingerprint=meta.fingerprint,
            sample_ids=np.ascontiguousarray(meta.sample_ids, _INT64).tobytes(),
            source_ids=np.ascontiguousarray(meta.source_ids, _INT64).tobytes(),
            status=meta.status.tobytes(),
            reasons=meta.reasons.tobytes(),
            keys=meta.keys,
            labels=labels,
            label_width=width,
            label_json=meta.label_json,
            milestones=[meta.milestones.get(name, 0.0) for name in MILESTONES],
            bad_keys=meta.bad_keys,
        )
        return message.SerializeToString()
    except (ValueError, TypeError) as error:  # UnicodeEncodeError is a ValueError
        raise ProtocolMismatch(f"batch meta cannot be written: {error}", job=meta.job, index=meta.index) from error


def decode_meta(data: bytes | memoryview) -> BatchMeta:
    """Parse. Arrays are fresh and writable. Raises ProtocolMismatch on anything but a consistent BatchMeta with samples."""
    try:
        message = batch_pb2.BatchMeta.FromString(bytes(data))
    except DecodeError as error:
        raise ProtocolMismatch(f"batch meta of {len(data)} bytes is not a BatchMeta: {error}") from error
    moments = list(message.milestones)
    if len(moments) != len(MILESTONES):
        raise ProtocolMismatch(f"batch meta has {len(moments)} milestones, expected {len(MILESTONES)}", index=message.index)
    if not math.isfinite(sum(moments)):
        raise ProtocolMismatch("batch meta has a milestone that is not a time", index=message.index)
    status, reasons = message.status, message.reasons
    sample_ids = _int64(message.sample_ids, "sample_ids")
    meta = BatchMeta(
        job=message.job,
        attempt=message.attempt,
        rank=message.rank,
        index=message.index,
        epoch=message.epoch,
        step=message.step,
        batch=message.batch,
        lane=message.lane,
        token=message.token,
        worker=message.worker,
        plan_hash=message.plan_hash,
        fingerprint=message.fingerprint,
        sample_ids=sample_ids,
        source_ids=_int64(message.source_ids, "source_ids"),
        status=_uint8(status),
        reasons=_uint8(reasons),
        keys=list(message.keys),
        labels=_decode_labels(message, len(sample_ids)),
        label_json=list(message.label_json),
        milestones=dict(zip(MILESTONES, moments, strict=True)),
        bad_keys=list(message.bad_keys),
    )
    if 0.0 in moments:
        meta.milestones = {name: moment for name, moment in meta.milestones.items() if moment}
    if not _plain(meta, status, reasons):
        _check_lengths(meta)
    return meta


def _plain(meta: BatchMeta, status: bytes, reasons: bytes) -> bool:
    """True for a consistent batch of good samples. Nearly all are, and bytes are compared faster than arrays."""
    count = len(meta.sample_ids)
    labels = len(meta.label_json) if meta.labels is None else len(meta.labels)
    return (
        count == len(meta.source_ids) == len(meta.keys) == labels == status.count(0) == reasons.count(0)
        and count == len(status) == len(reasons)
        and count > 0
        and not meta.bad_keys
    )


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


def _encode_labels(labels: NDArray[np.int64] | NDArray[np.uint8] | None) -> tuple[bytes, int]:
    if labels is None:
        return b"", 0
    if labels.ndim == 1:
        return np.ascontiguousarray(labels, _INT64).tobytes(), 0
    if labels.ndim != 2 or labels.dtype != np.uint8 or labels.shape[1] == 0:
        raise ProtocolMismatch(f"labels must be int64[B] or uint8[B, C], not {labels.dtype}{list(labels.shape)}")
    return labels.tobytes(), labels.shape[1]


def _decode_labels(message: batch_pb2.BatchMeta, count: int) -> NDArray[np.int64] | NDArray[np.uint8] | None:
    if message.label_json:
        if message.labels or message.label_width:
            raise ProtocolMismatch("batch meta has both number labels and JSON labels", index=message.index)
        return None
    width = message.label_width
    if width == 0:
        return _int64(message.labels, "labels")
    if len(message.labels) != count * width:
        raise ProtocolMismatch(
            f"batch meta has {len(message.labels)} label bytes for {count} rows of {width}", index=message.index
        )
    return _uint8(message.labels).reshape(count, width)


def _int64(data: bytes, name: str) -> NDArray[np.int64]:
    if len(data) % 8:
        raise ProtocolMismatch(f"batch meta's {name} has {len(data)} bytes, not whole int64")
    array = np.frombuffer(bytearray(data), _INT64)
    return array if _INT64.isnative else array.astype(np.int64)


def _uint8(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(data), np.uint8)
