"""What is DALI's alone: one bad sample never costs its batch, DALI's silence about damage is made up for, and what goes where.

The rules of pixels are the contract's suites', over every engine. All here runs on the CPU, without a driver.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest
import simplejpeg
from structlog.testing import capture_logs

from headrace.core import pipeline_spec as ps
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import EngineUnsupported, HeadraceError
from headrace.core.image_header import read_header
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import bad_kinds, encode, exif, good_jpegs, good_kinds, patch, photo
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import DeviceSlot, Sample
from tests.contract import engine_entries

if reason := engine_entries.why_not("dali"):
    pytest.skip(f"engine dali does not run here: {reason}", allow_module_level=True)

from headrace.worker.engines import dali, dali_stages
from headrace.worker.engines.dali import DaliEngine
from headrace.worker.engines.dali_input import plain_jpeg
from headrace.worker.engines.dali_line import Line
from headrace.worker.engines.dali_stages import Stage, StageFailed
from headrace.worker.engines.jpeg_scan import scan_fault
from headrace.worker.engines.output import Writer

JPEG = encode(photo(), "JPEG", quality=90)
SPEC = PipelineSpec(ops=(ps.RandomResizedCrop((40, 32)), ps.HorizontalFlip()))
# Sound to our header's reader, and nothing that any decoder makes an image of: its quantization tables are gone.
REFUSED = JPEG.replace(b"\xff\xdb", b"\xff\xfe")


@pytest.fixture
def engine():
    made = DaliEngine(2, None)
    yield made
    made.close()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All damage reaches DALI."""
    monkeypatch.setattr(dali, "scan_fault", lambda probe, core: "none")


