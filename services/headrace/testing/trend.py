"""Is a series of numbers rising? A robust slope for long runs (Theil and Sen), which outliers do not bend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Slopes are taken between the medians of this many blocks at most: quarter of a million pairs would say no more.
_BLOCKS = 200
_LEAST_BLOCKS = 8
_Z = 2.576  # of a normal distribution, 99% two-sided


@dataclass(frozen=True, slots=True)
class Trend:
    """slope, low, high: per hour, with the bounds of 99% confidence. rise: slope times the time judged.

    points: after warm-up. rising: the slope is above what is allowed, is no noise (low is above 0), and has come to more than
    the floor. too_short: fewer than eight points are left, and nothing can be said.
    """

    slope_per_hour: float
    low_per_hour: float
    high_per_hour: float
    rise: float
    seconds: float
    points: int
    rising: bool
    too_short: bool


def trend(
    times_s: Sequence[float],
    values: Sequence[float],
    *,
    warm_up_s: float,
    allowed_per_hour: float,
    floor: float,
) -> Trend:
    """Judge a series. warm_up_s: how much of its beginning is left out. floor: a rise in all that is never called a leak."""
    times, numbers = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    kept = times >= (times[0] if len(times) else 0.0) + warm_up_s
    times, numbers = times[kept], numbers[kept]
    if len(times) < _LEAST_BLOCKS:
        return Trend(0.0, 0.0, 0.0, 0.0, float(np.ptp(times)) if len(times) else 0.0, len(times), False, True)
    low, slope, high = _slopes(*_medians(times, numbers))
    seconds = float(np.ptp(times))
    rise = slope * seconds
    rising = slope * 3600 > allowed_per_hour and low > 0 and rise > floor
    return Trend(slope * 3600, low * 3600, high * 3600, rise, seconds, len(times), rising, False)


def _medians(times: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    blocks = np.array_split(np.arange(len(times)), min(len(times), _BLOCKS))
    return np.array([np.median(times[block]) for block in blocks]), np.array([np.median(values[block]) for block in blocks])


def _slopes(times: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float, float]:
    """(low, median, high) of the slopes between all pairs, per second."""
    first, second = np.triu_indices(len(times), 1)
    apart = times[second] - times[first]
    slopes = np.sort((values[second] - values[first])[apart > 0] / apart[apart > 0])
    count = len(slopes)
    if count == 0:
        return 0.0, 0.0, 0.0
    n = len(times)
    spread = _Z * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((count - spread) / 2) - 1)
    high = min(count - 1, round((count + spread) / 2))
    return float(slopes[low]), float(np.median(slopes)), float(slopes[high])
