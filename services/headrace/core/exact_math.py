"""Logarithm and exponential that give the same bits on every machine.

math.log and numpy's exp may differ in the last bit with the C library and the CPU's instruction set, and one bit can move a
crop by a pixel. These are made of IEEE add, multiply and divide alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def log(value: float) -> float:
    """Natural logarithm of value > 0."""
    mantissa, exponent = math.frexp(value)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, total, power = ratio * ratio, 0.0, ratio
    for odd in range(1, 60, 2):
        total += power / odd
        power *= square
    return exponent * 0.6931471805599453 + 2.0 * total


def exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential of float64 values, |value| < 16, to about 1e-12."""
    small = values * (1.0 / 1024)
    total = np.ones_like(small)
    for term in range(8, 0, -1):
        total = 1.0 + small * total * (1.0 / term)
    for _ in range(10):
        total = total * total
    return total
