"""What a worker costs the step beside it: measured against a load that is made up, and reckoned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.contention import measure, rest_steps
from headrace.core.bottleneck import SLOWED, Measured, diagnosis
from headrace.core.contention import NOTICED_AT, Contention
from headrace.core.errors import ConfigInvalid
from headrace.core.placement import engine_of
from headrace.core.starvation import CAUSES

BATCH: Any = range(64)  # as far as the measurement goes, a batch has a length


class Machine:
    """A trainer and a worker that take from one another, with a clock of their own. slack: batches that a worker is behind."""

    def __init__(self, step_s: float, cost_s: float, slack: int = 0) -> None:
        self.now_s = 0.0
        self.fed = self.steps = 0
        self._step_s, self._cost_s, self._slack = step_s, cost_s, slack
        self._work = 0

    def feed(self) -> None:
        self.fed += 1
        self._work = 1 + self._slack

    def step(self, batch: Any) -> None:
        self.steps += 1
        self.now_s += self._step_s + (self._cost_s if self._work else 0.0)
        self._work = max(0, self._work - 1)

    def measured(self, steps: int = 9, rest: int = 4, on_gpu: bool = True) -> Contention:
        return measure(
            self.step, BATCH, self.feed, steps=steps, rest=rest, settle=lambda: None, on_gpu=on_gpu, clock_s=lambda: self.now_s
        )


@pytest.mark.parametrize("slack", [0, 3])
def test_the_same_step_is_timed_beside_the_busy_and_the_idle_worker(slack: int) -> None:
    machine = Machine(0.100, 0.030, slack)
    found = machine.measured()
    assert found.busy_s == pytest.approx(0.130)
    assert found.idle_s == pytest.approx(0.100)
    assert found.batch_size == len(BATCH)
    assert (machine.fed, machine.steps) == (9, 9 + 4 + 9)
    assert "30% longer" in found.sentence
    assert "on its GPU" in found.sentence
    assert "--engine cpu" in found.advice
    assert "640 samples/s" in found.advice
    assert "23% of the step" in found.advice


def test_a_worker_that_costs_nothing_is_left_where_it_is() -> None:
    found = Machine(0.100, 0.001).measured()
    assert not found.noticed
    assert "next to nothing" in found.sentence
    assert found.advice == "leave the worker where it is"


def test_on_the_cpu_nobody_is_sent_to_another_engine() -> None:
    found = Machine(0.100, 0.050).measured(on_gpu=False)
    assert "CPU cores" in found.advice
    assert "--engine" not in found.advice


def test_one_slow_step_in_between_changes_nothing() -> None:
    machine = Machine(0.100, 0.0)
    slow = iter([0.0, 9.0] + [0.0] * 100)

    def step(batch: Any) -> None:
        machine.step(batch)
        machine.now_s += next(slow)

    found = measure(step, BATCH, machine.feed, steps=9, rest=0, settle=lambda: None, on_gpu=True, clock_s=lambda: machine.now_s)
    assert found.slowdown == pytest.approx(0.0)


@given(st.integers(1, 64), st.integers(2, 512), st.floats(1e-4, 10), st.floats(1e-4, 100))
def test_ranks_rest_for_equally_many_steps_whatever_each_measured(window: int, world: int, cached: float, live: float) -> None:
    assert rest_steps(window, world, cached, live) == rest_steps(window, world, live, cached) >= window
    assert window <= max(window, rest_steps(window, 1, cached, live)) <= 1000


times = st.floats(1e-6, 1e3)


@given(times, times, st.booleans())
def test_what_is_reckoned_holds_together(idle: float, busy: float, on_gpu: bool) -> None:
    found = Contention(idle, busy, 256, on_gpu)
    assert found.slowdown >= 0
    assert 0 <= found.won_share < 1
    assert found.noticed == (found.slowdown >= NOTICED_AT)
    assert ("--engine cpu" in found.advice) == (found.noticed and on_gpu)
    if busy > idle:
        assert busy * (1 - found.won_share) == pytest.approx(idle)
        assert idle * (1 + found.slowdown) == pytest.approx(busy)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ConfigInvalid):
        Contention(bad, 1.0, 1, True)
    with pytest.raises(ConfigInvalid):
        Contention(1.0, bad, 1, True)


def test_where_the_step_is_what_is_slowed_the_measured_cost_is_what_is_advised() -> None:
    waits = dict.fromkeys(CAUSES, 0.0)
    found = Measured(50, 256, 0.100, 0.130, waits, workers=1, lanes=6, window=4, transport="cuda_ipc")
    assert diagnosis(found).bottleneck == SLOWED
    assert "--engine cpu" not in diagnosis(found).actions[0]
    measured = replace(found, contention=Contention(0.100, 0.128, 256, True))
    told = diagnosis(measured)
    assert "--engine cpu" in told.actions[0]
    assert "28% longer" in str(told)
    little = replace(found, contention=Contention(0.100, 0.101, 256, True))
    assert diagnosis(little).actions == diagnosis(found).actions


@pytest.mark.parametrize(
    ("fingerprint", "engine"),
    [("dali-gpu-1;dali=2.4.0", "dali-gpu"), ("cpu-2;native=1", "cpu"), ("cpu-libs-2;x", "cpu-libs"), ("odd", ""), ("", "")],
)
def test_the_engine_of_a_fingerprint(fingerprint: str, engine: str) -> None:
    assert engine_of(fingerprint) == engine
