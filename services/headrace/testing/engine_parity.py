"""How far an engine's pixels are from those of `cpu`, operation by operation and format by format.

    python -m headrace.testing.engine_parity

writes docs/engine_parity.md anew, with a table for each engine that runs here. The contract's suite holds the bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import pipeline_spec as ps
from headrace.core.errors import EngineUnsupported, HeadraceError
from headrace.core.pipeline_spec import Op, PipelineSpec
from headrace.testing.image_kinds import encode
from headrace.testing.photos import CLASSES, photo_at
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine, Sample

PAGE = Path("docs/engine_parity.md")
REFERENCE = "cpu"
ENGINES = ("dali", "dali-gpu", "cvcuda", "nvimgcodec", "cpu-libs")
ROWS_A_PHOTO, SEED = 2, 3

_CROP = ps.CenterCrop((224, 224))
_RANDOM = ps.RandomResizedCrop((224, 224))
OPERATIONS: dict[str, tuple[Op, ...]] = {
    "decode, center_crop": (_CROP,),
    "random_crop": (ps.RandomCrop((224, 224)),),
    "center_crop over the edge": (ps.CenterCrop((600, 700)),),
    "resize to a pair": (ps.Resize((224, 224)),),
    "resize by the shorter side, center_crop": (ps.Resize(256), _CROP),
    "resize to twice the size": (ps.Resize((750, 1000)),),
    "random_resized_crop": (_RANDOM,),
    "horizontal_flip": (_RANDOM, ps.HorizontalFlip()),
    "vertical_flip": (_RANDOM, ps.VerticalFlip()),
    "color_jitter": (_RANDOM, ps.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "grayscale": (_RANDOM, ps.Grayscale(0.5)),
    "gaussian_blur": (_RANDOM, ps.GaussianBlur(9)),
    "random_erasing": (_RANDOM, ps.RandomErasing()),
}
FORMATS: dict[str, ps.Output] = {
    f"{dtype} {layout}{', normalised' if normalize else ''}": ps.Output(dtype, layout, normalize)
    for dtype in ("uint8", "float16", "bfloat16", "float32")
    for layout in ("NHWC", "NCHW")
    for normalize in (None, ps.Normalize())
    if not (dtype == "uint8" and normalize)
}


@dataclass(frozen=True, slots=True)
class Distance:
    """In levels of 255. most: of any value; inside: without the outermost rows and columns; mean: over all values."""

    most: float
    inside: float
    mean: float

    def __str__(self) -> str:
        return f"{self.most:g} / {self.inside:g} / {self.mean:g}"

    def within(self, bound: Distance) -> bool:
        """Whether none is above the bound's."""
        return self.most <= bound.most and self.inside <= bound.inside and self.mean <= bound.mean


_EXACT = Distance(0, 0, 0)
_SCALED = Distance(24, 1, 0.4)
# Levels that two neighbouring numbers of a format are apart at most.
_ROUNDED = {"uint8": 0.0, "float16": 0.25, "bfloat16": 1.0, "float32": 0.001}
_UNSCALED = ("decode, center_crop", "random_crop", "center_crop over the edge")
# What two sound decoders and resizes should keep.
_UNMEASURED = Distance(60, 40, 2)
_LIBRARIES = {
    **dict.fromkeys(OPERATIONS, Distance(1, 1, 0.3)),
    **dict.fromkeys(_UNSCALED, _EXACT),
    "color_jitter": Distance(16, 16, 0.6),
    **{name: Distance(1 + _ROUNDED[output.dtype], 1 + _ROUNDED[output.dtype], 0.3) for name, output in FORMATS.items()},
}
# What each engine is held to. Colour operations multiply what a resize leaves: a level before them may be several after.
BOUNDS: dict[str, dict[str, Distance]] = {
    "dali": {
        **dict.fromkeys(OPERATIONS, _SCALED),
        **dict.fromkeys(_UNSCALED, _EXACT),
        "resize to twice the size": Distance(1, 1, 0.4),
        "color_jitter": Distance(60, 16, 0.8),
        "gaussian_blur": Distance(16, 2, 0.4),
        # A float's rounding comes on top of what the resize leaves.
        **{name: Distance(25, 1 + _ROUNDED[output.dtype], 0.4) for name, output in FORMATS.items()},
    },
    "dali-gpu": dict.fromkeys((*OPERATIONS, *FORMATS), _UNMEASURED),
    "cvcuda": dict.fromkeys((*OPERATIONS, *FORMATS), _UNMEASURED),
    # The same decoder and another resize than the native core's.
    "nvimgcodec": _LIBRARIES,
    "cpu-libs": _LIBRARIES,
}


