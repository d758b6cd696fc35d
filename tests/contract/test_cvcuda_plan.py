"""What the cvcuda engine tells CV-CUDA to do, done by numpy: geometry, formats, slots of both memories, lanes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from structlog.testing import capture_logs

from headrace.core import pipeline_spec as ps
from headrace.core.augment import sample_params
from headrace.core.errors import EngineUnsupported, GpuLost, GpuMemoryFull, HeadraceError
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing import numpy_lane
from headrace.testing.image_kinds import encode, exif, photo
from headrace.testing.numpy_lane import NumpyLanes
from headrace.worker.engines import cvcuda_plan
from headrace.worker.engines.codec_plan import Route, cuts_of, routes_of
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.output import Writer, tables
from headrace.worker.engines.protocol import Sample
from headrace.worker.engines.rows import look_at
from tests.contract import reference_ops

SEED = 5
MIRRORED = [encode(photo(120, 90), "JPEG", quality=95, exif=exif(orientation)) for orientation in (1, 2, 3, 4)]
FORMATS = [
    ps.Output(dtype, layout, normalize)
    for dtype in ("uint8", "float16", "bfloat16", "float32")
    for layout in ("NHWC", "NCHW")
    for normalize in (None, ps.Normalize())
    if dtype != "uint8" or normalize is None
]


@pytest.fixture(scope="module")
def engine():
    made = numpy_lane.engine(2)
    yield made
    made.close()


def samples_of(datas: list[bytes]) -> list[Sample]:
    return [Sample(i, f"k{i}", data) for i, data in enumerate(datas)]


def run(engine, spec: PipelineSpec, datas: list[bytes], keys=None, on_gpu: bool = False) -> tuple[bytes, list[int]]:
    prepared = engine.prepare(spec, SEED)
    slot = bytearray(spec.pixel_bytes(len(datas)))
    out = numpy_lane.device_slot(slot) if on_gpu else memoryview(slot)
    result = prepared.run(samples_of(datas), keys or [(0, i) for i in range(len(datas))], out)
    prepared.close()
    return bytes(slot), result.reasons.tolist()


sides = st.integers(8, 60)
sizes = st.tuples(sides, sides)
scalings = st.one_of(
    st.builds(ps.Resize, st.integers(40, 110)),
    st.builds(ps.Resize, sizes),
    st.builds(ps.RandomResizedCrop, sizes, st.sampled_from([(0.08, 1.0), (0.5, 0.6)])),
)
crops = st.one_of(st.builds(ps.CenterCrop, sizes), st.builds(ps.RandomCrop, sizes))
flips = st.lists(st.one_of(st.builds(ps.HorizontalFlip), st.builds(ps.VerticalFlip)), max_size=3)


@st.composite
def pipelines(draw) -> PipelineSpec:
    first = draw(st.none() | scalings)
    fixed = first is not None and not isinstance(first.size, int)
    crop = draw(crops) if not fixed else draw(st.none() | crops)
    return PipelineSpec(ops=(*[op for op in (first, crop) if op], *draw(flips)))


@given(pipelines(), st.integers(0, 2**40))
@settings(max_examples=80, deadline=None)
def test_any_cut_scale_window_and_flip_of_mirrored_photos(engine, spec: PipelineSpec, planned: int) -> None:
    keys = [(0, planned + i) for i in range(len(MIRRORED))]
    found, reasons = run(engine, spec, MIRRORED, keys)
    assert reasons == [0] * len(MIRRORED)
    decoded = [reference_ops.decode(data) for data in MIRRORED]
    epochs, ids = np.array(keys).T
    params = sample_params(spec, SEED, (epochs, ids), np.array([pixels.shape[:2] for pixels in decoded]))
    expected = np.stack([reference_ops.apply(pixels, spec, params, row) for row, pixels in enumerate(decoded)])
    apart = np.abs(np.frombuffer(found, np.uint8).reshape(expected.shape).astype(int) - expected)
    assert apart.max() <= 1


def test_the_photos_above_are_decoded_by_nvimgcodec_and_scaled_by_the_plan() -> None:
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((32, 32)), ps.HorizontalFlip()))
    rows = look_at(spec, SEED, samples_of(MIRRORED), [(0, i) for i in range(4)], fused_count(spec))
    assert routes_of(rows, hardware=True).tolist() == [Route.HARDWARE] * 4
    plan = cvcuda_plan.plan(rows, spec.out_size, range(4))
    assert plan.scaled_rows == [0, 1, 2, 3]
    offsets, nbytes = plan.places_of_scaled()
    assert all(offset % cvcuda_plan.ALIGN == 0 for offset in offsets.values())
    assert nbytes == 4 * 32 * 32 * 3
    assert plan.flips.dtype == plan.windows.dtype == np.int32, "what CV-CUDA reads"


def test_orientation_mirrors_the_cut_and_is_undone_at_the_end() -> None:
    spec = PipelineSpec(ops=(ps.Resize((90, 120)), ps.RandomCrop((32, 48))))
    rows = look_at(spec, SEED, samples_of(MIRRORED), [(0, 7)] * 4, fused_count(spec))  # the same window in all
    plan = cvcuda_plan.plan(rows, spec.out_size, range(4))
    assert not plan.scaled.any()
    x, y = plan.windows[0, :2].tolist()
    across, down = 120 - x - 48, 90 - y - 32
    assert plan.windows[:, :2].tolist() == [[x, y], [across, y], [across, down], [x, down]]
    assert plan.flips.tolist() == [
        cvcuda_plan.FLIP_NONE, cvcuda_plan.FLIP_COLUMNS, cvcuda_plan.FLIP_BOTH, cvcuda_plan.FLIP_ROWS,
    ]  # fmt: skip


@pytest.mark.parametrize("output", FORMATS, ids=str)
def test_a_slot_on_the_gpu_holds_what_one_of_the_host_does(engine, output: ps.Output) -> None:
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((40, 24)), ps.HorizontalFlip()), output=output)
    datas = [*MIRRORED, encode(photo(64, 48), "PNG"), b"bad", encode(photo(), "JPEG")]
    on_host, reasons = run(engine, spec, datas)
    on_gpu, same = run(engine, spec, datas, on_gpu=True)
    assert reasons == same
    assert [bool(code) for code in reasons] == [False] * 5 + [True, False]
    whole = spec.pixel_bytes(1)
    for row, code in enumerate(reasons):
        assert code or on_host[row * whole : (row + 1) * whole] == on_gpu[row * whole : (row + 1) * whole]


@pytest.mark.parametrize("output", [output for output in FORMATS if output.dtype != "uint8"], ids=str)
def test_base_and_scale_give_the_value_of_every_level(output: ps.Output) -> None:
    target = cvcuda_plan.target_of(output)
    if target.by_host:
        assert (target.dtype, target.layout, target.base.tolist(), target.scale.tolist()) == ("uint8", "NHWC", [0] * 3, [1] * 3)
        return
    exact = tables(ps.Output("float32", "NHWC", output.normalize))
    levels = np.arange(256, dtype=np.float32)
    for channel in range(3):
        found = (levels - target.base[channel]) * target.scale[channel]
        assert np.abs(found - exact[channel]).max() <= 4 * 2.0**-24 * np.abs(exact[channel]).max()


OTHERS_AFTER = [
    ((ps.CenterCrop((8, 8)), ps.ColorJitter(0.1)), ["color_jitter"]),
    ((ps.RandomResizedCrop((8, 8)), ps.HorizontalFlip(), ps.Grayscale(0.5)), ["grayscale"]),
    ((ps.RandomResizedCrop((8, 8)), ps.GaussianBlur()), ["gaussian_blur"]),
    ((ps.RandomResizedCrop((8, 8)), ps.RandomErasing()), ["random_erasing"]),
    ((ps.CenterCrop((8, 8)), ps.Resize((9, 11)), ps.VerticalFlip()), ["resize", "vertical_flip"]),
]
NOT_BEGUN_SO = [
    ((ps.HorizontalFlip(), ps.CenterCrop((8, 8))), ["horizontal_flip", "center_crop"]),
    ((ps.Grayscale(), ps.CenterCrop((8, 8))), ["grayscale", "center_crop"]),
]


@pytest.mark.parametrize(("ops", "by_cpu"), [*OTHERS_AFTER, *NOT_BEGUN_SO], ids=lambda each: str(each)[:40])
def test_what_the_gpu_has_not_is_done_on_the_cpu_and_told(engine, ops, by_cpu: list[str]) -> None:
    """Of all kinds of rows: decoded by the GPU's half, made by the host alone, and a bad one between them."""
    spec = PipelineSpec(ops=ops)
    datas = [MIRRORED[0], encode(photo(64, 48), "PNG"), b"bad", *MIRRORED]
    with capture_logs() as logs:
        found, reasons = run(engine, spec, datas)
    assert [line["by_cpu"] for line in logs if line["event"] == "cvcuda_in_part"] == [by_cpu]
    assert [bool(reason) for reason in reasons] == [data == b"bad" for data in datas]
    cpu, _ = run(engine.cpu, spec, datas)
    good = [row for row, data in enumerate(datas) if data != b"bad"]
    by_both, by_one = (np.frombuffer(pixels, np.uint8).reshape(spec.shape(len(datas)))[good] for pixels in (found, cpu))
    apart = np.abs(by_both.astype(int) - by_one)
    assert apart.max() <= 6 and apart.mean() < 0.5, "a level of the resize is some more after jitter"


