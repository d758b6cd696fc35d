"""Epoch plans: every sample once, lanes that own what they should, and batches that look mixed."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.epoch_plan import EpochPlan, lane_count, reads_in
from headrace.core.job import Shuffle

SHUFFLES = st.builds(
    Shuffle, mode=st.sampled_from(["full", "full", "full", "none"]), run=st.integers(1, 60), window=st.integers(1, 300)
)
PLANS = st.builds(
    EpochPlan,
    samples=st.integers(1, 400),
    batch_size=st.integers(1, 40),
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 2**31),
    shuffle=SHUFFLES,
    tail=st.sampled_from(["drop", "pad"]),
)


def real_samples(plan: EpochPlan, batch: int) -> np.ndarray:
    found = plan.batch_samples(batch)
    return found.sample_ids[found.mask]


@settings(print_blob=True, deadline=None, max_examples=150)
@given(plan=PLANS)
@example(plan=EpochPlan(1, 1, 0, 0, Shuffle(), "drop"))
@example(plan=EpochPlan(3, 8, 0, 0, Shuffle(), "pad"))  # below one batch
@example(plan=EpochPlan(7, 3, 0, 0, Shuffle(), "pad"))  # fewer full batches than three lanes
@example(plan=EpochPlan(2, 1, 0, 0, Shuffle(run=2, window=2), "drop"))
def test_every_sample_is_there_once(plan):
    ids = np.concatenate([np.zeros(0, np.int64), *(real_samples(plan, batch) for batch in range(plan.batches))])
    expected = plan.samples if plan.tail == "pad" else plan.full_batches * plan.batch_size
    assert len(ids) == len(np.unique(ids)) == expected
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < plan.samples)


@settings(print_blob=True, deadline=None, max_examples=100)
@given(plan=PLANS.filter(lambda plan: plan.tail == "pad"), beyond=st.integers(0, 50))
def test_padding_repeats_real_samples_and_says_so(plan, beyond):
    for batch in {0, plan.batches - 1, plan.batches + beyond}:
        found = plan.batch_samples(batch)
        assert found.sample_ids.shape == found.mask.shape == (plan.batch_size,)
        assert found.sample_ids.dtype == np.int64
        real = min(max(plan.samples - batch * plan.batch_size, 0), plan.batch_size)
        assert found.mask.tolist() == [row < real for row in range(plan.batch_size)]
        allowed = found.sample_ids[:real] if real else range(plan.samples)
        assert set(found.sample_ids.tolist()) <= set(allowed)
        assert plan.batch_samples(batch).sample_ids.tolist() == found.sample_ids.tolist()


@settings(print_blob=True, deadline=None, max_examples=50)
@given(plan=PLANS.filter(lambda plan: plan.shuffle.mode == "full"))
def test_tail_policy_changes_no_full_batch(plan):
    other = EpochPlan(
        plan.samples, plan.batch_size, plan.seed, plan.epoch, plan.shuffle, "pad" if plan.tail == "drop" else "drop"
    )
    for batch in range(plan.full_batches):
        assert plan.batch_samples(batch).sample_ids.tolist() == other.batch_samples(batch).sample_ids.tolist()


@settings(print_blob=True, deadline=None, max_examples=100)
@given(samples=st.integers(1, 400), batch_size=st.integers(1, 40), tail=st.sampled_from(["drop", "pad"]))
def test_unshuffled_batches_come_in_manifest_order(samples, batch_size, tail):
    plan = EpochPlan(samples, batch_size, 5, 3, Shuffle(mode="none"), tail)
    ids = [sample for batch in range(plan.batches) for sample in real_samples(plan, batch).tolist()]
    assert ids == list(range(len(ids)))


@settings(print_blob=True, deadline=None, max_examples=50)
@given(plan=PLANS.filter(lambda plan: plan.shuffle.mode == "full"))
def test_a_lane_draws_from_one_stretch_of_the_order(plan):
    """The order can be seen with windows of one: each lane's batches hold the same samples whatever the windows."""
    plain = EpochPlan(plan.samples, plan.batch_size, plan.seed, plan.epoch, Shuffle(run=plan.shuffle.run, window=1), plan.tail)
    order: list[int] = []
    for lane in range(plan.lanes):
        owned = range(lane, plan.full_batches, plan.lanes)
        assert all(plan.lane_of(batch) == lane for batch in owned)
        stretch = [sample for batch in owned for sample in real_samples(plain, batch).tolist()]
        mixed = [sample for batch in owned for sample in real_samples(plan, batch).tolist()]
        window = plan.shuffle.window
        for start in range(0, len(stretch), window):
            assert sorted(stretch[start : start + window]) == sorted(mixed[start : start + window])
        order += stretch
    if plan.batches > plan.full_batches:
        order += real_samples(plain, plan.full_batches).tolist()
    # Runs of neighbours stay together: a new one begins at most once a run, at the short run's edges, and where the drop cuts.
    breaks = sum(1 for a, b in pairwise(order) if b != (a + 1) % plan.samples)
    assert breaks <= -(-plan.samples // plan.shuffle.run)


@settings(print_blob=True, deadline=None, max_examples=200)
@given(full=st.integers(0, 10**7), batch_size=st.integers(1, 1000), rest=st.integers(0, 999))
@example(full=8 * 6144, batch_size=1, rest=0)
@example(full=8 * 6144 - 1, batch_size=1, rest=0)
def test_lane_count_is_the_largest_that_the_rule_allows(full, batch_size, rest):
    allowed = [3 * 2**a for a in range(12) if 3 * 2**a <= max(full / 8, min(full / 2, 12))]
    assert lane_count(full * batch_size + rest % batch_size, batch_size) == max(allowed, default=1)


@settings(print_blob=True, deadline=None, max_examples=40)
@given(seed=st.integers(-(2**63), 2**63 - 2), epoch=st.integers(0, 2**40))
def test_other_seeds_and_epochs_give_other_orders(seed, epoch):
    def head(seed: int, epoch: int) -> list[int]:
        plan = EpochPlan(100_000, 64, seed, epoch, Shuffle(), "drop")
        return plan.batch_samples(0).sample_ids.tolist() + plan.batch_samples(plan.batches - 1).sample_ids.tolist()

    # (seed + 1, epoch - 1) would be the same plan if keys were sums.
    others = [head(seed, epoch), head(seed + 1, epoch), head(seed, epoch + 1), head(seed + 1, max(epoch - 1, 0))]
    assert len({tuple(order) for order in others}) == (4 if epoch else 3)
    assert head(seed, epoch) == others[0]


@pytest.mark.parametrize(("window", "reads", "classes"), [(256, (16, 18), (16, 18)), (4096, (225, 250), (130, 160))])
def test_run_and_window_trade_reads_against_mixing(window, reads, classes):
    """The design's numbers for class-sorted data, B = 256, run 16: 1,000 classes of 1,281 samples."""
    plan = EpochPlan(1_281_000, 256, 11, 0, Shuffle(run=16, window=window), "drop")
    batches = [plan.batch_samples(batch).sample_ids for batch in range(0, plan.batches, 250)]
    assert reads[0] <= np.mean([reads_in(ids) for ids in batches]) <= reads[1]
    assert classes[0] <= np.mean([len(np.unique(ids // 1281)) for ids in batches]) <= classes[1]
