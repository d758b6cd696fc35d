"""The native core: its pixels are the libraries' whole decode and Pillow's resize, bit for bit, on every instruction set."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import PIL
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from structlog.testing import capture_logs

from headrace.core import pipeline_spec as ps
from headrace.core.batch import BAD_REASONS, REASON_CODE
from headrace.core.errors import HeadraceError
from headrace.core.image_header import read_header
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import encode, exif, good_jpegs, good_kinds, patch, photo
from headrace.worker.engines import cpu, native, registry
from headrace.worker.engines.native import COLUMNS, ISAS, NativeCore, NativeMissing
from headrace.worker.engines.protocol import Sample
from tests.contract.reference_ops import resize as pillow_resize

try:
    BEST = native.load()
except NativeMissing as missing:
    pytest.skip(f"no native core: {missing}", allow_module_level=True)

# Before 13.0 Pillow always did columns first: where the core does rows first, the two are a level apart.
PILLOW_SLACK = 0 if int(PIL.__version__.split(".")[0]) >= 13 else 1
JPEG = encode(photo(), "JPEG", quality=90)
THIS_SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=ISAS)
def core(request: pytest.FixtureRequest) -> NativeCore:
    try:
        return native.load(request.param)
    except NativeMissing as missing:
        pytest.skip(str(missing))


def exact_resize(pixels, height: int, width: int):
    """The rule in whole numbers: weights of 22 bits, two passes, each rounded half up to 8 bits."""

    def one_pass(levels, out: int):
        taken = len(levels)
        scale = taken / out
        support = max(scale, 1.0)
        rows = []
        for i in range(out):
            center = (i + 0.5) * scale
            low, high = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), taken)
            weights = np.maximum(1.0 - np.abs((np.arange(low, high) - center + 0.5) * (1.0 / support)), 0.0)
            total = 0.0
            for weight in weights:
                total += weight
            whole = np.floor(0.5 + weights / total * 2**22).astype(np.int64)
            rows.append((np.tensordot(whole, levels[low:high], 1) + 2**21) >> 22)
        return np.stack(rows)

    def across(levels):
        return one_pass(levels.swapaxes(0, 1), width).swapaxes(0, 1)

    levels = pixels.astype(np.int64)
    lower, narrower = len(levels) - height, levels.shape[1] - width
    if lower > 0 and lower > 2 * narrower:
        return across(one_pass(levels, height)).astype(np.uint8)
    return one_pass(across(levels), height).astype(np.uint8)


def noise(height: int, width: int, seed: int):
    """Pixels of few levels, so that sums often lie near a half."""
    rng = np.random.default_rng(seed)
    return rng.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), (height, width, 3))


sides = st.integers(1, 90) | st.integers(1, 700)


@given(st.tuples(sides, sides), st.tuples(sides, sides), st.integers(0, 2**30))
@settings(THIS_SETTINGS, max_examples=60)
def test_resize_is_the_rule_and_pillows(core: NativeCore, size, out, seed) -> None:
    pixels = noise(*size, seed)
    found = core.resize(pixels, *out)
    assert np.array_equal(found, exact_resize(pixels, *out))
    assert np.abs(found.astype(int) - pillow_resize(pixels, *out)).max() <= PILLOW_SLACK


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (3, 20_000), (20_000, 2)])
def test_resize_of_strips_whose_sums_have_thousands_of_terms(core: NativeCore, shape) -> None:
    pixels = noise(*shape, seed=1)
    pixels[:, : shape[1] // 2] = 255
    for out in ((1, 1), (2, 3), (5, 2)):
        assert np.abs(core.resize(pixels, *out).astype(int) - pillow_resize(pixels, *out)).max() <= PILLOW_SLACK


def test_resize_of_pixels_of_any_strides(core: NativeCore) -> None:
    pixels = noise(40, 50, 2)
    for view in (pixels[::-1], pixels[:, ::-1], pixels.transpose(1, 0, 2), pixels[3:30, 7:49], pixels[::2], pixels[:, :, ::-1]):
        expected = core.resize(np.ascontiguousarray(view), 17, 23)
        assert np.array_equal(core.resize(view, 17, 23), expected)
    assert core.resize(pixels, 40, 50) is pixels


def jpegs() -> dict[str, bytes]:
    """Every kind that the core takes, small and odd in size."""
    found = {}
    for width, height in ((100, 75), (33, 47), (17, 9), (130, 5)):
        pixels = np.ascontiguousarray(photo(width, height))
        image = Image.fromarray(pixels)
        for sampling in ("444", "422", "420", "440", "411"):
            found[f"{sampling}_{width}x{height}"] = simplejpeg.encode_jpeg(pixels, 88, "RGB", sampling)
        gray = encode(image.convert("L"), "JPEG", quality=85)
        found[f"gray_{width}x{height}"] = gray
        found[f"gray_2x2_{width}x{height}"] = patch(gray, gray.index(b"\xff\xc0") + 11, b"\x22")
        found[f"rgb_{width}x{height}"] = encode(image, "JPEG", quality=85, keep_rgb=True)
        found[f"restart_{width}x{height}"] = encode(image, "JPEG", quality=85, restart_marker_blocks=3)
        for i in range(3):
            found[f"progressive_{i}_{width}x{height}"] = encode(image, "JPEG", quality=85, subsampling=i, progressive=True)
    return found


def without_last_scans(data: bytes) -> list[bytes]:
    """A progressive JPEG that ends after 1, 2, ... of its scans, each whole by its markers."""
    starts, at = [], data.find(b"\xff\xda")
    while at >= 0:
        starts.append(at)
        at = data.find(b"\xff\xda", at + 2)
    found = []
    for start in starts[1:]:
        part = data[:start]
        # Tables of the scan that is gone go, too.
        while (table := part.rfind(b"\xff\xc4")) >= 0 and table + 2 + int.from_bytes(part[table + 2 : table + 4], "big") == len(
            part
        ):
            part = part[:table]
        found.append(part + b"\xff\xd9")
    return found


def boxes(rng: np.random.Generator, height: int, width: int, count: int):
    """Random boxes, and the whole image."""
    yield 0, 0, height, width
    for _ in range(count):
        y, x = int(rng.integers(height)), int(rng.integers(width))
        yield y, x, int(rng.integers(1, height - y + 1)), int(rng.integers(1, width - x + 1))


def pillow_decode(data: bytes):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def assert_regions_are_the_whole(data: bytes, rng: np.random.Generator, count: int) -> None:
    whole = pillow_decode(data)
    height, width = whole.shape[:2]
    for y, x, rows, columns in boxes(rng, height, width, count):
        for strict in (True, False):
            found = BEST.decode(data, (height, width), (y, x, rows, columns), strict)
            assert np.array_equal(found, whole[y : y + rows, x : x + columns]), (y, x, rows, columns)


def test_a_region_is_the_crop_of_the_whole_decode() -> None:
    rng = np.random.default_rng(3)
    for name, data in jpegs().items():
        assert native.takes(read_header(data)), name
        assert np.array_equal(pillow_decode(data), simplejpeg.decode_jpeg(data, "RGB")), name
        assert_regions_are_the_whole(data, rng, 40)


def test_a_region_of_a_progressive_image_whose_last_scans_are_missing() -> None:
    rng = np.random.default_rng(4)
    for sampling in range(3):
        parts = without_last_scans(encode(photo(101, 75), "JPEG", quality=85, subsampling=sampling, progressive=True))
        assert len(parts) > 5
        for data in parts:
            assert_regions_are_the_whole(data, rng, 12)


def test_the_core_refuses_the_same_damaged_photos_as_the_whole_decode() -> None:
    rng = np.random.default_rng(5)
    kinds = [kind.data for kind in good_jpegs() if native.takes(read_header(kind.data)) and len(kind.data) > 2000]
    refused = 0
    for i in range(300):
        data = bytearray(kinds[i % len(kinds)])
        length = int(rng.integers(1, 41))
        at = int(rng.integers(len(data) // 4, len(data) - 60))
        for place in range(at, at + length):
            data[place] ^= int(rng.integers(1, 256))
        header = read_header(bytes(data))
        if header.reason != "none" or not native.takes(header) or header.jfif_major_at:
            continue
        try:
            whole = simplejpeg.decode_jpeg(bytes(data), "RGB", strict=True)
        except ValueError:
            whole = None
        y, x, rows, columns = list(boxes(rng, header.height, header.width, 1))[1]
        found = BEST.decode(bytes(data), (header.height, header.width), (y, x, rows, columns))
        assert (found is None) == (whole is None)
        assert whole is None or np.array_equal(found, whole[y : y + rows, x : x + columns])
        refused += whole is None
    assert refused > 100


def test_damage_above_beside_and_below_the_region_is_seen() -> None:
    height, width = 203, 301
    for at in (len(JPEG) // 8, len(JPEG) // 2, len(JPEG) - 600):
        damaged = patch(JPEG, at, b"\xff\xd8\xff\xd8")
        for region in ((0, 0, 8, 8), (195, 290, 8, 8), (100, 5, 8, 8)):
            assert BEST.decode(JPEG, (height, width), region) is not None
            assert BEST.decode(damaged, (height, width), region) is None


def run(engine, spec: PipelineSpec, datas):
    slot = bytearray(spec.pixel_bytes(len(datas)))
    samples = [Sample(i, f"key{i}", data) for i, data in enumerate(datas)]
    result = engine.prepare(spec, 7).run(samples, [(1, 50 + i) for i in range(len(datas))], memoryview(slot))
    return np.frombuffer(slot, np.uint8).reshape(len(datas), -1), result


FLIPS = (ps.HorizontalFlip(), ps.VerticalFlip(), ps.HorizontalFlip(0.7))
FUSED = {
    "random_resized_crop": (ps.RandomResizedCrop((56, 41)), *FLIPS),
    "resize_pair": (ps.Resize((33, 71)), *FLIPS),
    "evaluation": (ps.Resize(64), ps.CenterCrop((56, 56))),
    "resize_then_random_crop": (ps.Resize(70), ps.RandomCrop((56, 60)), *FLIPS),
    "crop_of_a_crop": (ps.RandomResizedCrop((80, 80)), ps.CenterCrop((41, 33)), ps.HorizontalFlip()),
    "center_crop": (ps.CenterCrop((90, 101)), *FLIPS),
    "random_crop_that_is_often_larger": (ps.RandomCrop((203, 202)), ps.VerticalFlip()),
    "more_after": (
        ps.RandomResizedCrop((40, 40)),
        ps.HorizontalFlip(),
        ps.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ps.Resize((20, 30)),
    ),
}


@pytest.mark.parametrize("ops", FUSED.values(), ids=FUSED.keys())
def test_fused_operations_are_those_one_by_one(ops, monkeypatch: pytest.MonkeyPatch) -> None:
    rotated = [encode(photo(64, 230), "JPEG", exif=exif(i)) for i in range(1, 9)]
    datas = [*(kind.data for kind in good_jpegs()), *rotated]
    engine = cpu.CpuEngine(2, BEST)
    spec = PipelineSpec(ops=ops, decode=ps.Decode(background=(1, 200, 90)))
    assert cpu.fused_count(spec) >= 1
    fused, result = run(engine, spec, datas)
    assert not result.reasons.any()
    monkeypatch.setattr(cpu, "fused_count", lambda spec: 0)
    apart, _ = run(engine, spec, datas)
    engine.close()
    assert np.array_equal(fused, apart)


def test_operations_that_cannot_be_fused_are_not() -> None:
    for ops in ((ps.HorizontalFlip(), ps.CenterCrop((9, 9))), (ps.Resize(9), ps.HorizontalFlip(), ps.CenterCrop((9, 9)))):
        assert cpu.fused_count(PipelineSpec(ops=ops)) == 0


def digest(isa: str) -> str:
    """Of all JPEG kinds through a crop, a resize that shrinks or enlarges, and flips, by one instruction set."""
    datas = [kind.data for kind in good_jpegs()]
    engine = cpu.CpuEngine(1, native.load(isa))
    made = [
        run(engine, PipelineSpec(ops=(op, *FLIPS)), datas)[0] for op in (ps.RandomResizedCrop((224, 224)), ps.Resize((31, 45)))
    ]
    return hashlib.sha256(b"".join(pixels.tobytes() for pixels in made)).hexdigest()


def test_the_same_bits_whatever_instructions_libjpeg_and_the_core_use() -> None:
    expected = {digest(isa) for isa in ISAS[: ISAS.index(BEST.isa) + 1]}
    assert len(expected) == 1
    # libjpeg-turbo chooses its instructions once a process, by these variables.
    for switch in ("JSIMD_FORCENONE", "JSIMD_FORCESSE2"):
        command = [sys.executable, "-c", "from tests.contract.test_native import digest; print(digest('scalar'))"]
        done = subprocess.run(command, env={**os.environ, switch: "1"}, capture_output=True, text=True, timeout=100, check=True)
        assert done.stdout.split()[-1] in expected


def numbers_of(**changes: int):
    """One sound row of JPEG, 203 by 301, to 20 by 30; with changes."""
    row = dict.fromkeys(COLUMNS, 0) | {"data_bytes": len(JPEG), "width": 301, "height": 203, "orientation": 1}
    row |= {"box_height": 100, "box_width": 150, "size_height": 20, "size_width": 30}
    return np.array([list((row | changes).values())], np.int64)


edge = st.sampled_from([-(2**63), -1, 0, 1, 2, 19, 20, 21, 203, 204, 301, 302, 65_535, 65_536, 2**31, 2**62, 2**63 - 1])


@given(st.dictionaries(st.sampled_from(COLUMNS[1:]), edge, max_size=3))
@settings(THIS_SETTINGS, max_examples=300)
def test_numbers_that_make_no_sense_are_refused_and_nothing_else_is_touched(changes) -> None:
    out = np.full((3, 20, 30, 3), 0xA5, np.uint8)
    status, _ = BEST.rows([JPEG], numbers_of(**changes), out)
    assert status[0] in (native.OK, native.CORRUPT, native.BAD_ARGUMENT, native.NO_MEMORY)
    place = changes.get("place", 0)
    touched = [row for row in range(3) if (out[row] != 0xA5).any()]
    assert touched == ([place] if status[0] == native.OK else [])
    assert "width" not in changes or changes["width"] == 301 or status[0] != native.OK


def test_a_size_other_than_the_headers_is_damage() -> None:
    out = np.zeros((1, 20, 30, 3), np.uint8)
    assert BEST.rows([JPEG], numbers_of(), out)[0].tolist() == [native.OK]
    assert BEST.rows([JPEG], numbers_of(width=300), out)[0].tolist() == [native.CORRUPT]
    assert BEST.rows([b"\xff\xd8garbage"], numbers_of(data_bytes=9), out)[0].tolist() == [native.CORRUPT]


def test_arrays_that_do_not_fit_are_refused() -> None:
    out = np.zeros((1, 20, 30, 3), np.uint8)
    for numbers, target in (
        (numbers_of()[:, 1:], out),
        (numbers_of(), out[..., :2]),
        (numbers_of(), out[:, ::2]),
        (numbers_of(), out > 0),
    ):
        with pytest.raises(HeadraceError):
            BEST.rows([JPEG], numbers, target)


def test_what_the_core_takes_is_told_by_the_header() -> None:
    by_name = {kind.name: read_header(kind.data) for kind in good_kinds()}
    taken = {name for name, header in by_name.items() if native.takes(header)}
    assert taken == {name for name in by_name if name.startswith("jpeg_")} - {"jpeg_cmyk", "jpeg_ycck"}
    assert not native.takes(replace(by_name["jpeg_420"], complete=False))
    assert not native.takes(replace(by_name["jpeg_420"], sampling=((3, 1), (1, 1), (1, 1))))


def test_an_engine_without_the_core_says_so_and_works(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    with capture_logs() as lines:
        with_core = registry.create("cpu", 1)
    assert not lines
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    native.load.cache_clear()
    try:
        with capture_logs() as lines:
            engine = registry.create("cpu", 1)
        assert [(line["event"], line["log_level"]) for line in lines] == [("native_core_missing", "warning")]
        assert "not built" in lines[0]["why"]
        assert engine.fingerprint == registry.create("cpu-libs", 1).fingerprint != with_core.fingerprint
        _, result = run(engine, PipelineSpec(), [JPEG, JPEG[:-900]])
        assert [BAD_REASONS[code] for code in result.reasons] == ["none", "truncated"]
        (tmp_path / "none.so").write_bytes(b"no library")
        with pytest.raises(NativeMissing, match="could not be loaded"):
            native.load()
    finally:
        native.load.cache_clear()


def test_no_memory_ends_the_batch_and_a_refusal_is_one_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = registry.create("cpu", 1)
    rows = NativeCore.rows
    odd = encode(photo(), "JPEG", quality=70)

    def with_status(code: int):
        def instead(self, data, numbers, out):
            status, times = rows(self, data, numbers, out)
            status[[image == odd for image in data]] = code
            return status, times

        return instead

    monkeypatch.setattr(NativeCore, "rows", with_status(native.BAD_ARGUMENT))
    _, result = run(engine, PipelineSpec(), [JPEG, odd, JPEG])
    assert result.reasons.tolist() == [0, REASON_CODE["decoder_error"], 0]
    monkeypatch.setattr(NativeCore, "rows", with_status(native.NO_MEMORY))
    with pytest.raises(MemoryError):
        run(engine, PipelineSpec(), [JPEG, odd, JPEG])
