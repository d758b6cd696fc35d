"""Each row of docs/decode_contract.md: every kind of image is decoded by its rule, or refused for its reason."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.batch import BAD_REASONS
from headrace.core.image_header import PARSERS, read_header
from headrace.core.pipeline_spec import Decode
from headrace.testing import image_kinds
from headrace.testing.image_kinds import ImageKind, bad_kinds, encode, frame_at, good_kinds, patch, photo
from headrace.worker.engines import pixels
from tests.contract import reference_ops

BACKGROUND = (10, 200, 90)
DECODE = Decode(background=BACKGROUND)


def decode(data: bytes, rules: Decode = DECODE):
    """(pixels or None, reason)."""
    probed = pixels.probe(data, rules)
    if probed.reason != "none":
        return None, probed.reason
    try:
        return pixels.decode_rgb(probed, rules), "none"
    except pixels.BadImage as bad:
        return None, bad.reason


@pytest.mark.parametrize("kind", good_kinds(), ids=lambda kind: kind.name)
def test_each_good_kind_is_decoded_by_its_rule(kind: ImageKind) -> None:
    rgb, reason = decode(kind.data)
    assert reason == "none"
    assert rgb.dtype == np.uint8
    assert np.array_equal(rgb, reference_ops.decode(kind.data, BACKGROUND))
    assert pixels.probe(kind.data, DECODE).header.oriented_size == rgb.shape[:2]


@pytest.mark.parametrize("kind", bad_kinds(), ids=lambda kind: kind.name)
def test_each_bad_kind_is_refused_for_its_reason(kind: ImageKind) -> None:
    rgb, reason = decode(kind.data)
    assert rgb is None
    assert reason == kind.reason
    assert reason in BAD_REASONS


def test_all_formats_have_kinds() -> None:
    assert {read_header(kind.data).format for kind in good_kinds()} == set(PARSERS)


@pytest.mark.parametrize("name", ["webp", "avif"])
def test_a_format_that_pillow_was_built_without_is_unsupported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [kind for kind in good_kinds() if read_header(kind.data).format == name]
    built = pixels.features.check
    monkeypatch.setattr(pixels.features, "check", lambda feature: feature != name and built(feature))
    assert {decode(kind.data)[1] for kind in kinds} == {"unsupported"}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_puts_the_first_row_and_column_where_exif_says(orientation: int) -> None:
    # EXIF 2.3, table of tag 274: where row 0 and column 0 of the stored image are on the upright one.
    places = {1: "top left", 2: "top right", 3: "bottom right", 4: "bottom left"}
    places |= {5: "left top", 6: "right top", 7: "right bottom", 8: "left bottom"}
    row_side, column_side = places[orientation].split()
    stored = np.zeros((4, 6, 3), np.uint8)
    stored[0, :, 0] = 255
    stored[:, 0, 1] = 255
    upright = pixels.orient(stored, orientation)
    sides = {"top": np.s_[0], "bottom": np.s_[-1], "left": np.s_[:, 0], "right": np.s_[:, -1]}
    assert (upright[..., 0][sides[row_side]] == 255).all()
    assert (upright[..., 0] == 255).sum() == 6
    assert (upright[..., 1][sides[column_side]] == 255).all()
    assert (upright[..., 1] == 255).sum() == 4


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_impossible_orientation_is_none(value: int) -> None:
    for form in ("JPEG", "PNG", "WEBP"):
        rgb, reason = decode(encode(photo(), form, exif=image_kinds.exif(value)))
        assert reason == "none"
        assert rgb.shape[:2] == (image_kinds.HEIGHT, image_kinds.WIDTH)


@pytest.mark.parametrize("kind", image_kinds.good_jpegs(), ids=lambda kind: kind.name)
def test_a_jpeg_cut_anywhere_is_truncated(kind: ImageKind) -> None:
    end = kind.data.rindex(b"\xff\xd9") + 2
    for length in [2, 3, 20, *range(100, end, max(1, end // 40)), end - 1]:
        assert decode(kind.data[:length])[1] == "truncated", length
    assert decode(kind.data[:end])[1] == "none"


def test_a_cut_jpeg_is_decoded_where_the_job_tolerates_it() -> None:
    data = encode(photo(), "JPEG", quality=90)
    rules = replace(DECODE, tolerate_truncated=True)
    rgb, reason = decode(data[: len(data) * 3 // 4], rules)
    whole, _ = decode(data)
    assert reason == "none"
    assert np.array_equal(rgb[:100], whole[:100])
    assert not np.array_equal(rgb, whole)
    assert decode(data[:150], rules)[1] == "truncated"
    assert decode(encode(photo(), "PNG")[:-20], rules)[1] == "truncated"
    assert decode(patch(data, len(data) // 2, b"\xff\xd8\xff\xd8"), rules)[1] == "corrupt"


def test_most_damage_in_a_jpeg_scan_is_seen_and_the_rest_does_no_harm() -> None:
    # What no decoder can see is what happens to be valid Huffman code: hence checksums in the index.
    data = encode(photo(500, 375), "JPEG", quality=90)
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(100):
        at = int(rng.integers(len(data) // 4, len(data) - 100))
        mask = rng.integers(1, 256, 40, dtype=np.uint8)
        damaged = (np.frombuffer(data, np.uint8)[at : at + 40] ^ mask).tobytes()
        rgb, reason = decode(patch(data, at, damaged))
        found += reason == "corrupt"
        assert rgb is None or rgb.shape == (375, 500, 3)
    assert found >= 60


def test_size_limit_is_the_jobs_and_judged_before_memory_is_taken() -> None:
    data = encode(photo(), "JPEG")
    area = image_kinds.WIDTH * image_kinds.HEIGHT
    assert decode(data, replace(DECODE, max_pixels=area))[1] == "none"
    assert decode(data, replace(DECODE, max_pixels=area - 1))[1] == "too_large"
    huge = ImageKind("", patch(data, frame_at(data) + 5, b"\xff\xdc\xff\xdc"))
    assert decode(huge.data, replace(DECODE, max_pixels=2**31))[1] == "too_large"


def test_jpeg_of_unusual_chroma_sampling_goes_to_pillow() -> None:
    # simplejpeg refuses a luma of 3x1. No encoder here writes one, so the scan doesn't fit the frame: both must agree on that.
    data = encode(photo(48, 32), "JPEG", subsampling=0)
    odd = patch(data, frame_at(data) + 11, b"\x31")
    assert not pixels.is_turbo(read_header(odd))
    assert pixels.is_turbo(read_header(data))
    rgb, reason = decode(odd)
    assert reason == "none"
    assert np.array_equal(rgb, reference_ops.decode(odd))


def test_long_texts_in_a_png_are_no_damage() -> None:
    text = image_kinds.chunk(b"zTXt", b"workflow\0\0" + zlib.compress(b"node " * 500_000))
    data = image_kinds.png(np.asarray(photo()), 2, text)
    assert np.array_equal(decode(data)[0], np.asarray(photo()))


def test_a_memoryview_is_decoded_as_bytes_are() -> None:
    data = encode(photo(), "JPEG")
    assert np.array_equal(decode(memoryview(data))[0], decode(data)[0])


def test_the_page_names_every_reason_and_format() -> None:
    page = Path("docs/decode_contract.md").read_text()
    # Labels, lost parts and checksums are judged before an engine sees the bytes.
    for reason in set(BAD_REASONS) - {"none", "bad_label"}:
        assert f"`{reason}`" in page, reason
    for name in PARSERS:
        assert name in page.lower(), name
