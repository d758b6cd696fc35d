"""Shard indexes and coalescing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.batch import BAD_REASONS
from headrace.core.errors import ManifestInvalid
from headrace.datasets.shard_index import (
    HEADER_BYTES,
    RECORD_BYTES,
    Entry,
    blob_range,
    decode_block,
    decode_header,
    decode_index,
    encode_index,
)
from headrace.worker.sources.coalesce import coalesce

SHARD_BYTES = 1 << 40
entries = st.lists(
    st.builds(
        Entry,
        key=st.text(st.characters(codec="utf-8"), max_size=40),
        offset=st.integers(0, SHARD_BYTES - 2**32),
        length=st.integers(0, 2**32 - 1),
        label=st.integers(-(2**63), 2**63 - 1),
        payload=st.binary(max_size=40),
        reason=st.sampled_from(BAD_REASONS),
        crc32=st.none() | st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=20,
)


def check_row(block: object, row: int, entry: Entry) -> None:
    record = block.records[row]
    assert (block.key(row), block.payload(row)) == (entry.key, entry.payload)
    assert (record["offset"], record["length"], record["label"]) == (entry.offset, entry.length, entry.label)
    assert BAD_REASONS[record["reason"]] == entry.reason
    assert (int(record["crc32"]) if record["flags"] & 1 else None) == entry.crc32


@given(entries)
def test_round_trip(wanted: list[Entry]) -> None:
    data = encode_index(wanted, SHARD_BYTES)
    header = decode_header(data, "x.idx")
    assert (header.samples, header.total_bytes, header.shard_bytes) == (len(wanted), len(data), SHARD_BYTES)
    block = decode_index(data, "x.idx")
    for row, entry in enumerate(wanted):
        check_row(block, row, entry)


@given(entries, st.data())
def test_any_block_is_read_by_two_ranges(wanted: list[Entry], draw: st.DataObject) -> None:
    data = encode_index(wanted, SHARD_BYTES)
    first = draw.draw(st.integers(0, len(wanted) - 1))
    count = draw.draw(st.integers(1, len(wanted) - first))
    records = data[HEADER_BYTES + first * RECORD_BYTES :][: count * RECORD_BYTES]
    start, end = blob_range(records, "x.idx")
    base = HEADER_BYTES + len(wanted) * RECORD_BYTES
    block = decode_block(records, data[base + start : base + end], first, SHARD_BYTES, "x.idx")
    for row in range(count):
        check_row(block, row, wanted[first + row])


@given(entries, st.data())
def test_a_cut_or_foreign_index_is_refused(wanted: list[Entry], draw: st.DataObject) -> None:
    data = encode_index(wanted, SHARD_BYTES)
    with pytest.raises(ManifestInvalid):
        decode_index(data[: draw.draw(st.integers(0, len(data) - 1))], "x.idx")
    with pytest.raises(ManifestInvalid):
        decode_index(b"X" + data[1:], "x.idx")


def test_a_record_that_leads_out_of_its_shard_is_refused() -> None:
    with pytest.raises(ManifestInvalid) as caught:
        decode_index(encode_index([Entry("a", 90, 20)], 100), "x.idx")
    assert caught.value.ids["index"] == "x.idx"


ranges = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 500)), max_size=40)


@given(ranges, st.integers(0, 400), st.integers(1, 3000))
def test_coalescing_covers_all_within_its_bounds(wanted: list[tuple[int, int]], gap: int, most: int) -> None:
    extents = coalesce([start for start, _ in wanted], [length for _, length in wanted], gap, most)
    assert sorted(item for extent in extents for item in extent.items) == list(range(len(wanted)))
    asked = set()
    for start, length in wanted:
        asked.update(range(start, start + length))
    for extent in extents:
        inside = [wanted[item] for item in extent.items]
        assert all(extent.start <= start and start + length <= extent.start + extent.length for start, length in inside)
        assert extent.length <= most or len({start for start, _ in inside}) == 1 or extent.length == max(n for _, n in inside)
        unasked = run = 0
        for byte in range(extent.start, extent.start + extent.length):
            run = 0 if byte in asked else run + 1
            unasked = max(unasked, run)
        assert unasked <= gap
    assert [extent.start for extent in extents] == sorted(extent.start for extent in extents)


def test_neighbours_are_one_read() -> None:
    assert len(coalesce([i * 1000 for i in range(16)], [900] * 16, 100, 1 << 20)) == 1
    assert len(coalesce([i * 1000 for i in range(16)], [900] * 16, 99, 1 << 20)) == 16
