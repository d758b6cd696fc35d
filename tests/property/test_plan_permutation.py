"""Keyed permutations: bijective for every size, and as mixed as chance."""

from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import SpecInvalid
from headrace.core.permutation import permute, permute_rows
from headrace.core.rng import key


@settings(print_blob=True, deadline=None, max_examples=150)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64))
@example(size=1, seed=0)
@example(size=2, seed=0)
@example(size=3, seed=0)
@example(size=4096, seed=0)
def test_a_permutation_hits_every_place_once(size, seed):
    out = permute(key(seed), size, np.arange(size))
    assert np.sort(out).tolist() == list(range(size))


@pytest.mark.parametrize("size", range(1, 300))
def test_every_small_size(size):
    assert np.sort(permute(key("small"), size, np.arange(size))).tolist() == list(range(size))


@settings(print_blob=True, deadline=None, max_examples=60)
@given(size=st.integers(2**20, 2**53), places=st.sets(st.integers(0, 2**53 - 1), min_size=2, max_size=100))
def test_large_sizes_stay_in_range_and_injective(size, places):
    positions = np.array(sorted({place % size for place in places}))
    out = permute(key(size), size, positions)
    assert len(np.unique(out)) == len(positions)
    assert out.min() >= 0
    assert out.max() < size


@settings(print_blob=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_rows_of_differing_sizes_each_have_their_own_permutation(seed, sizes):
    numbers = np.concatenate([np.full(size, i * 7) for i, size in enumerate(sizes)])
    limits = np.concatenate([np.full(size, size) for size in sizes])
    places = np.concatenate([np.arange(size) for size in sizes])
    out = permute_rows(key(seed), numbers, limits, places)
    for i, size in enumerate(sizes):
        own = out[numbers == i * 7]
        assert np.sort(own).tolist() == list(range(size))
        alone = permute_rows(key(seed), np.full(size, i * 7), np.full(size, size), np.arange(size))
        assert own.tolist() == alone.tolist()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_things_are_equally_likely(size):
    """Chi-square over the n! orders of 60,000 keys; the bound is 6.5 standard deviations of it (chance below 1e-9)."""
    trials, orders = 60_000, factorial(size)
    ids = np.repeat(np.arange(trials), size)
    out = permute_rows(key("orders"), ids, np.full(size * trials, size), np.tile(np.arange(size), trials))
    counts = Counter(map(tuple, out.reshape(trials, size).tolist()))
    expected = trials / orders
    distance = sum((count - expected) ** 2 / expected for count in counts.values()) + expected * (orders - len(counts))
    freedom = orders - 1
    assert len(counts) == orders
    assert distance < freedom + 6.5 * (2 * freedom) ** 0.5 + 20


def test_neighbours_part_and_keys_give_unrelated_orders():
    size = 100_000
    first, second = (permute(key(name), size, np.arange(size)) for name in ("one", "two"))
    # Each count is about Poisson(1) or (2) by chance; 20 of either has a chance below 1e-13.
    assert np.count_nonzero(first == second) < 20
    assert np.count_nonzero(first == np.arange(size)) < 20
    assert np.count_nonzero(np.abs(np.diff(first)) == 1) < 20
    assert abs(np.corrcoef(np.arange(size), first)[0, 1]) < 6.5 / size**0.5


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_a_position_outside_is_refused_and_never_walks_for_ever(position):
    with pytest.raises(SpecInvalid):
        permute(key("outside"), 10, np.array([3, position]))