@pytest.mark.parametrize("output", FORMATS, ids=str)
@pytest.mark.parametrize("ops", [OTHERS_AFTER[1][0], OTHERS_AFTER[4][0], NOT_BEGUN_SO[0][0]], ids=str)
def test_what_the_cpu_finishes_is_in_every_format_and_on_the_gpu_the_same(engine, ops, output: ps.Output) -> None:
    spec = PipelineSpec(ops=ops, output=output)
    plain = PipelineSpec(ops=ops)
    levels = np.frombuffer(run(engine, plain, MIRRORED)[0], np.uint8).reshape(plain.shape(len(MIRRORED)))
    expected = bytearray(spec.pixel_bytes(len(MIRRORED)))
    writer = Writer(spec)
    for row, slot in zip(levels, writer.view(memoryview(expected), len(MIRRORED)), strict=True):
        writer.write(row, slot)
    assert run(engine, spec, MIRRORED)[0] == bytes(expected)
    assert run(engine, spec, MIRRORED, on_gpu=True)[0] == bytes(expected)


@pytest.mark.parametrize("ops", [OTHERS_AFTER[1][0], NOT_BEGUN_SO[0][0]], ids=str)
def test_a_slot_that_does_not_fit_is_refused_whoever_makes_the_batch(engine, ops) -> None:
    spec = PipelineSpec(ops=ops)
    prepared = engine.prepare(spec, SEED)
    slot = numpy_lane.device_slot(bytearray(spec.pixel_bytes(2)))
    with pytest.raises(HeadraceError, match="3 rows need a slot of"):
        prepared.run(samples_of(MIRRORED[:3]), [(0, i) for i in range(3)], slot)
    prepared.close()


