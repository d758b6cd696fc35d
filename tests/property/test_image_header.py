"""Headers from hostile bytes: no input raises, every answer is within its bounds, and the work is bounded."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.batch import BAD_REASONS
from headrace.core.headers.record import MAX_ITEMS
from headrace.core.image_header import check, read_header
from headrace.core.pipeline_spec import Decode
from headrace.testing.image_kinds import bad_kinds, good_kinds

GOOD = [kind.data for kind in good_kinds()]
STARTS = sorted({data[:12] for data in GOOD} | {kind.data[:12] for kind in bad_kinds()})


def sound(data: bytes) -> None:
    header = read_header(data)
    assert header.reason in BAD_REASONS
    assert 1 <= header.orientation <= 8
    assert header.width >= 0
    assert header.height >= 0
    if header.reason == "none":
        assert header.width * header.height > 0
        assert header.format
    assert check(header, Decode()) in BAD_REASONS


@given(st.binary(max_size=300))
@example(b"\xff\xd8\xff\xe0\x00\x00")
@example(b"\xff\xd8" + b"\xff" * 50)
@example(b"II*\0\x08\0\0\0\xff\xff")
@settings(max_examples=300, deadline=None)
def test_random_bytes(data: bytes) -> None:
    sound(data)


@given(st.sampled_from(STARTS), st.binary(max_size=400))
@settings(max_examples=400, deadline=None)
def test_random_bytes_after_a_true_beginning(start: bytes, data: bytes) -> None:
    sound(start + data)


@given(
    st.sampled_from(GOOD),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    st.none() | st.integers(0, 2000),
)
@settings(max_examples=600, deadline=None)
def test_mutated_real_headers(data: bytes, edits: list[tuple[int, int]], length: int | None) -> None:
    mutated = bytearray(data)
    for at, value in edits:
        mutated[at % len(mutated)] = value
    sound(bytes(mutated[:length]))


# All together take a second; quadratic work would take hours.
@pytest.mark.timeout(60)
def test_files_made_to_be_slow_are_read_in_bounded_time() -> None:
    empty_chunk = struct.pack(">I4sI", 0, b"aaaa", 0)
    png_start = next(data for data in GOOD if data[:4] == b"\x89PNG")[:33]
    hostile = {
        "jpeg of empty segments": b"\xff\xd8" + b"\xff\xe5\x00\x02" * (4 * MAX_ITEMS),
        "jpeg of restart markers": b"\xff\xd8" + b"\xff\xd0" * (4 * MAX_ITEMS),
        "jpeg of fill bytes": b"\xff\xd8" + b"\xff" * 2_000_000,
        "jpeg of stuffed bytes": b"\xff\xd8" + b"\xff\x00" * 500_000,
        "png of empty chunks": png_start + empty_chunk * (4 * MAX_ITEMS),
        "gif of extensions": b"GIF89a\1\0\1\0\0\0\0" + b"\x21\xfe\x00" * (4 * MAX_ITEMS),
        "gif of one-byte blocks": b"GIF89a\1\0\1\0\0\0\0\x21\xfe" + b"\x01\x01" * 1_000_000,
        "avif of sizes": b"\0\0\0\x14ftypavif\0\0\0\0" + b"ispe" * 500_000,
    }
    for name, data in hostile.items():
        assert len(data) > 500_000, name
        sound(data)
