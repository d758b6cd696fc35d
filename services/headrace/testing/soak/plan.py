"""What happens in each round of a soak, by seed and number alone: which jobs come and go, and which faults. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# `lasting` members are paused, never ended: what they leak adds up over the whole run.
FAULTS: Final = (
    "worker killed",
    "worker drained",
    "worker paused",
    "lasting worker paused",
    "coordinator killed",
    "coordinator drained",
    "lasting coordinator paused",
    "fetcher killed",
    "store restarted",
)
FAULTS_A_ROUND: Final = 3
TRANSPORTS: Final = ("shm", "grpc", "auto")
MAX_WORLD: Final = 3


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job's ranks. kill_after: batches, over all ranks, after which all get SIGKILL; 0: they run to the end."""

    transports: tuple[str, ...]
    kill_after: int = 0


@dataclass(frozen=True, slots=True)
class Visit:
    """A job that comes, is trained for `epochs` over one or more attempts, and goes."""

    job: str
    epochs: int
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """after_s: since the one before ended, or the round began. hold_s: how long the target is away or paused."""

    kind: str
    after_s: float
    hold_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """Visits one after another, and faults beside them."""

    visits: tuple[Visit, ...]
    faults: tuple[Fault, ...]


def plan_round(seed: int, number: int) -> Round:
    """Round `number` (from 0). Kinds of fault are dealt like cards, so that each comes before one comes again."""
    rng = random.Random(f"{seed}:round:{number}")  # noqa: S311 - a schedule, not a secret
    faults = tuple(
        Fault(_dealt(seed, number * FAULTS_A_ROUND + i), round(rng.uniform(0.5, 2.0), 2), round(rng.uniform(0.5, 4.5), 2))
        for i in range(FAULTS_A_ROUND)
    )
    return Round((_visit(rng, f"visit-{number:04d}"),), faults)


def _visit(rng: random.Random, job: str) -> Visit:
    last = Attempt(_transports(rng))
    killed = [Attempt(_transports(rng), kill_after=rng.randint(4, 16)) for _ in range(rng.choice((0, 1, 1)))]
    return Visit(job, rng.randint(1, 2), (*killed, last))


def _transports(rng: random.Random) -> tuple[str, ...]:
    return tuple(rng.choice(TRANSPORTS) for _ in range(rng.randint(1, MAX_WORLD)))


def _dealt(seed: int, number: int) -> str:
    deck, place = divmod(number, len(FAULTS))
    cards = list(FAULTS)
    random.Random(f"{seed}:deck:{deck}").shuffle(cards)  # noqa: S311
    return cards[place]
