"""Keys and Philox: known answers, and that a row's numbers are its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.rng import below, key, philox, uniforms, words

WORD = st.integers(0, 2**64 - 1)


@settings(print_blob=True, deadline=None, max_examples=60)
@given(key_=st.integers(0, 2**128 - 1), counter=st.tuples(WORD, WORD, WORD, WORD))
def test_philox_gives_numpys_words(key_, counter):
    ours = philox(key_, np.array(counter, dtype=np.uint64)[:, None])[:, 0]
    # numpy's generator steps its counter before it makes a block.
    number = sum(word << (64 * place) for place, word in enumerate(counter))
    theirs = np.random.Philox(key=key_, counter=(number - 1) % 2**256).random_raw(4)
    assert ours.tolist() == theirs.tolist()


def test_philox_gives_the_known_answers_of_its_authors():
    """From the kat_vectors of Random123: philox4x64, 10 rounds."""
    ones = 2**64 - 1
    assert [f"{w:016x}" for w in philox(0, np.zeros((4, 1), np.uint64))[:, 0]] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]
    assert [f"{w:016x}" for w in philox(2**128 - 1, np.full((4, 1), ones, np.uint64))[:, 0]] == [
        "87b092c3013fe90b",
        "438c3c67be8d0224",
        "9cc7d7c69cd777b6",
        "a09caebf594f0ba0",
    ]


def test_uniforms_are_numpys_doubles():
    expected = np.random.Generator(np.random.Philox(key=key(9, "flip"), counter=(5 << 64) - 1)).random(8)
    assert uniforms(9, 0, "flip", np.array([5]), 8)[0].tolist() == expected.tolist()


def test_keys_never_meet_by_concatenation_addition_or_type():
    tuples = [
        (1, 2),
        (2, 1),
        (12,),
        (1, "2"),
        ("1", 2),
        ("12",),
        ("1", "2"),
        (3,),
        (0, 3),
        ("ab", "c"),
        ("a", "bc"),
        (-1, 2),
        (),
    ]
    assert len({key(*parts) for parts in tuples}) == len(tuples)
    grid = [(seed, epoch, purpose) for seed in range(-20, 20) for epoch in range(20) for purpose in ("rotate", "runs")]
    assert len({key(*parts) for parts in grid}) == len(grid)


def test_keys_and_words_are_what_they_were():
    """A change here changes the batches of every job that is running: that needs a new plan version, not a new answer."""
    assert f"{key(7, 3, 'plan', 'rotate'):032x}" == "f5b2fafde1e2b382cf56ae12f4e626b2"
    assert [f"{word:016x}" for word in words(key("x"), np.array([-1, 2]), 5, epoch=4)[:, 4]] == [
        "74cc47da78feb8c3",
        "b965943955390110",
    ]


@settings(print_blob=True, deadline=None, max_examples=60)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    epochs=st.lists(st.integers(0, 2**40), min_size=20, max_size=20),
    count=st.integers(1, 41),
    skip=st.integers(0, 5),
)
def test_a_rows_numbers_do_not_depend_on_the_others(seed, ids, epochs, count, skip):
    rows, epochs = np.array(ids), np.array(epochs[: len(ids)])
    together = uniforms(seed, epochs, "op", rows, count, first_block=skip)
    assert together.shape == (len(ids), count)
    assert ((together >= 0) & (together < 1)).all()
    for i in range(len(ids)):
        alone = uniforms(seed, int(epochs[i]), "op", rows[i : i + 1], count, first_block=skip)
        assert alone[0].tolist() == together[i].tolist()
    longer = uniforms(seed, epochs, "op", rows, count + 4 * skip)
    assert longer[:, 4 * skip :].tolist() == together.tolist()


def test_seed_epoch_purpose_and_id_each_change_all_numbers():
    ids = np.arange(64)
    streams = [
        uniforms(1, 0, "a", ids, 8),
        uniforms(2, 0, "a", ids, 8),
        uniforms(1, 1, "a", ids, 8),
        uniforms(1, 0, "b", ids, 8),
        uniforms(1, 0, "a", ids + 64, 8),
        uniforms(1, 0, "a", ids, 8, first_block=2),
    ]
    assert len(np.unique(np.concatenate([s.ravel() for s in streams]))) == 6 * 64 * 8


def test_uniforms_are_uniform():
    """Chi-square over 256 cells of 400,000 numbers: 255 degrees of freedom, 420 has a chance of 2e-10."""
    numbers = uniforms(3, 1, "spread", np.arange(10_000), 40).ravel()
    counts = np.bincount((numbers * 256).astype(int), minlength=256)
    expected = len(numbers) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 420


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 2**53])
def test_below_stays_below(bound):
    assert below(0, bound) == 0
    assert below(2**128 - 1, bound) == bound - 1