def run(prepared, datas, spec: PipelineSpec = SPEC, first: int = 0):
    slot = bytearray(spec.pixel_bytes(len(datas)))
    samples = [Sample(i, f"key{i}", data) for i, data in enumerate(datas)]
    result = prepared.run(samples, [(1, first + i) for i in range(len(datas))], memoryview(slot))
    return np.frombuffer(slot, np.uint8).reshape(len(datas), -1), [BAD_REASONS[code] for code in result.reasons]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each run of a decode."""
    runs: list[int] = []
    decode = Line.decode

    def count(self, jpegs, boxes):
        runs.append(len(jpegs))
        return decode(self, jpegs, boxes)

    monkeypatch.setattr(Line, "decode", count)
    return runs


@pytest.mark.parametrize("bad", [(0,), (15,), (3, 4), (0, 5, 10, 15), tuple(range(16))], ids=str)
def test_what_dali_refuses_is_one_samples_and_the_batch_is_as_without_it(
    bad, engine, unchecked, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = engine.prepare(SPEC, 5)
    clean, _ = run(prepared, [JPEG] * 16)
    runs = counted(monkeypatch)
    with capture_logs() as lines:
        found, reasons = run(prepared, [REFUSED if row in bad else JPEG for row in range(16)])
    assert reasons == ["corrupt" if row in bad else "none" for row in range(16)]
    good = [row for row in range(16) if row not in bad]
    assert np.array_equal(found[good], clean[good])
    assert [(line["event"], line["key"]) for line in lines] == [("dali_refused", f"key{row}") for row in bad]
    assert all("Failed to decode sample" in line["error"] and len(line["error"]) < 100 for line in lines), "one short line"
    # By halves: at most two runs a level of the tree and bad sample, and one to see that DALI itself is well.
    assert len(runs) <= 1 + len(bad) * (2 * 4 + 1)
    after, reasons = run(prepared, [JPEG] * 16)
    assert np.array_equal(after, clean) and set(reasons) == {"none"}, "the pipeline is as it was"
    prepared.close()


def test_failures_leave_no_threads_or_memory_behind(engine, unchecked) -> None:
    prepared = engine.prepare(SPEC, 5)
    process = psutil.Process()

    def fail() -> tuple[int, int]:
        run(prepared, [JPEG, REFUSED, JPEG])
        run(prepared, [JPEG] * 3)
        return process.num_threads(), process.memory_info().rss

    for _ in range(3):
        threads, resident = fail()
    for _ in range(40):
        now = fail()
    assert now[0] <= threads
    assert now[1] - resident < 64 << 20
    prepared.close()


def test_an_engine_that_decodes_nothing_blames_no_sample(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self, count, inputs):
        raise StageFailed("the library is out of order")

    prepared = engine.prepare(SPEC, 5)
    expected, _ = run(prepared, [JPEG] * 2)
    with monkeypatch.context() as patched:
        patched.setattr(Stage, "run", broken)
        with pytest.raises(HeadraceError, match=r"decodes nothing any more.*out of order"):
            run(prepared, [JPEG] * 2)
    assert np.array_equal(run(prepared, [JPEG] * 2)[0], expected)


def test_lack_of_memory_is_no_samples_fault(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = engine.prepare(SPEC, 5)
    expected, _ = run(prepared, [JPEG] * 2)

    class Full:
        def feed_input(self, name, feed) -> None:
            raise RuntimeError("Critical error in pipeline: std::bad_alloc")

    monkeypatch.setattr(Stage, "_build", lambda self: Full())
    monkeypatch.setattr(dali_stages, "LEAST_ROOM", 1)
    with pytest.raises(MemoryError):
        run(engine.prepare(SPEC, 5), [JPEG] * 9)
    monkeypatch.undo()
    assert np.array_equal(run(prepared, [JPEG] * 2)[0], expected)


def test_errors_of_libraries_are_one_samples_and_lack_of_memory_is_not(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    png, decode = encode(photo(), "PNG"), dali.pixels.decode_rgb

    def failing(error: type[Exception]):
        def run_instead(probed, rules):
            if probed.header.format == "png":
                raise error("as a library might")
            return decode(probed, rules)

        return run_instead

    monkeypatch.setattr(dali.pixels, "decode_rgb", failing(KeyError))
    prepared = engine.prepare(SPEC, 5)
    assert run(prepared, [JPEG, png, JPEG])[1] == ["none", "decoder_error", "none"]
    monkeypatch.setattr(dali.pixels, "decode_rgb", failing(MemoryError))
    with pytest.raises(MemoryError):
        run(prepared, [JPEG, png, JPEG])


def test_dali_passes_over_damage_and_so_the_scan_is_checked(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, lost = JPEG[: len(JPEG) // 2], JPEG[: len(JPEG) // 2] + JPEG[len(JPEG) // 2 + 300 :]
    for with_core in (engine, registry.create("dali", 2)):
        prepared = with_core.prepare(SPEC, 5)
        assert run(prepared, [JPEG, cut, lost])[1] == ["none", "truncated", "corrupt"]
    monkeypatch.setattr(dali, "scan_fault", lambda probe, core: "none")
    found, reasons = run(engine.prepare(SPEC, 5), [JPEG, JPEG, lost])
    assert reasons == ["none"] * 3, "DALI sees damage now: is the check still needed?"
    assert not np.array_equal(found[2], run(prepared, [JPEG] * 3)[0][2]), "and it is garbage that it makes of it"


@pytest.mark.parametrize(
    "kind", [kind for kind in (*good_jpegs(), *bad_kinds()) if kind.name.startswith("jpeg")], ids=lambda kind: kind.name
)
def test_the_native_core_and_libjpeg_refuse_the_same(kind) -> None:
    header = read_header(kind.data)
    if header.reason != "none" or kind.reason in ("too_large", "truncated") or not dali.takes(header, None):
        return
    core = registry.create("dali", 1).core
    if core is None:
        pytest.skip("no native core here")
    probe = dali.pixels.probe(kind.data, ps.Decode())
    assert scan_fault(probe, core) == scan_fault(probe, None)


def upright(data: bytes):
    return dali.pixels.orient(simplejpeg.decode_jpeg(data, "RGB"), read_header(data).orientation)


def test_dali_turns_an_image_as_its_header_is_read_whatever_exif_it_has(engine) -> None:
    whole = encode(photo(60, 40), "JPEG", quality=90)

    def block(data: bytes) -> bytes:
        return data[data.index(b"\xff\xe1") :][: int.from_bytes(data[data.index(b"\xff\xe1") + 2 :][:2], "big") + 2]

    blocks = {i: block(encode(photo(60, 40), "JPEG", exif=exif(i))) for i in range(1, 9)}
    # Of two blocks the first counts; nvImageCodec takes the last.
    two = [whole[:2] + blocks[a] + blocks[b] + whole[2:] for a in range(1, 9) for b in range(1, 9)]
    filled = [whole[:2] + b"\xff\xff\xff" + blocks[6] + b"\xff\xff" + blocks[1] + whole[2:]]
    damaged = [patch(encode(photo(60, 40), "JPEG", exif=exif(6)), at, b"\xff") for at in range(24, 40)]
    datas = [*two, *filled, *(data for data in damaged if read_header(data).reason == "none")]
    assert {read_header(data).orientation for data in datas} == set(range(1, 9))
    spec = PipelineSpec(ops=(ps.CenterCrop((8, 8)),))
    found, reasons = run(engine.prepare(spec, 0), datas, spec)
    assert set(reasons) == {"none"}
    for data, pixels in zip(datas, found, strict=True):
        image = upright(data)
        y, x = (np.rint((side - 8) / 2).astype(int) for side in image.shape[:2])
        assert np.array_equal(pixels.reshape(8, 8, 3), image[y : y + 8, x : x + 8])


def decoded(data: bytes):
    return dali.pixels.decode_rgb(dali.pixels.probe(data, ps.Decode()), ps.Decode())


def test_what_dali_is_given_differs_in_exif_alone() -> None:
    for kind in good_jpegs():
        header = read_header(kind.data)
        given = plain_jpeg(kind.data, header)
        assert plain_jpeg(given, read_header(given)) == given
        assert read_header(given).orientation == header.orientation
        assert b"Exif" in kind.data or header.jfif_major_at or given is kind.data
        assert np.array_equal(decoded(given), decoded(kind.data))


def test_what_dali_decodes_is_told_by_the_header() -> None:
    by_name = {kind.name: read_header(kind.data) for kind in good_kinds()}
    taken = {name for name, header in by_name.items() if dali.takes(header, None)}
    assert taken == {name for name in by_name if name.startswith("jpeg_")} - {"jpeg_cmyk", "jpeg_ycck"}
    assert taken - {name for name, header in by_name.items() if dali.takes(header, 0)} == {"jpeg_rgb"}
    assert not dali.takes(replace(by_name["jpeg_420"], complete=False), None)


def test_batches_larger_than_a_piece_and_of_any_size_have_the_same_bits(engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = engine.prepare(SPEC, 5)
    datas = [kind.data for kind in good_kinds()] * 8
    whole, reasons = run(prepared, datas)
    assert set(reasons) == {"none"} and len(datas) > 200
    for start in (0, 1, 17):
        part, _ = run(prepared, datas[start : start + 3], first=start)
        assert np.array_equal(part, whole[start : start + 3])
    runs = counted(monkeypatch)
    monkeypatch.setattr(dali, "PIECE_BYTES", 1 << 20)
    assert np.array_equal(run(prepared, datas)[0], whole)
    assert len(runs) > 10


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_dalis_own_output_formats_are_the_slots_to_the_bit(dtype, layout) -> None:
    """What is written on a GPU; DALI's operators for it run on the CPU as well."""
    normalize = None if dtype == "uint8" else ps.Normalize()
    spec = PipelineSpec(ops=(ps.CenterCrop((16, 20)),), output=ps.Output(dtype, layout, normalize))
    pixels = np.random.default_rng(1).integers(0, 256, (5, 16, 20, 3)).astype(np.uint8)
    pixels[0, :16, :16, 0] = np.arange(256, dtype=np.uint8).reshape(16, 16)
    slot = bytearray(spec.pixel_bytes(5))
    writer = Writer(spec)
    rows = writer.view(memoryview(slot), 5)
    for image, row in zip(pixels, rows, strict=True):
        writer.write(image, row)
    formatted = Line(spec, 1, 1, None).format(list(pixels))
    assert np.array_equal(np.asarray(formatted.as_tensor()), rows.view(np.uint16) if rows.itemsize == 2 else rows)


