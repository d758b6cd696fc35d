"""Augmentation parameters: a row's own, within bounds, and drawn by torchvision's rules."""

import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.augment import BatchParams, sample_params
from headrace.core.pipeline_spec import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    PipelineSpec,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from headrace.core.rng import uniforms

SIDE = st.integers(1, 600)
PAIR = st.tuples(SIDE, SIDE)
OPS = st.one_of(
    st.builds(Resize, SIDE),
    st.builds(Resize, PAIR),
    st.builds(CenterCrop, PAIR),
    st.builds(RandomCrop, PAIR),
    st.builds(RandomResizedCrop, PAIR),
    st.builds(RandomResizedCrop, PAIR, st.just((0.9, 1.0)), st.sampled_from([(0.01, 0.02), (3.0, 100.0), (1.0, 1.0)])),
    st.builds(HorizontalFlip),
    st.builds(VerticalFlip, st.sampled_from([0.0, 0.3, 1.0])),
    st.builds(ColorJitter, st.sampled_from([0.0, 0.4, 3.0]), st.just(0.4), st.just(0.4), st.sampled_from([0.0, 0.5])),
    st.builds(Grayscale, st.just(0.5)),
    st.builds(GaussianBlur, p=st.just(0.5)),
    st.builds(RandomErasing),
)
SPECS = st.lists(OPS, max_size=5).map(lambda ops: PipelineSpec(ops=(*ops, RandomResizedCrop((32, 48)), HorizontalFlip())))
IDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40), SIDE, SIDE), min_size=1, max_size=12)


def flatten(params: BatchParams) -> list[np.ndarray]:
    """All arrays with a row a sample."""
    values = [getattr(op, name) for op in params.ops for name in type(op).__slots__]
    return [value for value in (*values, *params.in_sizes) if isinstance(value, np.ndarray)]


def draw(spec: PipelineSpec, rows: list[tuple[int, int, int, int]], seed: int = 4) -> BatchParams:
    table = np.array(rows, dtype=np.int64)
    return sample_params(spec, seed, (table[:, 0], table[:, 1]), table[:, 2:])


@settings(print_blob=True, deadline=None, max_examples=80)
@given(spec=SPECS, rows=IDS, order=st.randoms(use_true_random=False))
def test_a_rows_parameters_are_its_own(spec, rows, order):
    together = flatten(draw(spec, rows))
    assert all(len(array) == len(rows) for array in together)
    places = list(range(len(rows)))
    order.shuffle(places)
    shuffled = flatten(draw(spec, [rows[place] for place in places]))
    for i, row in enumerate(rows):
        alone = flatten(draw(spec, [row]))
        for one, whole, mixed in zip(alone, together, shuffled, strict=True):
            assert one.dtype == whole.dtype
            assert one[0].tolist() == whole[i].tolist() == mixed[places.index(i)].tolist()


@settings(print_blob=True, deadline=None, max_examples=120)
@given(spec=SPECS, rows=IDS)
@example(spec=PipelineSpec(ops=(RandomResizedCrop((8, 8), (1.0, 1.0), (100.0, 100.0)),)), rows=[(0, 0, 5, 1), (0, 1, 1, 5)])
def test_boxes_lie_where_the_contract_says(spec, rows):
    params = draw(spec, rows)
    sizes = np.array(rows)[:, 2:]
    for op, drawn, before in zip(spec.ops, params.ops, params.in_sizes, strict=True):
        assert before.tolist() == sizes.tolist()
        height, width = before.T
        match op:
            case Resize():
                sizes = np.stack([drawn.height, drawn.width], axis=1)
                assert sizes.min() >= 1
            case CenterCrop() | RandomCrop():
                for corner, cut, side in ((drawn.y, drawn.height, height), (drawn.x, drawn.width, width)):
                    assert (corner >= np.minimum(side - cut, 0)).all()
                    assert (corner <= np.maximum(side - cut, 0)).all()
                sizes = np.stack([drawn.height, drawn.width], axis=1)
                assert (sizes == op.size).all()
            case RandomResizedCrop():
                assert min(drawn.height.min(), drawn.width.min()) >= 1
                assert min(drawn.y.min(), drawn.x.min()) >= 0
                assert ((drawn.y + drawn.height <= height) & (drawn.x + drawn.width <= width)).all()
                assert (drawn.out_height, drawn.out_width) == op.size
                sizes = np.broadcast_to(op.size, sizes.shape)
            case RandomErasing():
                assert ((drawn.height == 0) == (drawn.width == 0)).all()
                assert min(drawn.y.min(), drawn.x.min()) >= 0
                assert ((drawn.y + drawn.height <= height) & (drawn.x + drawn.width <= width)).all()
            case ColorJitter():
                assert (np.sort(drawn.order, axis=1) == [0, 1, 2, 3]).all()
                assert op.brightness or (drawn.brightness == 1.0).all()
                assert op.hue or (drawn.hue == 0.0).all()
                assert (np.abs(drawn.contrast - 1) <= op.contrast).all()


