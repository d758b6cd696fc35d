"""What of the cvcuda engine only a GPU can show. Without one these tests run on lanes of numpy, or not at all, and it is said.

The decode contract itself runs over the engine in tests/contract, on a machine with a GPU as everywhere.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from headrace.core import pipeline_spec as ps
from headrace.core.augment import sample_params
from headrace.core.errors import GpuMemoryFull
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import encode, exif, photo
from headrace.testing.numpy_lane import NumpyLanes
from headrace.worker.engines import registry
from headrace.worker.engines.codec_plan import Route, routes_of
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.protocol import DeviceSlot, Sample
from headrace.worker.engines.rows import look_at
from tests.contract import engine_entries, reference_ops

SEED = 9
SIZE = (375, 500)
PHOTOS = [
    encode(photo(SIZE[1], SIZE[0]), "JPEG", quality=quality, subsampling=sampling, exif=exif(1 + quality % 4))
    for quality, sampling in [(75, "4:2:0"), (90, "4:2:0"), (90, "4:4:4"), (85, "4:2:2"), (91, "4:2:0"), (94, "4:4:4")]
]
OTHERS = [encode(photo(), "PNG"), encode(photo(), "JPEG", progressive=True), b"no image"]
OUTPUTS = [
    ps.Output(dtype, layout, normalize)
    for dtype in ("uint8", "float16", "bfloat16", "float32")
    for layout in ("NHWC", "NCHW")
    for normalize in (None, ps.Normalize())
    if dtype != "uint8" or normalize is None
]
# Of 255, on top of what the decoders differ by: two roundings of CV-CUDA's resize, and Pillow's two.
RESIZE_LEVELS = 2


def make(name: str):
    if why := engine_entries.why_not(name):
        pytest.skip(f"DID NOT RUN, it needs a GPU: {why}")
    return engine_entries.MADE_HERE.get(name, lambda threads: registry.create(name, threads))(4)


@pytest.fixture(params=["cvcuda", "cvcuda-on-numpy"], scope="module")
def engine(request: pytest.FixtureRequest):
    """The engine on the GPU, and its double that shows that the test itself is right."""
    made = make(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def gpu_engine():
    """The engine on the GPU alone."""
    made = make("cvcuda")
    yield made
    made.close()


def samples_of(datas: list[bytes]) -> list[Sample]:
    return [Sample(i, f"k{i}", data) for i, data in enumerate(datas)]


def keys_of(count: int) -> list[tuple[int, int]]:
    return [(0, 40 + i) for i in range(count)]


def run(engine, spec: PipelineSpec, datas: list[bytes], keys=None) -> tuple[np.ndarray, list[int]]:
    prepared = engine.prepare(spec, SEED)
    slot = bytearray(spec.pixel_bytes(len(datas)))
    result = prepared.run(samples_of(datas), keys or keys_of(len(datas)), memoryview(slot))
    prepared.close()
    return np.frombuffer(slot, np.uint8).reshape(len(datas), -1), result.reasons.tolist()


def test_the_photos_here_are_decoded_by_the_gpu(engine) -> None:
    spec = PipelineSpec()
    rows = look_at(spec, SEED, samples_of(PHOTOS), keys_of(len(PHOTOS)), fused_count(spec))
    routes = set(routes_of(rows, engine.lanes.device.hardware).tolist())
    assert routes == {Route.HARDWARE if engine.lanes.device.hardware else Route.CUDA}


def test_its_own_decode_is_near_libjpegs(engine) -> None:
    found, reasons = run(engine, PipelineSpec(ops=(ps.CenterCrop(SIZE),)), PHOTOS)
    assert not any(reasons)
    for row, data in enumerate(PHOTOS):
        apart = np.abs(found[row].reshape(*SIZE, 3).astype(int) - reference_ops.decode(data))
        print(f"photo {row}: mean {apart.mean():.3f}, max {apart.max()} levels from libjpeg-turbo")
        assert apart.mean() <= 1.0


@pytest.mark.parametrize(
    "ops",
    [
        (ps.RandomResizedCrop((224, 224)), ps.HorizontalFlip()),
        (ps.Resize(256), ps.CenterCrop((224, 224))),
        (ps.Resize((100, 300)), ps.VerticalFlip()),
        (ps.Resize((600, 700)), ps.RandomCrop((299, 301)), ps.HorizontalFlip(), ps.VerticalFlip()),
        (ps.RandomCrop((64, 80)), ps.HorizontalFlip()),
    ],
    ids=["train", "eval", "squeeze", "enlarge", "cut"],
)
def test_each_pipeline_is_its_rule_on_what_the_engine_decoded(engine, ops) -> None:
    whole, _ = run(engine, PipelineSpec(ops=(ps.CenterCrop(SIZE),)), PHOTOS)
    spec = PipelineSpec(ops=ops)
    found, _ = run(engine, spec, PHOTOS)
    epochs, planned = np.array(keys_of(len(PHOTOS))).T
    params = sample_params(spec, SEED, (epochs, planned), np.array([SIZE] * len(PHOTOS)))
    scaled = any(isinstance(op, ps.Resize | ps.RandomResizedCrop) for op in ops)
    for row in range(len(PHOTOS)):
        expected = reference_ops.apply(whole[row].reshape(*SIZE, 3), spec, params, row)
        apart = np.abs(found[row].reshape(expected.shape).astype(int) - expected)
        assert apart.max() <= (RESIZE_LEVELS if scaled else 0)


def test_neighbours_batch_size_and_lanes_change_no_pixel(engine) -> None:
    spec = PipelineSpec()
    keys = keys_of(len(PHOTOS))
    alone = [run(engine, spec, [data], [key])[0][0] for data, key in zip(PHOTOS, keys, strict=True)]
    times, rounds = (2, 2) if isinstance(engine.lanes, NumpyLanes) else (20, 12)
    many = PHOTOS * times + OTHERS
    many_keys = keys * times + keys_of(len(OTHERS))
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: run(engine, spec, many, many_keys)[0], range(rounds)))
    for batch in batches:
        for place in range(len(PHOTOS) * times):
            assert np.array_equal(batch[place], alone[place % len(PHOTOS)])


@pytest.mark.parametrize("output", OUTPUTS, ids=str)
def test_a_slot_on_the_gpu_holds_what_one_of_the_host_does(gpu_engine, output: ps.Output) -> None:
    from headrace.worker.engines import cuda_runtime  # loads only where its library is

    spec = PipelineSpec(output=output)
    datas = PHOTOS + OTHERS
    on_host, reasons = run(gpu_engine, spec, datas)
    cuda_runtime.use(0)
    buffer = cuda_runtime.DeviceBuffer()
    nbytes = spec.pixel_bytes(len(datas))
    prepared = gpu_engine.prepare(spec, SEED)
    result = prepared.run(samples_of(datas), keys_of(len(datas)), DeviceSlot(buffer.at_least(nbytes), nbytes, 0))
    back = bytearray(nbytes)
    with gpu_engine.lane() as lane:
        lane.download(memoryview(back), buffer.pointer)
    buffer.free()
    on_gpu = np.frombuffer(back, np.uint8).reshape(len(datas), -1)
    assert result.reasons.tolist() == reasons
    for row, code in enumerate(reasons):
        assert code or np.array_equal(on_gpu[row], on_host[row])


def test_memory_stays_flat_over_many_shapes(gpu_engine) -> None:
    from headrace.worker.engines import cuda_runtime

    def free_bytes() -> int:
        cuda_runtime.use(0)
        return cuda_runtime.checked(cuda_runtime.runtime.cudaMemGetInfo(), "ask")[0]

    photos = [encode(photo(300 + 7 * i, 250 + 5 * i), "JPEG", quality=90) for i in range(40)]
    for epoch in range(4):
        run(gpu_engine, PipelineSpec(), photos, [(epoch, i) for i in range(40)])
    before = free_bytes()
    for epoch in range(4, 60):
        run(gpu_engine, PipelineSpec(), photos, [(epoch, i) for i in range(40)])
    assert before - free_bytes() < 128 << 20


def test_a_full_gpu_is_told_and_the_engine_goes_on(gpu_engine) -> None:
    from headrace.worker.engines import cuda_runtime

    cuda_runtime.use(0)
    free, _ = cuda_runtime.checked(cuda_runtime.runtime.cudaMemGetInfo(), "ask")
    hog = cuda_runtime.DeviceBuffer()
    hog.at_least(free - (64 << 20))
    large = PipelineSpec(ops=(ps.Resize((2000, 2000)),), output=ps.Output("float32"))
    with pytest.raises(GpuMemoryFull):
        run(gpu_engine, large, PHOTOS * 10)
    cuda_runtime.use(0)
    hog.free()
    assert not any(run(gpu_engine, PipelineSpec(), PHOTOS)[1])
