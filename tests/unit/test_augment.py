"""Augmentation parameters by example: torchvision's sizes and corners, shares, known answers."""

import math

import numpy as np
import pytest

from headrace.core.augment import HUE, sample_params
from headrace.core.exact_math import exp, log
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


def draw(ops, sizes, count=1, seed=2, epoch=0):
    table = np.broadcast_to(np.array(sizes, dtype=np.int64), (count, 2))
    keys = (np.full(count, epoch, dtype=np.int64), np.arange(count, dtype=np.int64))
    return sample_params(PipelineSpec(ops=tuple(ops)), seed, keys, table)


@pytest.mark.parametrize(
    ("size", "out"),
    [
        ((375, 500), (256, 341)),
        ((500, 375), (341, 256)),
        ((500, 500), (256, 256)),
        ((100, 333), (256, 852)),
        ((1, 7), (256, 1792)),
    ],
)
def test_resize_to_the_shorter_side_cuts_the_longer_as_torchvision(size, out):
    params = draw([Resize(256), CenterCrop((224, 224))], size)
    assert (params.ops[0].height[0], params.ops[0].width[0]) == out
    assert params.in_sizes[1].tolist() == [list(out)]


@pytest.mark.parametrize(
    ("size", "corner"),
    [
        ((256, 341), (16, 58)),  # 58.5 goes to the even one
        ((227, 225), (2, 0)),  # 1.5 to 2, 0.5 to 0
        ((224, 224), (0, 0)),
        ((219, 222), (-2, -1)),  # smaller: 2 rows above and 3 below, 1 column on either side
    ],
)
def test_centre_crop_corners_are_torchvisions(size, corner):
    crop = draw([CenterCrop((224, 224))], size).ops[0]
    assert (crop.y[0], crop.x[0], crop.height[0], crop.width[0]) == (*corner, 224, 224)


def test_random_crop_reaches_every_corner_and_none_beyond():
    crop = draw([RandomCrop((30, 30))], (32, 28), count=400).ops[0]
    assert set(crop.y.tolist()) == {0, 1, 2}
    assert set(crop.x.tolist()) == {-2, -1, 0}


def test_shares_of_chance_are_the_specs():
    """20,000 draws each; six standard deviations are 6 * sqrt(p * (1 - p) / n) <= 0.0213."""
    ops = [
        RandomResizedCrop((64, 64)),
        HorizontalFlip(),
        VerticalFlip(0.2),
        Grayscale(0.1),
        GaussianBlur(9, (0.1, 2.0), 0.3),
        RandomErasing(0.25),
    ]
    _, horizontal, vertical, gray, blur, erase = draw(ops, (200, 200), count=20_000).ops
    assert np.mean(horizontal.flip) == pytest.approx(0.5, abs=0.0213)
    assert np.mean(vertical.flip) == pytest.approx(0.2, abs=0.0213)
    assert np.mean(gray.gray) == pytest.approx(0.1, abs=0.0213)
    assert np.mean(blur.sigma > 0) == pytest.approx(0.3, abs=0.0213)
    assert np.mean(erase.height > 0) == pytest.approx(0.25, abs=0.0213)
    on = blur.sigma[blur.sigma > 0]
    assert on.min() >= 0.1
    assert on.max() <= 2.0
    assert np.mean(on) == pytest.approx(1.05, abs=0.05)
    # Two operations of one kind do not move together.
    assert np.mean(horizontal.flip & vertical.flip) == pytest.approx(0.1, abs=0.0213)


def test_chances_of_zero_and_one_are_certain():
    params = draw(
        [RandomResizedCrop((8, 8)), HorizontalFlip(0.0), VerticalFlip(1.0), Grayscale(1.0), GaussianBlur(p=0.0)],
        (9, 9),
        count=500,
    )
    _, never, always, gray, blur = params.ops
    assert not never.flip.any()
    assert always.flip.all()
    assert gray.gray.all()
    assert (blur.sigma == 0).all()


def test_jitter_factors_and_order():
    jitter = draw([RandomResizedCrop((8, 8)), ColorJitter(0.4, 2.0, 0.0, 0.1)], (9, 9), count=5000).ops[1]
    assert 0.6 <= jitter.brightness.min() < 0.61
    assert 1.39 < jitter.brightness.max() <= 1.4
    assert 0.0 <= jitter.contrast.min() < 0.05  # 1 - 2 is cut at 0
    assert 2.95 < jitter.contrast.max() <= 3.0
    assert (jitter.saturation == 1.0).all()
    assert -0.1 <= jitter.hue.min() < -0.09
    assert 0.09 < jitter.hue.max() <= 0.1
    orders, counts = np.unique(jitter.order, axis=0, return_counts=True)
    assert len(orders) == 24
    assert counts.min() > 120  # 208 expected, standard deviation 14
    assert np.mean(jitter.order[:, 0] == HUE) == pytest.approx(0.25, abs=0.04)


def test_a_box_that_fits_nowhere_erases_nothing():
    assert draw([RandomErasing(1.0), RandomResizedCrop((8, 8))], (1, 1), count=20).ops[0].height.max() == 0


def test_a_size_that_is_not_known_harms_no_other_row():
    spec, keys = PipelineSpec(), (np.zeros(2, np.int64), np.array([5, 6]))
    good = sample_params(spec, 1, keys, np.array([[300, 400], [300, 400]]))
    bad = sample_params(spec, 1, keys, np.array([[0, -7], [300, 400]]))
    assert good.ops[0].height[1] == bad.ops[0].height[1]
    assert good.ops[0].x[1] == bad.ops[0].x[1]


def test_epoch_seed_and_place_in_the_spec_change_the_draws():
    def crops(**kwargs):
        return draw([RandomResizedCrop((64, 64))], (300, 400), count=50, **kwargs).ops[0].x.tolist()

    flips = draw([HorizontalFlip(), RandomResizedCrop((64, 64)), HorizontalFlip()], (300, 400), count=200)
    assert crops() == crops()
    assert crops() != crops(seed=3)
    assert crops() != crops(epoch=1)
    assert flips.ops[0].flip.tolist() != flips.ops[2].flip.tolist()


def test_parameters_are_what_they_were():
    """A change here changes the batches of every job that is running: that needs a new plan version, not a new answer."""
    crop, flip = draw([RandomResizedCrop((224, 224)), HorizontalFlip()], (375, 500), count=3, seed=9, epoch=4).ops
    assert np.stack([crop.y, crop.x, crop.height, crop.width], axis=1).tolist() == [
        [27, 181, 215, 280],
        [10, 105, 332, 324],
        [39, 1, 173, 182],
    ]
    assert flip.flip.tolist() == [False, False, False]


def test_exp_and_log_are_right():
    values = np.linspace(-5, 5, 10_001)
    assert np.allclose(exp(values), np.exp(values), rtol=1e-12, atol=0)
    assert exp(np.zeros(1))[0] == 1.0
    for value in (0.01, 0.3, 0.75, 1.0, 4 / 3, 3.3, 100.0):
        assert log(value) == pytest.approx(math.log(value), rel=1e-14, abs=1e-15)
