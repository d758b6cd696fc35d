"""Epoch plans by example: ImageNet whole, known answers, refusals."""

import hashlib

import numpy as np
import pytest

from headrace.core.epoch_plan import EpochPlan, batch_count, check_plan, lane_count, reads_in, steps
from headrace.core.errors import NoSteps, SpecInvalid
from headrace.core.job import Shuffle

IMAGENET = 1_281_167


def test_a_whole_epoch_of_imagenet_holds_every_sample_once():
    plan = EpochPlan(IMAGENET, 256, 42, 7, Shuffle(), "pad")
    assert (plan.full_batches, plan.batches, plan.lanes) == (5004, 5005, 384)
    seen = np.zeros(IMAGENET, dtype=np.int32)
    for batch in range(plan.batches):
        found = plan.batch_samples(batch)
        np.add.at(seen, found.sample_ids[found.mask], 1)
    assert (seen == 1).all()


def test_plans_are_what_they_were():
    """A change here changes the batches of every job that is running: that needs a new plan version, not a new answer."""
    digest = hashlib.blake2b(digest_size=8)
    for shuffle in (Shuffle(), Shuffle(run=3, window=50), Shuffle(run=1, window=1), Shuffle(mode="none")):
        plan = EpochPlan(1003, 16, 5, 2, shuffle, "pad")
        for batch in range(plan.batches + 1):
            found = plan.batch_samples(batch)
            digest.update(found.sample_ids.astype("<i8").tobytes() + found.mask.tobytes())
    assert digest.hexdigest() == "9e3f380be65d0cb8"


@pytest.mark.parametrize(
    ("samples", "batch_size", "lanes"),
    [(0, 8, 1), (7, 8, 1), (40, 8, 1), (48, 8, 3), (96, 8, 6), (192, 8, 12), (IMAGENET, 256, 384), (10**9, 256, 6144)],
)
def test_lane_count(samples, batch_size, lanes):
    assert lane_count(samples, batch_size) == lanes


@pytest.mark.parametrize(
    ("batches", "first", "world", "drop", "pad"),
    [(15, 0, 2, 7, 8), (15, 14, 2, 0, 1), (15, 15, 2, 0, 0), (15, 99, 2, 0, 0), (1, 0, 8, 0, 1), (16, 4, 3, 4, 4)],
)
def test_steps(batches, first, world, drop, pad):
    assert steps(batches, first, world, "drop") == drop
    assert steps(batches, first, world, "pad") == pad


@pytest.mark.parametrize(
    ("samples", "batch_size", "world", "tail", "advice"),
    [
        (0, 8, 1, "pad", "no samples"),
        (7, 8, 1, "drop", "batch_size of at most 7"),
        (100, 32, 4, "drop", "batch_size of at most 25, at most 3 ranks"),
        (3, 1, 4, "drop", "at most 3 ranks"),
    ],
)
def test_a_plan_without_a_step_is_refused_with_what_to_change(samples, batch_size, world, tail, advice):
    with pytest.raises(NoSteps, match=advice) as error:
        check_plan(samples, batch_size, world, tail)
    assert error.value.ids == {"samples": samples, "batch_size": batch_size, "world": world}


@pytest.mark.parametrize(
    ("samples", "batch_size", "world", "tail"), [(96, 32, 3, "drop"), (1, 32, 8, "pad"), (1, 1, 1, "drop")]
)
def test_following_the_advice_helps(samples, batch_size, world, tail):
    check_plan(samples, batch_size, world, tail)


def test_refusals():
    with pytest.raises(NoSteps):
        EpochPlan(0, 8, 0, 0, Shuffle(), "pad")
    with pytest.raises(SpecInvalid, match="batch_size"):
        EpochPlan(8, 0, 0, 0, Shuffle(), "pad")
    with pytest.raises(SpecInvalid, match="epoch"):
        EpochPlan(8, 8, 0, -1, Shuffle(), "pad")
    plan = EpochPlan(20, 8, 0, 0, Shuffle(), "drop")
    for batch in (-1, 2):
        with pytest.raises(SpecInvalid, match="not in the plan of 2 batches"):
            plan.batch_samples(batch)


def test_counts():
    assert batch_count(4000, 256, "drop") == 15
    assert batch_count(4000, 256, "pad") == 16
    assert batch_count(512, 256, "pad") == 2
    assert reads_in(np.array([5, 3, 4, 9, 11, 10])) == 2
    assert reads_in(np.array([], dtype=np.int64)) == 0


@pytest.mark.parametrize("shuffle", [Shuffle(), Shuffle(run=4, window=32), Shuffle(mode="none")])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_batches_planned_together_are_those_planned_alone(shuffle, tail):
    plan = EpochPlan(1003, 8, seed=5, epoch=2, shuffle=shuffle, tail=tail)
    for batch in (*range(plan.lanes), plan.batches - 1):
        together = plan.lane_samples(batch, 7)
        assert 1 <= len(together) <= 7
        for turn, samples in enumerate(together):
            alone = plan.batch_samples(batch + turn * plan.lanes)
            assert np.array_equal(samples.sample_ids, alone.sample_ids)
            assert np.array_equal(samples.mask, alone.mask)
    assert len(plan.lane_samples(0, 7)) == (1 if shuffle.mode == "none" else 7)