def test_parts_decoded_by_themselves_give_the_same_pixels(engine) -> None:
    parts = numpy_lane.engine(2, NumpyLanes(regions=True))
    datas = [*MIRRORED, encode(photo(500, 375), "JPEG"), encode(photo(64, 48), "PNG"), b"bad"] * 3
    for ops in ((ps.RandomResizedCrop((32, 40)), ps.HorizontalFlip()), (ps.Resize(50), ps.CenterCrop((40, 40)))):
        spec = PipelineSpec(ops=ops)
        rows = look_at(spec, SEED, samples_of(datas), [(0, i) for i in range(len(datas))], fused_count(spec))
        assert bool(cuts_of(rows)) == isinstance(ops[0], ps.RandomResizedCrop)
        assert run(parts, spec, datas)[1] == run(engine, spec, datas)[1]
        whole, by_parts = (
            np.frombuffer(run(one, spec, datas)[0], np.uint8).reshape(spec.shape(len(datas))) for one in (engine, parts)
        )
        good = [row for row, data in enumerate(datas) if data != b"bad"]
        assert np.array_equal(whole[good], by_parts[good])
    assert "regions=1" in parts.fingerprint
    parts.close()


def test_a_slot_of_another_gpu_or_size_is_refused(engine) -> None:
    prepared = engine.prepare(PipelineSpec(), SEED)
    slot = numpy_lane.device_slot(bytearray(PipelineSpec().pixel_bytes(1)))
    for wrong in (type(slot)(slot.pointer, slot.nbytes, 1), type(slot)(slot.pointer, slot.nbytes - 1, 0)):
        with pytest.raises(HeadraceError, match="slot of 150528 bytes on GPU 0"):
            prepared.run(samples_of([MIRRORED[0]]), [(0, 0)], wrong)