def test_a_spec_that_dali_cannot_do_is_made_and_told(engine) -> None:
    spec = PipelineSpec(ops=(ps.HorizontalFlip(), ps.CenterCrop((20, 20))))
    with capture_logs() as lines:
        prepared = engine.prepare(spec, 5)
    assert [line["event"] for line in lines] == ["dali_not_used"]
    assert run(prepared, [JPEG] * 3, spec)[1] == ["none"] * 3


def test_a_slot_on_a_gpu_is_refused_by_the_engine_on_the_cpu(engine) -> None:
    assert engine.memory == {"host"}
    with pytest.raises(HeadraceError, match="GPU None"):
        engine.prepare(SPEC, 0).run([Sample(0, "", JPEG)], [(0, 0)], DeviceSlot(0, SPEC.pixel_bytes(1), 0))


def test_bad_images_of_all_kinds_leave_no_words_of_a_library(engine, capfd: pytest.CaptureFixture[str]) -> None:
    """One for each bad sample would fill a disk: what was refused before never reaches DALI."""
    _, reasons = run(engine.prepare(SPEC, 0), [kind.data for kind in (*good_kinds(), *bad_kinds())])
    assert len(set(reasons)) > 5
    assert capfd.readouterr().err == ""


def test_a_machine_without_dali_is_told_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['nvidia.dali'] = None\n"
        "from headrace.worker.engines import registry\n"
        "try:\n    registry.create('dali', 1)\nexcept Exception as error:\n    print(type(error).__name__, error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "EngineUnsupported engine dali needs nvidia.dali: pip install 'headrace[dali]'"


def test_a_machine_without_a_gpu_is_told_so() -> None:
    if not engine_entries.why_not("dali-gpu"):
        pytest.skip("there is a GPU here")
    with pytest.raises(EngineUnsupported, match=r"cannot use GPU 0: .*; without a GPU take engine dali"):
        registry.create("dali-gpu", 1)
