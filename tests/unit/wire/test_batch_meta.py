"""BatchMeta survives the wire exactly, and nothing malformed gets through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.batch import BAD_REASONS, MILESTONES, PADDED, SUBSTITUTED, BatchMeta
from headrace.core.errors import ProtocolMismatch
from headrace.wire import slot_format
from headrace.wire.batch_meta import decode_meta, encode_meta
from headrace.wire.gen import batch_pb2
from headrace.wire.meta_head import (
    HEAD,
    JSON,
    ROWS,
    MetaHead,
    read_head,
    read_labels,
    read_milestones,
    read_status,
    stamp_of,
    texts_at,
)

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def metas(draw: st.DrawFn) -> BatchMeta:
    count = draw(st.integers(1, 9))

    def ints() -> np.ndarray:
        return np.array(draw(st.lists(INT64, min_size=count, max_size=count)), np.int64)

    def bytes_below(limit: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, limit - 1), min_size=count, max_size=count)), np.uint8)

    kind = draw(st.sampled_from(["int", "multi", "json"]))
    labels = None
    label_json: list[bytes] = []
    if kind == "int":
        labels = ints()
    elif kind == "multi":
        width = draw(st.integers(1, 5))
        labels = np.frombuffer(draw(st.binary(min_size=count * width, max_size=count * width)), np.uint8).reshape(count, width)
    else:
        label_json = draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))
    status = bytes_below(3)
    substituted = int((status == SUBSTITUTED).sum())
    return BatchMeta(
        job=draw(NAMES),
        attempt=draw(U64),
        rank=draw(U32),
        index=draw(U64),
        epoch=draw(U64),
        step=draw(U64),
        batch=draw(U64),
        lane=draw(U32),
        token=draw(U64),
        worker=draw(NAMES),
        plan_hash=draw(NAMES),
        fingerprint=draw(NAMES),
        sample_ids=ints(),
        source_ids=ints(),
        status=status,
        reasons=bytes_below(len(BAD_REASONS)),
        keys=draw(st.lists(NAMES, min_size=count, max_size=count)),
        labels=labels,
        label_json=label_json,
        milestones=draw(st.dictionaries(st.sampled_from(MILESTONES), st.floats(1e-3, 1e9))),
        bad_keys=draw(st.lists(NAMES, min_size=substituted, max_size=substituted)),
    )


def assert_same(left: BatchMeta, right: BatchMeta) -> None:
    for name in BatchMeta.__dataclass_fields__:
        a, b = getattr(left, name), getattr(right, name)
        if isinstance(a, np.ndarray):
            assert isinstance(b, np.ndarray) and a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b, name)
        else:
            assert a == b, name


def example(count: int = 4) -> BatchMeta:
    ids = np.arange(count, dtype=np.int64)
    zeros = np.zeros(count, np.uint8)
    keys = [f"k{i}" for i in range(count)]
    return BatchMeta("j", 0, 1, 2, 3, 4, 5, 6, 7, "w", "p", "f", ids, ids, zeros, zeros, keys, ids.copy())


@given(metas())
def test_round_trip(meta: BatchMeta) -> None:
    decoded = decode_meta(memoryview(encode_meta(meta)))
    assert_same(meta, decoded)
    decoded.status[0] = 0  # fresh arrays, writable


@given(st.binary(max_size=400))
def test_garbage_is_a_protocol_mismatch(data: bytes) -> None:
    with pytest.raises(ProtocolMismatch):
        decode_meta(data)


@given(metas(), st.data())
def test_corrupted_bytes_parse_or_are_refused(meta: BatchMeta, data: st.DataObject) -> None:
    raw = bytearray(encode_meta(meta))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_meta(bytes(raw))
    except ProtocolMismatch:
        return
    count = len(decoded.sample_ids)
    assert count >= 1 and len(decoded.keys) == len(decoded.status) == len(decoded.reasons) == len(decoded.source_ids) == count


def parts(meta: BatchMeta) -> tuple[MetaHead, bytes, batch_pb2.BatchMeta]:
    """Head, what lies between it and the texts, and the texts."""
    data = bytearray(encode_meta(meta))
    head = read_head(data)
    return head, bytes(data[HEAD.size : texts_at(head)]), batch_pb2.BatchMeta.FromString(bytes(data[texts_at(head) :]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", 3),
        ("samples", 5),
        ("samples", 0),
        ("samples", 2**32 - 1),
        ("label_kind", JSON),
        ("label_kind", ROWS),
        ("label_kind", 3),
        ("label_width", 2**32 - 1),
        ("padded", 1),
        ("substituted", 1),
        ("stamp", b"0" * 16),
    ],
)
def test_a_head_that_does_not_fit_is_refused(field: str, value: object) -> None:
    meta = example()
    if field == "label_width":
        meta.labels = np.zeros((4, 2), np.uint8)
    head, arrays, texts = parts(meta)
    with pytest.raises(ProtocolMismatch):
        decode_meta(HEAD.pack(*head._replace(**{field: value})) + arrays + texts.SerializeToString())


@pytest.mark.parametrize(
    ("at", "value"),
    [(-8, 3), (-8, SUBSTITUTED), (-8, PADDED), (-4, 0xFF)],
    ids=["status", "substituted without a key", "padded uncounted", "reason"],
)
def test_each_wrong_code_is_refused(at: int, value: int) -> None:
    head, arrays, texts = parts(example())
    wrong = bytearray(arrays)
    wrong[at] = value
    with pytest.raises(ProtocolMismatch):
        decode_meta(HEAD.pack(*head) + wrong + texts.SerializeToString())


def test_a_milestone_that_is_no_time_is_refused() -> None:
    meta = example()
    meta.milestones = dict.fromkeys(MILESTONES, float("nan"))
    with pytest.raises(ProtocolMismatch, match="not a time"):
        decode_meta(encode_meta(meta))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keys", ["a"]),
        ("label_json", [b"1"] * 4),
        ("bad_keys", ["a"]),
        ("job", "other"),
        ("plan_hash", "x"),
        ("fingerprint", ""),
    ],
)
def test_each_text_that_does_not_fit_is_refused(field: str, value: object) -> None:
    head, arrays, texts = parts(example())
    texts.ClearField(field)  # type: ignore[arg-type]
    if isinstance(value, list):
        getattr(texts, field).extend(value)
    else:
        setattr(texts, field, value)
    with pytest.raises(ProtocolMismatch):
        decode_meta(HEAD.pack(*head) + arrays + texts.SerializeToString())


@given(metas())
def test_what_a_hand_over_reads_is_what_all_of_it_says(meta: BatchMeta) -> None:
    data = bytearray(encode_meta(meta))
    head = read_head(data)
    numbers = (meta.attempt, meta.rank, meta.index, meta.epoch, meta.step, meta.batch, meta.lane, len(meta.keys), meta.token)
    assert head[:9] == numbers
    assert (head.padded, head.substituted) == (int((meta.status == PADDED).sum()), len(meta.bad_keys))
    assert read_milestones(data) == meta.milestones
    np.testing.assert_array_equal(read_status(data, head), meta.status)
    labels = read_labels(data, head)
    assert (labels is None) == (meta.labels is None)
    if labels is not None:
        assert meta.labels is not None and labels.dtype == meta.labels.dtype and labels.flags.aligned
        np.testing.assert_array_equal(labels, meta.labels)


def test_stamps_tell_texts_apart() -> None:
    stamps = {
        stamp_of(*texts) for texts in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("a", "b", "d")]
    }
    assert len(stamps) == 5


def test_encode_refuses_disagreeing_arrays() -> None:
    meta = example()
    meta.keys.pop()
    with pytest.raises(ProtocolMismatch, match="3 keys for 4 samples"):
        encode_meta(meta)


def test_encode_refuses_a_key_that_is_not_text() -> None:
    meta = example()
    meta.keys[0] = "\udcff"
    with pytest.raises(ProtocolMismatch, match="cannot be written"):
        encode_meta(meta)


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 60), st.sampled_from(["int", "json"]))
def test_the_slot_bound_holds(count: int, key_bytes: int, label_bytes: int, kind: str) -> None:
    meta = example(count)
    meta.job = meta.worker = "x" * 100
    meta.plan_hash, meta.fingerprint = "y" * 64, "z" * 400
    meta.sample_ids = meta.source_ids = np.full(count, -1, np.int64)
    meta.keys = ["k" * key_bytes] * count
    meta.status, meta.bad_keys = np.full(count, SUBSTITUTED, np.uint8), meta.keys
    meta.milestones = dict.fromkeys(MILESTONES, 1.5)
    if kind == "json":
        meta.labels, meta.label_json = None, [b"l" * label_bytes] * count
    assert len(encode_meta(meta)) <= slot_format.max_meta_bytes(count, key_bytes, label_bytes, 1)
