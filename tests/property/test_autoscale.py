"""How many workers are wanted: a training is simulated between decisions, and the rules are asked at each.

The rules are told what a fleet tells them: ranks report time and batches, workers their speed. Whoever scales follows the
decision at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.autoscale import HEADROOM, SPARE, Class, JobDemand, Scale, Taken, decide, demand, scale
from headrace.core.job import ANY_FINGERPRINT, Endpoint, JobSpec
from headrace.core.records import WorkerRecord

INTERVAL_S = 30.0
BATCH = 64
SPEC = JobSpec("job", "/data", BATCH, fingerprint="fp", manifest_hash="aa", samples=4000)


def worker(name: str, speed: float, fingerprint: str = "fp", pool: str = "cpu", until_us: int = 10) -> WorkerRecord:
    endpoint = Endpoint(name, f"{name}-1", "n", "g", "")
    return WorkerRecord(endpoint, fingerprint, SPEC.pipeline.op_names, speed, 1, False, until_us, pool=pool)


def fleet(count: int, speed: float, fingerprint: str = "fp", pool: str = "cpu") -> dict[str, WorkerRecord]:
    return {f"{pool}-{fingerprint}-{n}": worker(f"{pool}-{fingerprint}-{n}", speed, fingerprint, pool) for n in range(count)}


@dataclass
class Training:
    """A job under the rules. busy_s: what a step takes besides input. noise: relative error of all that is measured."""

    busy_s: float
    speed: float
    world: int = 4
    lanes: int = 96
    noise: float = 0.0
    rng: np.random.Generator | None = None
    workers: int = 1
    before: dict[Class, Scale] | None = None

    @property
    def need(self) -> float:
        """Workers that it takes, in parts."""
        return self.world * BATCH / self.busy_s / self.speed

    def about(self, value: float) -> float:
        return value * (1 + self.noise * self.rng.uniform(-1, 1)) if self.rng else value

    def takes(self, seconds: float) -> list[Taken]:
        """What the ranks report of a time: rank 0 starves by what lacks, the others wait for it in the step."""
        step_s = max(self.busy_s, self.world * BATCH / (max(self.workers, 1e-9) * self.speed))
        batches = seconds / step_s
        waits = [batches * (step_s - self.busy_s), *[0.0] * (self.world - 1)]
        return [Taken(seconds, wait_s, batches) for wait_s in waits]  # type: ignore[arg-type]  # parts of batches add up

    def decides(self, taken: list[Taken]) -> int:
        told = demand(taken, self.world, BATCH)
        job = JobDemand(SPEC, self.lanes, None if told is None else self.about(told))
        workers = {
            name: replace(w, samples_per_s=self.about(self.speed)) for name, w in fleet(self.workers, self.speed).items()
        }
        self.before = scale(self.before or {}, [job], workers or {"gone": worker("gone", 0.0, until_us=0)}, 0)
        self.workers = self.before["cpu", "fp"].desired
        return self.workers

    def settles(self, decisions: int) -> list[int]:
        return [self.decides(self.takes(INTERVAL_S)) for _ in range(decisions)]

    def good(self, number: int) -> bool:
        """Enough, and no more than the rules let stay."""
        need = min(self.need, self.lanes)
        return min(math.ceil(need - 1e-9), self.lanes) <= number <= max(1, min(math.ceil(need * SPARE), self.lanes))


steps_s = st.floats(0.05, 5.0)
speeds = st.floats(20.0, 2000.0)


def mixed(first: list[Taken], second: list[Taken]) -> list[Taken]:
    return [
        Taken(a.elapsed_s + b.elapsed_s, a.waited_s + b.waited_s, a.batches + b.batches)
        for a, b in zip(first, second, strict=True)
    ]


@given(steps_s, steps_s, speeds, st.integers(1, 16), st.sampled_from([12, 48, 96, 768]), st.floats(0, 1), st.integers(1, 50))
def test_a_step_of_demand_is_answered_in_two_decisions_and_stays(  # noqa: PLR0917 - hypothesis draws them
    busy_s: float, then_s: float, speed: float, world: int, lanes: int, phase: float, workers: int
) -> None:
    """Counted from the first decision whose whole interval lies after the step; the one with the step inside comes before."""
    job = Training(busy_s, speed, world, lanes, workers=workers)
    assert job.good(job.settles(2)[-1])
    assert len(set(job.settles(5))) == 1
    before = job.takes(phase * INTERVAL_S)
    job.busy_s = then_s
    job.decides(mixed(before, job.takes((1 - phase) * INTERVAL_S)))
    at_most_two = job.settles(2)[-1]
    assert job.good(at_most_two)
    assert set(job.settles(8)) == {at_most_two}


@pytest.mark.parametrize(("workers", "need", "right"), [(1, 7.0, 8), (40, 7.0, 8), (8, 7.0, 8), (8, 40.0, 44), (1, 0.3, 1)])
def test_the_right_number(workers: int, need: float, right: int) -> None:
    job = Training(1.0, 4 * BATCH / need, workers=workers)
    assert job.settles(2)[-1] == right


@given(steps_s, speeds, st.floats(0, 0.045), st.integers(0, 2**32))
def test_small_noise_changes_nothing_once_the_number_is_right(busy_s: float, speed: float, noise: float, seed: int) -> None:
    """Speed and demand err by up to 2.25% each, so that the need errs by 4.5%."""
    job = Training(busy_s, speed, noise=noise / 2, rng=np.random.default_rng(seed))
    job.settles(3)
    numbers = job.settles(30)
    if max(numbers) < 40:  # one worker more or less is no flapping where ten percent are more than one
        assert len(set(numbers)) == 1
    changes = sum(a != b for a, b in pairwise(numbers))
    assert changes <= 1


@given(st.floats(0.1, 90), st.floats(0, 0.08), st.integers(0, 2**32))
def test_larger_noise_settles(need: float, noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state, numbers = None, []
    for _ in range(60):
        state = decide(state, need * (1 + noise * rng.uniform(-1, 1)), 1, 96, 5)
        numbers.append(state.desired)
    changes = [n for n, (a, b) in enumerate(pairwise(numbers)) if a != b]
    assert len([n for n in changes if n >= 2]) <= 2, numbers
    assert all(b >= a for a, b in pairwise(numbers[2:])), numbers  # never down again


def test_a_pause_of_the_trainers_takes_no_workers_away() -> None:
    job = Training(1.0, 4 * BATCH / 7.0)
    job.settles(3)
    pause = [Taken(INTERVAL_S, 0.0, 0)] * job.world
    assert job.decides(pause) == 8
    assert job.settles(3) == [8, 8, 8]
    job.decides(pause)
    assert job.decides(pause) == 1, "one that lasts does"


def test_ranks_that_never_get_a_batch_say_nothing_and_change_nothing() -> None:
    job = Training(1.0, 4 * BATCH / 7.0)
    job.settles(3)
    blocked = [Taken(INTERVAL_S, INTERVAL_S, 0)] * job.world
    assert [job.decides(blocked) for _ in range(5)] == [8] * 5


def test_trainers_that_do_nothing_between_batches_get_as_many_as_there_are_lanes() -> None:
    job = Training(1.0, 10.0, lanes=12)
    assert job.decides([Taken(INTERVAL_S, INTERVAL_S - 0.001, 50)] * 4) == 12


@given(st.floats(0.05, 2), st.floats(0, 5), st.integers(2, 64), st.integers(0, 63))
def test_demand_is_that_of_the_rank_whose_step_is_least_inflated(
    busy_s: float, starved_s: float, world: int, worst: int
) -> None:
    """all_reduce: the starving rank's wait is in everybody's step; with it counted, half of the demand would be missed."""
    taken = [Taken(100 * (busy_s + starved_s), 100 * starved_s * (rank == worst % world), 100) for rank in range(world)]
    told = demand(taken, world, BATCH)
    assert told is not None
    assert math.isclose(told, world * BATCH / busy_s, rel_tol=1e-9)


@given(st.floats(0, 1e6), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 2**32))
def test_never_more_than_lanes_nor_less_than_one_while_a_job_trains(
    need: float, most: int, live: int, had: int, seed: int
) -> None:
    least = min(1, most)
    decided = decide(Scale(had, need=need / 2), need, least, most, live)
    assert least <= decided.desired <= most
    assert decide(None, math.inf, least, most, live).desired == most


# --- classes ---------------------------------------------------------------------------------------------------------


def test_classes_are_scaled_by_the_jobs_that_may_use_them_and_the_old_pool_until_they_end() -> None:
    workers = {**fleet(4, 100.0, "old", "blue"), **fleet(1, 100.0, "new", "green")}
    old = JobDemand(replace(SPEC, name="a", fingerprint="old"), 12, 350.0)
    new = JobDemand(replace(SPEC, name="b", fingerprint="new"), 12, 850.0)
    first = scale({}, [old, new], workers, 0)
    assert {name: found.desired for name, found in first.items()} == {("blue", "old"): 4, ("green", "new"): 10}
    assert first["blue", "old"].jobs == ("a",)
    second = scale(first, [new], workers, 0)
    third = scale(second, [new], workers, 0)
    assert third["blue", "old"].desired == 0, "its job has ended"
    assert third["green", "new"].desired == 10


def test_a_pool_in_the_middle_of_an_upgrade_is_two_classes() -> None:
    workers = {**fleet(3, 100.0, "old"), **fleet(3, 100.0, "new")}
    found: dict[Class, Scale] = {}
    for _ in range(2):
        found = scale(found, [JobDemand(replace(SPEC, fingerprint="old"), 12, 500.0)], workers, 0)
    assert found["cpu", "old"].desired == 6
    assert found["cpu", "new"].desired == 0


def test_who_has_no_job_yet_is_not_sent_away_at_the_first_look() -> None:
    assert scale({}, [], fleet(3, 100.0), 0)["cpu", "fp"].desired == 3


def test_a_job_for_any_engine_is_shared_in_proportion_and_never_over_its_lanes() -> None:
    workers = {**fleet(2, 300.0, "gpu", "gpu"), **fleet(4, 50.0, "cpu", "cpu")}
    found = scale({}, [JobDemand(replace(SPEC, fingerprint=ANY_FINGERPRINT), 12, 1600.0)], workers, 0)
    assert found["gpu", "gpu"].desired == 5  # 1200 of the 1600 by 300 each
    assert found["cpu", "cpu"].desired == 3  # 400 by 50 each would be nine: its part of the lanes is three
    assert sum(scaled.most for scaled in found.values()) == 12


@pytest.mark.parametrize("fingerprint", ["", ANY_FINGERPRINT, "fp"])
def test_a_pool_without_workers_comes_back_for_a_job_that_nobody_has_begun_to_serve(fingerprint: str) -> None:
    dead = {"w": worker("w", 100.0, until_us=10), "old": worker("old", 100.0, "before", until_us=5)}
    job = JobDemand(replace(SPEC, fingerprint=fingerprint), 12, None)
    found = scale({}, [job], dead, 1000)
    assert found["cpu", "fp"].desired == 1
    assert found["cpu", "before"].desired == (1 if fingerprint == ANY_FINGERPRINT else 0), "one pool will do"
    assert scale({}, [job], {}, 1000) == {}, "of no pool is anything known"


def test_several_jobs_add_up() -> None:
    jobs = [JobDemand(replace(SPEC, name=f"job-{n}"), 12, 150.0) for n in range(4)]
    found = scale({}, jobs, fleet(1, 100.0), 0)
    assert found["cpu", "fp"].desired == 7  # 6 and a tenth
    assert found["cpu", "fp"].jobs == ("job-0", "job-1", "job-2", "job-3")


def test_a_job_without_bounds_counts_by_its_own_lanes_alone() -> None:
    jobs = [JobDemand(replace(SPEC, name="greedy"), 6, 1e9), JobDemand(replace(SPEC, name="modest"), 96, 150.0)]
    found = scale({}, jobs, fleet(1, 100.0), 0)
    assert found["cpu", "fp"].desired == 9  # 6 + 1.5 and a tenth


def test_a_class_whose_workers_are_all_gone_is_wanted_by_what_was_known_of_it() -> None:
    job = JobDemand(SPEC, 12, 500.0)
    before = scale({}, [job], fleet(6, 100.0), 0)
    dead = {name: replace(record, alive_until_us=0) for name, record in fleet(6, 100.0).items()}
    found = scale(before, [job], dead, 1)
    assert (found["cpu", "fp"].desired, found["cpu", "fp"].live) == (6, 0)


def test_unmeasured_workers_are_left_as_they_are() -> None:
    assert scale({}, [JobDemand(SPEC, 12, 500.0)], fleet(3, 0.0), 0)["cpu", "fp"].desired == 3


def test_headroom_lies_between_need_and_what_is_taken_away() -> None:
    assert 1 < HEADROOM < SPARE
