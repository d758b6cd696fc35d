"""Every kind of image of docs/decode_contract.md, in every format that can have it, through every engine that runs here.

What must come out is worked out from the photo by the rules (image_variants), and, as a second opinion, by Pillow.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.core.batch import BAD_REASONS
from headrace.core.image_header import PARSERS, read_header
from headrace.core.pipeline_spec import CenterCrop, Decode, PipelineSpec
from headrace.testing import container_kinds, kinds_page
from headrace.testing.image_kinds import ImageKind, encode, photo
from headrace.testing.image_variants import BACKGROUND, ROWS, image_variants
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine, Sample
from tests.contract import engine_entries, reference_ops
from tests.contract.engine_entries import Entry

DECODE = Decode(background=BACKGROUND)
VARIANTS = image_variants()
GOOD = encode(photo(), "PNG")


def run(engine: Engine, datas: list[bytes], size: tuple[int, int], decode: Decode = DECODE, key: str = "k"):
    """(pixels uint8[B, H, W, 3] without any resize, reasons)."""
    spec = PipelineSpec(ops=(CenterCrop(size),), decode=decode)
    slot = bytearray(spec.pixel_bytes(len(datas)))
    prepared = engine.prepare(spec, 1)
    result = prepared.run(
        [Sample(i, key, data) for i, data in enumerate(datas)], [(0, i) for i in range(len(datas))], memoryview(slot)
    )
    prepared.close()
    return np.frombuffer(slot, np.uint8).reshape(spec.shape(len(datas))), [BAD_REASONS[code] for code in result.reasons]


def size_of(kind: ImageKind) -> tuple[int, int]:
    return photo().size[::-1] if kind.truth is None else kind.truth.shape[:2]


@pytest.mark.parametrize("kind", VARIANTS, ids=lambda kind: kind.name)
def test_each_kind_gives_its_pixels_or_its_reason_and_leaves_the_batch_alone(
    kind: ImageKind, engine: Engine, entry: Entry
) -> None:
    size = size_of(kind)
    clean, _ = run(engine, [GOOD], size)
    pixels, reasons = run(engine, [GOOD, kind.data, GOOD], size, key=f"{kind.name}.JPEG")
    assert np.array_equal(pixels[0], clean[0]) and np.array_equal(pixels[2], clean[0]), "a neighbour was touched"
    assert (reasons[0], reasons[2]) == ("none", "none")
    if kind.or_decoded:
        assert reasons[1] in (kind.reason, "truncated", "none")
        return
    assert reasons[1] == kind.reason
    if kind.reason != "none":
        return
    found = pixels[1].astype(np.int64)
    if kind.truth is not None:
        assert np.abs(found - kind.truth).mean() <= kind.levels + entry.decode_levels, "not what the rule says"
    if "_exif_" in kind.name and not kind.name[-1].isdigit():
        return  # Pillow makes no sense of damaged EXIF, and fails
    if read_header(kind.data).oriented_size == size or read_header(kind.data).format == "avif":
        second = reference_ops.decode(kind.data, BACKGROUND)
        assert np.abs(found - second).mean() <= entry.decode_levels, "not what Pillow says"


def test_each_engine_of_the_registry_has_an_entry() -> None:
    names = {entry.name for entry in engine_entries.ENTRIES} - set(engine_entries.MADE_HERE)
    assert names == set(registry.NAMES) - engine_entries.NO_PIXELS


def test_each_row_and_format_is_tried() -> None:
    assert {kind.row for kind in VARIANTS} == set(ROWS)
    assert len({kind.name for kind in VARIANTS}) == len(VARIANTS)
    good = [kind for kind in VARIANTS if kind.reason == "none"]
    assert {read_header(kind.data).format for kind in good} == set(PARSERS)
    for row in ("truncated", "corrupt", "huge dimensions"):
        formats = {read_header(kind.data).format for kind in VARIANTS if kind.row == row}
        assert formats >= set(PARSERS), f"{row} is not tried in every format"


def test_a_cut_jpeg_keeps_its_first_rows_where_the_job_tolerates_it(engine: Engine) -> None:
    cut = [kind for kind in VARIANTS if kind.row in ("truncated", "progressive") and kind.reason == "truncated"]
    size = photo().size[::-1]
    tolerant = replace(DECODE, tolerate_truncated=True)
    kept = {kind.name for kind in cut if run(engine, [kind.data], size, tolerant)[1] == ["none"]}
    assert {"jpeg_cut_50%", "jpeg_cut_99%", "jpeg_progressive_420_cut_60%", "jpeg_cmyk_cut_50%"} <= kept
    assert all(name.startswith("jpeg") for name in kept), "only a JPEG that lacks rows is worth anything"
    whole = encode(photo(), "JPEG", quality=90)
    pixels, _ = run(engine, [whole, whole[: len(whole) // 2]], size, tolerant)
    assert np.array_equal(pixels[0][:60], pixels[1][:60]) and not np.array_equal(pixels[0], pixels[1])


LIMITED = """
import resource, sys
from headrace.core.pipeline_spec import CenterCrop, Decode, PipelineSpec
from headrace.testing.image_variants import variants_of
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Sample

kinds = variants_of("huge dimensions")
spec = PipelineSpec(ops=(CenterCrop((8, 8)),))
prepared = registry.create(sys.argv[1], 1).prepare(spec, 0)
slot = bytearray(spec.pixel_bytes(1))
prepared.run([Sample(0, "warm", b"")], [(0, 0)], memoryview(slot))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
for kind in kinds:
    prepared.run([Sample(0, kind.name, kind.data)], [(0, 0)], memoryview(slot))
print(len(kinds))
"""


def test_a_huge_image_takes_no_memory(entry: Entry) -> None:
    if entry.name in ("cvcuda", "dali-gpu"):
        pytest.skip("CUDA reserves more address space than the limit of this test")
    if entry.name in engine_entries.MADE_HERE:
        pytest.skip("made by tests alone; the same code decodes in nvimgcodec")
    done = subprocess.run([sys.executable, "-c", LIMITED, entry.name], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 12, "after what the engine logs"


def test_the_page_has_the_table_of_what_is_tried() -> None:
    page = Path("docs/decode_contract.md").read_text(encoding="utf-8")
    assert kinds_page.with_tables(page) == page, "write it anew: python -m headrace.testing.kinds_page"


def test_the_page_of_reliability_counts_what_is_tried() -> None:
    page = Path("docs/reliability.md").read_text(encoding="utf-8")
    containers = container_kinds.container_kinds()
    assert f"{len(ROWS)} kinds of image in {len(VARIANTS)} variants" in page
    assert f"{len(container_kinds.ROWS)} kinds of container in {len(containers)} variants" in page
    assert page.count(f"{2 * len(containers)} of {2 * len(containers)}") == 5, "by engine, with and without checksums"
