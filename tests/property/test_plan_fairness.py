"""Over many epochs no sample is dropped, or meets one rank, more often than chance.

A sample's count over E epochs is binomial, since its place is uniform in each epoch and epochs are independent. The bound is
Chernoff's, P(count/E at least as far out as x) <= exp(-E * KL(x || p)) on either side, shared over all counts of a test: a
fair plan fails one with a chance below FALSE_ALARM.
"""

import numpy as np
import pytest

from headrace.core.epoch_plan import EpochPlan
from headrace.core.job import Shuffle

FALSE_ALARM = 1e-9


def assert_no_more_than_chance(counts: np.ndarray, epochs: int, chance: float) -> None:
    share = counts / epochs
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.where(share > 0, share * np.log(share / chance), 0)
        less = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - chance)), 0)
    distance = epochs * (more + less)
    limit = np.log(2 * counts.size / FALSE_ALARM)
    worst = int(distance.argmax())
    assert distance.max() < limit, f"count {worst}: {counts.ravel()[worst]} of {epochs} epochs, chance {chance:.4f}"


def ranks_of_samples(plan: EpochPlan, world: int) -> np.ndarray:
    """int8[N]: the rank that each sample goes to, -1 where it is dropped."""
    ranks = np.full(plan.samples, -1, dtype=np.int8)
    for batch in range(plan.batches // world * world):
        ranks[plan.batch_samples(batch).sample_ids] = batch % world
    return ranks


@pytest.mark.parametrize("seed", [0, -77])
@pytest.mark.parametrize(
    ("samples", "batch_size", "shuffle", "epochs"),
    [
        (1000, 48, Shuffle(), 1000),
        (1000, 48, Shuffle(run=7, window=20), 1000),
        (50_000, 6000, Shuffle(), 800),  # one shard of 50,000 samples: nothing may hang on shards or on their ends
        (10, 4, Shuffle(), 3000),  # all in one short run
    ],
)
def test_no_sample_is_dropped_more_often_than_chance(samples, batch_size, shuffle, epochs, seed):
    dropped = np.zeros(samples, dtype=np.int64)
    for epoch in range(epochs):
        plan = EpochPlan(samples, batch_size, seed, epoch, shuffle, "pad")
        tail = plan.batch_samples(plan.full_batches)  # exactly what `drop` leaves out
        dropped[tail.sample_ids[tail.mask]] += 1
    assert_no_more_than_chance(dropped, epochs, samples % batch_size / samples)


@pytest.mark.parametrize(
    ("samples", "batch_size", "world", "epochs"), [(1000, 48, 3, 200), (50_000, 6000, 4, 100), (30, 2, 5, 200)]
)
def test_no_sample_meets_a_rank_more_often_than_chance(samples, batch_size, world, epochs):
    plans = [EpochPlan(samples, batch_size, 8, epoch, Shuffle(), "drop") for epoch in range(epochs)]
    ranks = np.stack([ranks_of_samples(plan, world) for plan in plans])
    chance = plans[0].batches // world * batch_size / samples
    for rank in range(world):
        assert_no_more_than_chance((ranks == rank).sum(axis=0), epochs, chance)
    # The same rank twice in a row, over pairs of epochs that share none, so that they are independent.
    again = (ranks[0::2] == ranks[1::2]) & (ranks[0::2] >= 0)
    assert_no_more_than_chance(again.sum(axis=0), epochs // 2, world * chance**2)


def test_the_bound_sees_a_sample_that_is_favoured():
    """The bound is of use: a sample dropped three times as often as chance is found."""
    counts = np.random.default_rng(1).binomial(1500, 0.04, size=1000)
    assert_no_more_than_chance(counts, 1500, 0.04)
    counts[500] = 180
    with pytest.raises(AssertionError, match="count 500: 180 of 1500"):
        assert_no_more_than_chance(counts, 1500, 0.04)