@lru_cache(maxsize=1)
def photos() -> tuple[bytes, ...]:
    """JPEGs of ten photos, 500 by 375 and the other way round, with subsampled chroma and without."""
    found = []
    for i, name in enumerate(CLASSES):
        size = (375, 500) if i % 3 == 2 else (500, 375)
        image = photo_at(name, 0).resize(size)
        found.append(encode(image, "JPEG", quality=90, subsampling=2 * (i % 2)))
    return tuple(found)


def pixels(engine: Engine, ops: tuple[Op, ...], output: ps.Output) -> NDArray[np.float32]:
    """What the engine makes of the photos, float64[B, H, W, 3] in levels of 255 whatever the output."""
    spec = PipelineSpec(ops=ops, output=output)
    datas = photos() * ROWS_A_PHOTO
    slot = bytearray(spec.pixel_bytes(len(datas)))
    prepared = engine.prepare(spec, SEED)
    samples = [Sample(i, f"photo{i}", data) for i, data in enumerate(datas)]
    result = prepared.run(samples, [(0, i) for i in range(len(datas))], memoryview(slot))
    prepared.close()
    if result.reasons.any():
        raise HeadraceError(f"engine {engine.name} refuses photos: {result.reasons.tolist()}")
    dtype: Any = np.uint16 if output.dtype == "bfloat16" else output.dtype
    made = np.frombuffer(slot, dtype).reshape(spec.shape(len(datas)))
    if output.dtype == "bfloat16":
        made = (made.astype(np.uint32) << 16).view(np.float32)
    levels = (made.transpose(0, 2, 3, 1) if output.layout == "NCHW" else made).astype(np.float32)
    if output.normalize:
        levels = levels * np.array(output.normalize.std, np.float32) + np.array(output.normalize.mean, np.float32)
    return levels if output.dtype == "uint8" else levels * 255


def measure(engine: Engine, reference: Engine) -> Iterator[tuple[str, Distance]]:
    """(operation or format, how far the engine is from the reference), for all that the engine has."""
    cases = {name: (ops, ps.Output()) for name, ops in OPERATIONS.items()}
    cases |= {name: ((_RANDOM, ps.HorizontalFlip()), output) for name, output in FORMATS.items()}
    for name, (ops, output) in cases.items():
        with contextlib.suppress(EngineUnsupported):
            yield name, _distance(engine, reference, ops, output)


def _distance(engine: Engine, reference: Engine, ops: tuple[Op, ...], output: ps.Output) -> Distance:
    apart = np.abs(pixels(engine, ops, output) - pixels(reference, ops, output))
    return Distance(float(apart.max()), float(apart[:, 1:-1, 1:-1].max()), float(apart.mean()))


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    reference = registry.create(REFERENCE, 2)
    lines.append(f"Reference: `{reference.fingerprint}`\n")
    for name in ENGINES:
        lines.append(f"## {name}\n")
        try:
            engine = registry.create(name, 2)
        except EngineUnsupported as error:
            lines.append(f"Did not run: {error.message}.\n\nIts bounds, not yet tried on a GPU: {_words(BOUNDS[name])}.\n")
            continue
        lines += [
            f"`{engine.fingerprint}`\n",
            "| operation or format | most | inside | mean | bound |",
            "|---|---|---|---|---|",
        ]
        for case, found in measure(engine, reference):
            lines.append(f"| {case} | {found.most:.3g} | {found.inside:.3g} | {found.mean:.3f} | {BOUNDS[name][case]} |")
        lines.append("")
        engine.close()
    reference.close()
    return "\n".join(lines).rstrip() + "\n"


def _words(bounds: dict[str, Distance]) -> str:
    worst = max(bounds.values(), key=lambda bound: bound.most)
    return f"at most {worst.most:g} levels, {worst.inside:g} inside, {worst.mean:g} on average"


_TABLE = ("| operation or format | most | inside | mean | bound |", "|---|---|---|---|---|")
_HEAD = f"""# How far engines are apart

Written by `python -m headrace.testing.engine_parity`; the bounds are tested (`tests/contract/test_engine_parity.py`).

Differences to the engine `{REFERENCE}`, in levels of 255, with the same drawn parameters, over {ROWS_A_PHOTO * len(CLASSES)}
rows of ten photos (500x375, JPEG of quality 90). `most`: of any value. `inside`: without the outermost rows and columns.
`mean`: over all values. `bound`: of the three, as tested. Operations end in uint8 NHWC; formats are of a random-resized-crop
and a flip, a float output being taken back to levels. What an engine
lacks has no line. A job records its engine's fingerprint, so that no job mixes engines.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
