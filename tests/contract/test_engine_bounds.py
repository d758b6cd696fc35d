"""What each engine is allowed is narrow enough: pixels made with a plain mistake are outside of it, for every entry."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from PIL import Image

from headrace.core import pipeline_spec as ps
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import good_kinds
from headrace.worker.engines.output import tables
from tests.contract import engine_entries, reference_ops
from tests.contract.engine_entries import Entry
from tests.contract.test_engines import assert_format, assert_near, reference

SPEC = PipelineSpec(ops=(ps.RandomResizedCrop((61, 53)), ps.HorizontalFlip()))


def each_entry(test):
    return pytest.mark.parametrize("entry", engine_entries.ENTRIES, ids=lambda entry: entry.name)(test)


@cache
def right() -> np.ndarray:
    return reference(SPEC, [kind.data for kind in good_kinds()])


def resized(by: Callable[[Image.Image, tuple[int, int]], Image.Image]) -> np.ndarray:
    """The same batch, scaled in another way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            reference_ops, "resize", lambda pixels, h, w: np.asarray(by(Image.fromarray(np.ascontiguousarray(pixels)), (w, h)))
        )
        return reference(SPEC, [kind.data for kind in good_kinds()])


def no_antialias(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image.transform(size, Image.Transform.EXTENT, (0, 0, *image.size), Image.Resampling.BILINEAR)


MISTAKES: dict[str, Callable[[], np.ndarray]] = {
    "a column to the right": lambda: np.roll(right(), 1, axis=2),
    "a row down": lambda: np.roll(right(), 1, axis=1),
    "mirrored": lambda: right()[:, :, ::-1],
    "upside down": lambda: right()[:, ::-1],
    "red for blue": lambda: right()[..., ::-1],
    "a neighbour's row": lambda: np.roll(right(), 1, axis=0),
    "not antialiased": lambda: resized(no_antialias),
    "nearest": lambda: resized(lambda image, size: image.resize(size, Image.Resampling.NEAREST)),
}


@each_entry
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_pixels_with_a_mistake_are_out_of_bounds(mistake: Callable[[], np.ndarray], entry: Entry) -> None:
    assert_near(right(), right(), entry)
    with pytest.raises(AssertionError):
        assert_near(mistake(), right(), entry)


@each_entry
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "wrong",
    [ps.Normalize(mean=(0.5, 0.456, 0.406)), ps.Normalize(std=(0.229, 0.224, 0.23)), None],
    ids=["mean", "std", "not at all"],
)
def test_a_wrong_constant_is_out_of_bounds(wrong: ps.Normalize | None, dtype: str, entry: Entry) -> None:
    levels = np.arange(256).repeat(3).reshape(1, 16, 16, 3)
    asked = ps.Output(dtype, "NHWC", ps.Normalize())

    def written(output: ps.Output) -> np.ndarray:
        found = tables(output)
        assert found is not None
        return np.stack([found[channel][levels[..., channel]] for channel in range(3)], axis=3)

    assert_format(written(asked), levels, asked, entry)
    with pytest.raises(AssertionError):
        assert_format(written(ps.Output(dtype, "NHWC", wrong)), levels, asked, entry)
