"""Keyed permutations of [0, n) that are computed, not stored: O(1) memory, any place on its own.

A position is written as (left, right) with left in [0, a), right in [0, b) and a * b just above n. Each round adds a keyed
hash of one half to the other (a Feistel network over any a and b, not only powers of two), which can be undone, so the
whole is a bijection of [0, a * b). A result of n or more is sent through again until it falls below n (cycle walking): still
a bijection, of [0, n). As a * b - n < a, about one in sqrt(n) takes a second walk.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import SpecInvalid
from headrace.core.rng import Key, words

MAX_SIZE = 2**53
# Below 16, orders of 5 or 6 things were measurably uneven (tests/property/test_plan_permutation.py looks at that).
ROUNDS = 20

_U = np.uint64
_HALF = _U(32)
_FEW = 8


def permute(key: Key, size: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of `positions` (int64[B], in [0, size)) goes, int64[B]. size: 1 to 2^53."""
    return permute_rows(key, np.zeros(1, dtype=np.int64), np.array([size], dtype=np.int64), positions)


def permute_rows(key: Key, ids: NDArray[np.int64], sizes: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same with a permutation of its own for every row: number ids[i], of [0, sizes[i]).

    ids, sizes: int64[B] or int64[1]; positions: int64[B], positions[i] in [0, sizes[i]). Different ids give unrelated
    permutations. Raises SpecInvalid for a position outside.
    """
    if ((positions < 0) | (positions >= sizes)).any():
        # Such a position lies on no cycle, and the walk below might never end.
        raise SpecInvalid("a position lies outside what is permuted", field="positions")
    numbers, rows = np.unique(ids, return_inverse=True)
    # Remembered for few numbers: neighbouring batches ask for the same.
    keys = _round_keys(key, tuple(numbers.tolist())) if len(numbers) <= _FEW else words(key, numbers, ROUNDS).T
    round_keys = keys[:, rows.ravel()]
    lefts = np.ceil(np.sqrt(sizes.astype(np.float64))).astype(np.uint64)
    limits = sizes.astype(np.uint64)
    rights = (limits + lefts - _U(1)) // lefts
    out = _network(round_keys, lefts, rights, positions.astype(np.uint64))
    outside = np.flatnonzero(out >= limits)
    while len(outside):
        out[outside] = _network(_rows(round_keys, outside), _rows(lefts, outside), _rows(rights, outside), out[outside])
        outside = outside[out[outside] >= _rows(limits, outside)]
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _round_keys(key: Key, numbers: tuple[int, ...]) -> NDArray[np.uint64]:
    """uint64[ROUNDS, len(numbers)], not to be written to."""
    return words(key, np.array(numbers, dtype=np.int64), ROUNDS).T


def _rows(part: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The columns of some rows, or the one that is for all of them."""
    return part if part.shape[-1] == 1 else part[..., rows]


def _network(
    round_keys: NDArray[np.uint64], lefts: NDArray[np.uint64], rights: NDArray[np.uint64], places: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    left, right = places // rights, places % rights
    for number, round_key in enumerate(round_keys):
        if number % 2 == 0:
            left = (left + _below(_mix(right ^ round_key), lefts)) % lefts
        else:
            right = (right + _below(_mix(left ^ round_key), rights)) % rights
    return left * rights + right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the input changes every bit of the output (Stafford's variant 13 of the MurmurHash3 finaliser)."""
    values = (values ^ (values >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U(27))) * _U(0x94D049BB133111EB)
    return values ^ (values >> _U(31))


def _below(values: NDArray[np.uint64], bounds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Whole numbers in [0, bound) from the upper 32 bits; bounds are below 2^27."""
    return ((values >> _HALF) * bounds) >> _HALF
