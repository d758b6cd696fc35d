"""An upgrade that changes the engine's fingerprint: the old pool serves its jobs until they end, the new one the new ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.autoscale import JobDemand, scale
from tests.unit.session_world import SPEC, World


def upgraded(retiring: bool = True) -> World:
    """A job that is bound to `old`, whose two workers a new pool of three quicker ones has joined."""
    world = World()
    for name in "ab":
        world.add(name, fingerprint="old", pool="blue", samples_per_s=100.0)
    world.open()
    world.form()
    world.tick()
    assert set(world.owners()) == {"a", "b"}
    for name in "ab":
        world.add(name, fingerprint="old", pool="blue", samples_per_s=100.0, retiring=retiring)
    for name in "xyz":
        world.add(name, fingerprint="new", pool="green", samples_per_s=500.0)
    return world


def test_a_pool_with_another_fingerprint_gets_no_lanes_of_old_jobs() -> None:
    world = upgraded()
    for _ in range(5):
        world.tick()
        world.wait(0.5)
    assert set(world.owners()) == {"a", "b"}


def test_nor_when_the_old_pool_drains_dies_or_comes_back() -> None:
    world = upgraded()
    world.add("a", fingerprint="old", pool="blue", draining=True)
    world.tick()
    assert set(world.owners()) == {"b"}, "what drains hands its lanes to its own kind"
    for name in "xyz":
        world.add(name, fingerprint="new", pool="green", alive_until_us=world.now_us + 3_600_000_000)
    world.report(0, 1)
    world.wait(4)
    world.report(0, 2)
    world.tick()
    assert set(world.owners()) <= {"b", ""}, "a lane that nobody may make stays where it was"
    world.add("c", fingerprint="old", pool="blue")
    world.tick()
    assert set(world.owners()) == {"c"}


@pytest.mark.parametrize(("retiring", "bound_to"), [(True, "new"), (False, "old")])
def test_new_jobs_are_bound_to_the_new_pool_from_the_first_worker_on_where_the_old_one_retires(
    retiring: bool, bound_to: str
) -> None:
    world = World(replace(SPEC, name="later"))
    for n in range(9):
        world.add(f"old-{n}", fingerprint="old", pool="blue", samples_per_s=100.0, retiring=retiring)
    world.add("new-0", fingerprint="new", pool="green", samples_per_s=500.0)
    world.open()
    world.form()
    world.tick()
    assert world.state.job is not None
    assert world.state.job.spec.fingerprint == bound_to


def test_a_pool_that_retires_serves_new_jobs_where_there_is_no_other() -> None:
    world = World()
    world.add("a", fingerprint="old", retiring=True)
    world.open()
    world.form()
    world.tick()
    assert set(world.owners()) == {"a"}


def test_workers_are_wanted_of_the_pool_that_may_serve_the_job() -> None:
    world = upgraded()
    assert world.state.job is not None
    job = JobDemand(world.state.job.spec, 12, 350.0)
    found = scale({}, [job], world.state.workers, world.now_us)
    assert {name: decided.desired for name, decided in found.items()} == {("blue", "old"): 4, ("green", "new"): 3}
    for _ in range(2):
        found = scale(found, [job], world.state.workers, world.now_us)
    assert {name: decided.desired for name, decided in found.items()} == {("blue", "old"): 4, ("green", "new"): 0}
    for _ in range(2):
        found = scale(found, [], world.state.workers, world.now_us)
    assert found["blue", "old"].desired == 0, "its job has ended"
