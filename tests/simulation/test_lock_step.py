"""A stalled rank never holds up another: two ranks in lock step, few slots, a worker killed, many seeds, no hang."""

from __future__ import annotations

import random

import pytest

from tests.simulation.data_plane import Plane

STEPS = 24
SEEDS = 60


def run(plane: Plane, chance: random.Random, *, stalled: set[int], barrier: bool) -> None:
    """Random schedule until all ranks that go on have done STEPS. A killed worker's lanes are leased anew some time later."""
    names = list(plane.workers)
    for lane in range(plane.lanes):
        plane.lease(lane, names[lane % len(names)])
    kill_at, orphan_for = chance.randrange(STEPS * 8), 0
    victim = chance.choice(names)
    going = [number for number in range(plane.world) if number not in stalled]
    for turn in range(STEPS * 400):
        alive = [name for name, worker in plane.workers.items() if worker.alive]
        if turn == kill_at:
            plane.kill(victim, deliver=chance.randrange(4))
            orphan_for = chance.randrange(1, 60)
        elif not plane.workers[victim].alive and turn == kill_at + orphan_for:
            for lane in range(plane.lanes):
                if plane.owners[lane] == victim:
                    plane.lease(lane, chance.choice(alive))
        act(plane, chance, alive, going, barrier)
        if all(len(plane.ranks[number].consumed) >= STEPS for number in going):
            return
    pytest.fail(f"hang: consumed {[len(rank.consumed) for rank in plane.ranks]} of {STEPS}")


def act(plane: Plane, chance: random.Random, alive: list[str], going: list[int], barrier: bool) -> None:
    """One random thing happens."""
    number = chance.randrange(plane.world)
    rank = plane.ranks[number]
    match chance.randrange(8):
        case 0 | 1:
            plane.begin(chance.choice(alive))
        case 2 | 3:
            plane.finish(chance.choice(alive))
        case 4 | 5 if rank.links:
            plane.deliver(chance.choice(list(rank.links.values())))
        case 6:
            slowest = min(len(plane.ranks[other].consumed) for other in going)
            if number in going and (not barrier or len(rank.consumed) == slowest):
                plane.consume(number)
        case 7:
            plane.tell_worker(chance.choice(alive))
            plane.tell_rank(number)


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_two_ranks_with_a_barrier_each_step_never_hang(window: int, workers: int, seed: int) -> None:
    for round_ in range(SEEDS):
        chance = random.Random(f"{seed}:{round_}")
        plane = Plane(world=2, lanes=chance.choice([2, 3, 6, 12]), window=window, workers=workers)
        run(plane, chance, stalled=set(), barrier=True)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_rank_that_takes_nothing_does_not_hold_up_another(window: int, seed: int) -> None:
    for round_ in range(SEEDS):
        chance = random.Random(f"{seed}:{round_}")
        plane = Plane(world=2, lanes=chance.choice([2, 3, 6, 12]), window=window, workers=3)
        run(plane, chance, stalled={chance.randrange(2)}, barrier=False)
        assert all(len(rank.arrivals.have()) <= window for rank in plane.ranks), "a stalled rank holds its slots and no more"