def test_each_batch_at_once_has_a_lane_of_its_own_and_lanes_are_used_again() -> None:
    lanes = NumpyLanes()
    made = numpy_lane.engine(2, lanes)
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((32, 32)),))
    expected = run(made, spec, MIRRORED)
    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(lambda _: run(made, spec, MIRRORED)[0], range(12))) == {expected[0]}
    assert 1 <= lanes.made <= 3
    made.close()
    made.close()


def test_no_memory_for_a_lane_is_told_and_the_engine_goes_on() -> None:
    made = numpy_lane.engine(2, NumpyLanes(room=1))
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((32, 32)),))
    run(made, spec, MIRRORED)
    with made.lane(), pytest.raises(GpuMemoryFull):
        run(made, spec, MIRRORED)
    assert run(made, spec, MIRRORED)[1] == [0] * 4
    made.close()


def test_a_batch_without_memory_gives_back_what_all_idle_lanes_hold() -> None:
    lanes = NumpyLanes()
    made = numpy_lane.engine(2, lanes)
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((32, 32)),))
    expected = run(made, spec, MIRRORED)
    with made.lane(), made.lane(), made.lane():
        assert lanes.open == 3
    lanes.failing = 1
    with pytest.raises(GpuMemoryFull):
        run(made, spec, MIRRORED)
    assert lanes.open == 0, "three idle lanes would hold the memory that is lacking"
    assert run(made, spec, MIRRORED) == expected
    with pytest.raises(RuntimeError), made.lane():
        raise RuntimeError("not for want of memory")
    assert lanes.open == 1
    made.close()
    assert lanes.open == 0


def test_a_lost_gpu_is_told_whatever_the_library_says_of_it() -> None:
    lanes = NumpyLanes()
    made = numpy_lane.engine(2, lanes)
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((32, 32)),))
    run(made, spec, MIRRORED)
    lanes.lost = True
    for _ in range(2):
        with pytest.raises(GpuLost, match="cudaErrorIllegalAddress"):
            run(made, spec, MIRRORED)
    made.close()


def test_an_engine_is_tried_out_before_it_is_used() -> None:
    numpy_lane.engine(2).try_out()
    full = NumpyLanes(failing=1)
    with pytest.raises(EngineUnsupported, match="first photo: no room for a batch"):
        numpy_lane.engine(2, full).try_out()
    garbling = NumpyLanes()
    garbling.garbles = True
    with pytest.raises(EngineUnsupported, match="other pixels"):
        numpy_lane.engine(2, garbling).try_out()
    assert full.open == garbling.open == 0, "it was closed"


def test_a_gray_photo_and_one_of_another_size_share_a_batch(engine) -> None:
    spec = PipelineSpec(ops=(ps.CenterCrop((16, 16)),))
    gray = encode(Image.new("L", (50, 40), 99), "JPEG")
    found, reasons = run(engine, spec, [gray, MIRRORED[0]])
    assert reasons == [0, 0]
    assert set(found[: 16 * 16 * 3]) == {99}


def test_fingerprint_names_all_that_could_change_a_pixel(engine) -> None:
    named = ("cvcuda-1;", "cvcuda=", "nvimgcodec=", "driver=", "gpu=a_GPU_of_numpy", "jpeg_engine=1", "backend=", ";cpu-2;")
    for part in named:
        assert part in engine.fingerprint
    other = numpy_lane.engine(1, NumpyLanes(jpeg_engine=False))
    assert other.fingerprint != engine.fingerprint, "without a JPEG engine others decode"
    other.close()