def torchvision_crop(height: int, width: int, op: RandomResizedCrop, number) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params, as its documentation and source state it. number(attempt, which) is uniform in [0, 1)."""
    area = height * width
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    for attempt in range(10):
        target = area * (op.scale[0] + (op.scale[1] - op.scale[0]) * number(attempt, 0))
        aspect = math.exp(low + (high - low) * number(attempt, 1))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(number(attempt, 2) * (height - h + 1)), int(number(attempt, 3) * (width - w + 1)), h, w
    if width / height < op.ratio[0]:
        w, h = width, round(width / op.ratio[0])
    elif width / height > op.ratio[1]:
        w, h = round(height * op.ratio[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@settings(print_blob=True, deadline=None, max_examples=150)
@given(
    rows=IDS,
    scale=st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.001, 0.01)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (0.5, 2.0)]),
)
@example(rows=[(0, 5, 500, 20), (0, 6, 20, 500), (0, 7, 60, 61)], scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
def test_crops_are_torchvisions_given_the_same_numbers(rows, scale, ratio):
    op = RandomResizedCrop((224, 224), scale, ratio)
    drawn = draw(PipelineSpec(ops=(op,)), rows).ops[0]
    for i, (epoch, sample, height, width) in enumerate(rows):
        numbers = uniforms(4, epoch, "augment/0/random_resized_crop", np.array([sample]), 40)[0].reshape(10, 4)
        expected = torchvision_crop(height, width, op, lambda attempt, which, numbers=numbers: numbers[attempt, which])
        assert (drawn.y[i], drawn.x[i], drawn.height[i], drawn.width[i]) == expected


def kolmogorov_smirnov(one: np.ndarray, two: np.ndarray) -> float:
    """Largest distance of two empirical distributions, in units of sqrt((n + m) / (n * m))."""
    both = np.concatenate([one, two])
    shares = (np.searchsorted(np.sort(part), both, side="right") / len(part) for part in (one, two))
    return float(np.abs(np.subtract(*shares)).max() * math.sqrt(len(one) * len(two) / len(both)))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 120)])
def test_crops_are_distributed_as_torchvisions(height, width):
    """Two samples of 6,000 by Kolmogorov and Smirnov: 3.3 has a chance of 7e-10 by 2 * exp(-2 * d^2)."""
    count, op = 6000, RandomResizedCrop((224, 224))
    drawn = draw(PipelineSpec(ops=(op,)), [(0, sample, height, width) for sample in range(count)]).ops[0]
    source = random.Random(5)
    other = np.array([torchvision_crop(height, width, op, lambda *_: source.random()) for _ in range(count)])
    ours = np.stack([drawn.y, drawn.x, drawn.height, drawn.width], axis=1)
    for measure in (
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
        lambda box: box[:, 0] + box[:, 2] / 2,
        lambda box: box[:, 1] + box[:, 3] / 2,
    ):
        assert kolmogorov_smirnov(measure(ours), measure(other)) < 3.3
