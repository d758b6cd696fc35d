"""The slope of a long run: a planted rise is found through noise, outliers and steps; a level, a warm-up or a saw is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.testing.trend import Trend, trend

MIB = 2.0**20
TIMES = np.arange(0.0, 600.0, 1.0)


def judge(values: NDArray[np.float64], times: NDArray[np.float64] = TIMES, warm_up_s: float = 60.0) -> Trend:
    return trend(times.tolist(), values.tolist(), warm_up_s=warm_up_s, allowed_per_hour=10 * MIB, floor=2 * MIB)


def noise(rng: np.random.Generator) -> NDArray[np.float64]:
    return 100 * MIB + rng.normal(0, 3 * MIB, len(TIMES))


def test_a_level_with_noise_is_none(rng: np.random.Generator) -> None:
    found = judge(noise(rng))
    assert not found.rising and not found.too_short
    assert found.low_per_hour < found.slope_per_hour < found.high_per_hour


@pytest.mark.parametrize("per_hour", [30, 100, 1000])
def test_a_planted_leak_is_found_and_measured(rng: np.random.Generator, per_hour: int) -> None:
    found = judge(noise(rng) + per_hour * MIB * TIMES / 3600)
    assert found.rising
    assert found.low_per_hour < per_hour * MIB < found.high_per_hour
    assert found.rise == pytest.approx(found.slope_per_hour * found.seconds / 3600)


def test_one_descriptor_in_ten_minutes_is_no_leak_but_one_a_minute_is() -> None:
    def one(values: NDArray[np.float64]) -> bool:
        return trend(TIMES.tolist(), values.tolist(), warm_up_s=60, allowed_per_hour=6, floor=2).rising

    assert not one(30 + (TIMES > 400).astype(float))
    assert one(30 + np.floor(TIMES / 60))


def test_outliers_and_a_warm_up_do_not_count(rng: np.random.Generator) -> None:
    values = noise(rng)
    values[rng.choice(len(values), 100, replace=False)] += 2000 * MIB
    assert not judge(values).rising
    warming = noise(rng) + 500 * MIB * np.minimum(TIMES / 60, 1)
    assert not judge(warming).rising
    assert judge(warming, warm_up_s=0).slope_per_hour > judge(warming).slope_per_hour


def test_a_saw_is_none_and_one_that_rises_is(rng: np.random.Generator) -> None:
    saw = noise(rng) + 80 * MIB * (TIMES % 37) / 37
    assert not judge(saw).rising
    assert judge(saw + 300 * MIB * TIMES / 3600).rising


def test_what_falls_is_no_leak(rng: np.random.Generator) -> None:
    assert not judge(noise(rng) - 300 * MIB * TIMES / 3600).rising


def test_the_floor_holds_for_short_runs() -> None:
    times = np.arange(0.0, 30.0)
    steep = 100 * MIB + 100 * MIB * times / 3600  # ten times what is allowed, but less than a MiB so far
    assert not judge(steep, times, warm_up_s=0).rising
    assert judge(100 * MIB + 1000 * MIB * times / 3600, times, warm_up_s=0).rising


@pytest.mark.parametrize("points", [0, 1, 7])
def test_too_few_points_say_nothing(points: int) -> None:
    found = judge(np.arange(points) * 1000 * MIB, np.arange(float(points)), warm_up_s=0)
    assert found.too_short and not found.rising


def test_many_points_are_taken_in_blocks(rng: np.random.Generator) -> None:
    times = np.arange(0.0, 36000.0, 0.5)
    found = judge(100 * MIB + rng.normal(0, MIB, len(times)) + 20 * MIB * times / 3600, times)
    assert found.rising and found.slope_per_hour == pytest.approx(20 * MIB, rel=0.05)
