"""Keyed, counter-based randomness: a number depends on what it is for, never on what was drawn before it.

A 128-bit key is hashed from a whole tuple such as (seed, purpose); Philox4x64-10 then turns (key, counter) into random
words. The counter's four words hold (block, id, epoch, 0), each in a word of its own, so no two of (seed, purpose, epoch, id,
block) can meet by adding up. All arithmetic is on integers: the same words on every machine.

Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the same words as numpy.random.Philox.
"""

from __future__ import annotations

import hashlib
from typing import NewType

import numpy as np
from numpy.typing import NDArray

Key = NewType("Key", int)
"""128 random-looking bits."""

WORDS_PER_BLOCK = 4

_MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], dtype=np.uint64)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_MASK32 = np.uint64(0xFFFFFFFF)
_MASK64 = (1 << 64) - 1
_HALF = np.uint64(32)


def key(*parts: int | str) -> Key:
    """Hash a tuple of whole numbers and texts into a key.

    Type and length go before each part, so different tuples never spell the same bytes: ("ab", "c") and ("a", "bc"), 1
    and "1" give unrelated keys.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"headrace-key-1")
    for part in parts:
        text = str(int(part)) if isinstance(part, int) else part
        data = text.encode()
        digest.update(b"%c%d:" % (b"i" if isinstance(part, int) else b"s", len(data)) + data)
    return Key(int.from_bytes(digest.digest(), "little"))


def below(number: Key, bound: int) -> int:
    """Map a key to a whole number in [0, bound), uniform to within bound / 2^128."""
    return (number * bound) >> 128


def _multiply(words: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """High and low 64 bits of words[2, n] times the two Philox multipliers, by 32-bit halves."""
    low, high = words & _MASK32, words >> _HALF
    m_low, m_high = _MULTIPLIERS & _MASK32, _MULTIPLIERS >> _HALF
    middle = high * m_low
    middle += (low * m_low) >> _HALF
    low *= m_high
    low += middle & _MASK32
    low >>= _HALF
    middle >>= _HALF
    high *= m_high
    high += middle
    high += low
    return high, words * _MULTIPLIERS


def philox(key_: Key, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x64-10 of counters uint64[4, n] (word 0 the lowest); returns uint64[4, n].

    Column i depends on column i of `counters` and the key alone.
    """
    low, high = key_ & _MASK64, key_ >> 64
    even, odd = counters[0::2], counters[1::2]
    for _ in range(_ROUNDS):
        product_high, product_low = _multiply(even)
        even = product_high[::-1] ^ odd
        even ^= np.array([[low], [high]], dtype=np.uint64)
        odd = product_low[::-1]
        low, high = (low + _WEYL[0]) & _MASK64, (high + _WEYL[1]) & _MASK64
    return np.stack([even[0], odd[0], even[1], odd[1]])


def words(
    key_: Key, ids: NDArray[np.int64], count: int, epoch: int | NDArray[np.int64] = 0, *, first_block: int = 0
) -> NDArray[np.uint64]:
    """Random words uint64[B, count] for ids int64[B].

    Row i depends on (key, epoch[i], ids[i]) alone, not on its neighbours nor on B. `first_block` skips that many blocks
    of four words of every row's stream.
    """
    blocks = -(-count // WORDS_PER_BLOCK)
    rows = len(ids)
    counters = np.zeros((4, rows, blocks), dtype=np.uint64)
    counters[0] = np.arange(first_block, first_block + blocks, dtype=np.uint64)
    counters[1] = np.asarray(ids, dtype=np.int64).view(np.uint64)[:, None]
    counters[2] = np.asarray(epoch, dtype=np.int64).reshape(-1, 1).view(np.uint64)
    out = philox(key_, counters.reshape(4, rows * blocks))
    return np.ascontiguousarray(out.T).reshape(rows, blocks * WORDS_PER_BLOCK)[:, :count]


def uniforms(
    seed: int, epoch: int | NDArray[np.int64], purpose: str, ids: NDArray[np.int64], count: int, *, first_block: int = 0
) -> NDArray[np.float64]:
    """Uniform numbers float64[B, count] in [0, 1), multiples of 2^-53.

    ids: int64[B]; epoch: one for all rows or int64[B]. Row i depends on (seed, epoch[i], purpose, ids[i]) alone.
    """
    raw = words(key(seed, purpose), ids, count, epoch, first_block=first_block)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
