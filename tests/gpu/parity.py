"""How far each engine's pixels are from Pillow's, operation by operation, on the photos of the proof."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.core.augment import sample_params
from headrace.core.errors import EngineUnsupported
from headrace.core.pipeline_spec import Op, PipelineSpec
from headrace.testing.engine_parity import OPERATIONS
from headrace.worker.engines.protocol import Engine, Sample
from tests.contract import reference_ops
from tests.gpu import photos
from tests.gpu.bench import Size
from tests.gpu.contestants import Absent, absence
from tests.gpu.made import make_engine
from tests.gpu.report import Row

ENGINES = ("cpu", "nvimgcodec", "cvcuda-on-numpy", "dali", "dali-gpu", "cvcuda")
# The reference of this one goes over pixels one by one.
TOO_SLOW = ("color_jitter",)
QUICK = ("decode, center_crop", "random_resized_crop", "horizontal_flip")
# Two sound decoders and resizes keep to it; what each engine must keep is in tests/contract/engine_entries.py.
MOST_MEAN = 2.0
SEED = 3


def table(size: Size) -> Iterator[Row]:
    """Levels of 255: `most` of any value, `inside` without the outermost rows and columns, `mean` over all."""
    quick = size.rounds == 1
    datas = photos.jpegs(3 if quick else 12)
    operations = {name: ops for name, ops in OPERATIONS.items() if name in QUICK or not (quick or name in TOO_SLOW)}
    references = {name: _reference(ops, datas) for name, ops in operations.items()}
    for engine_name in ENGINES:
        try:
            with absence(f"engine {engine_name}"):
                engine = make_engine(engine_name, size.threads)
        except Absent as absent:
            yield Row("parity against Pillow", f"engine {engine_name}", "not run", reason=str(absent))
            continue
        for name, ops in operations.items():
            yield _row(engine, f"engine {engine_name}, {name}", ops, datas, references[name])
        engine.close()


def _reference(ops: tuple[Op, ...], datas: list[bytes]) -> np.ndarray:
    spec = PipelineSpec(ops=ops)
    decoded = [reference_ops.decode(data, spec.decode.background) for data in datas]
    sizes = np.array([pixels.shape[:2] for pixels in decoded])
    params = sample_params(spec, SEED, (np.zeros(len(datas), np.int64), np.arange(len(datas))), sizes)
    return np.stack([reference_ops.apply(pixels, spec, params, row) for row, pixels in enumerate(decoded)])


def _row(engine: Engine, title: str, ops: tuple[Op, ...], datas: list[bytes], expected: np.ndarray) -> Row:
    spec = PipelineSpec(ops=ops)
    try:
        prepared = engine.prepare(spec, SEED)
    except EngineUnsupported:
        return Row("parity against Pillow", title, "passed", reason="the engine says that it lacks it")
    slot = bytearray(spec.pixel_bytes(len(datas)))
    samples = [Sample(i, "", data) for i, data in enumerate(datas)]
    reasons = prepared.run(samples, [(0, i) for i in range(len(datas))], memoryview(slot)).reasons
    prepared.close()
    apart = np.abs(np.frombuffer(slot, np.uint8).reshape(expected.shape).astype(int) - expected)
    figures = {"most": float(apart.max()), "inside": float(apart[:, 1:-1, 1:-1].max()), "mean": round(float(apart.mean()), 3)}
    sound = not reasons.any() and figures["mean"] <= MOST_MEAN
    return Row("parity against Pillow", title, "passed" if sound else "failed", figures, "" if sound else "too far, or refused")
