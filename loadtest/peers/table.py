"""From measurements to medians, ratios and tables. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement. peak_bytes: most memory of all processes. first_s: start to first batch. roles: CPU by process."""

    contestant: str
    work: str
    number: int
    images: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    first_s: float
    roles: dict[str, float]

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds an image, which is also CPU seconds a thousand."""
        return 1e3 * self.cpu_s / self.images


Number = Callable[[Trial], float]
NUMBERS: dict[str, Number] = {
    "rate": lambda trial: trial.rate,
    "cpu": lambda trial: trial.cpu_ms,
    "peak": lambda trial: trial.peak_bytes / 1e6,
    "first": lambda trial: trial.first_s,
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some numbers."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread:
        """Of at least one."""
        numbers = list(values)
        return Spread(statistics.median(numbers), min(numbers), max(numbers))

    def text(self, digits: int) -> str:
        """median (least to most)."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def spread(trials: Sequence[Trial], contestant: str, work: str, number: str) -> Spread | None:
    """Of all rounds of a contestant; None if there is none."""
    values = [NUMBERS[number](trial) for trial in trials if (trial.contestant, trial.work) == (contestant, work)]
    return Spread.of(values) if values else None


def ratio(trials: Sequence[Trial], work: str, number: str, over: str, under: str) -> Spread | None:
    """Of two contestants' numbers, each ratio within one round; None if no round has both."""
    by_round = {(t.contestant, t.number): NUMBERS[number](t) for t in trials if t.work == work}
    rounds = sorted({t.number for t in trials})
    pairs = [(by_round.get((over, n)), by_round.get((under, n))) for n in rounds]
    values = [a / b for a, b in pairs if a is not None and b is not None]
    return Spread.of(values) if values else None


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that is to be reached: `over` to `under` by `number`. aim: what is hoped for beyond."""

    title: str
    number: str
    over: str
    under: str
    least: float
    aim: float = 0.0


TARGETS = (
    Target("images per CPU second, engine alone against DALI", "cpu", "dali", "headrace_engine", 2.0),
    Target("images per second, fleet over shm against tf.data service", "rate", "headrace_shm", "tfdata_service", 1.5, 2.0),
    Target("the same against PyTorch DataLoader with Pillow", "rate", "headrace_shm", "torch_pillow", 2.0, 2.5),
    Target("images per second, gRPC against shm", "rate", "headrace_grpc", "headrace_shm", 0.85),
)  # fmt: skip


def verdict(target: Target, found: Spread | None) -> str:
    """Met, missed, or not measured, by the median."""
    if found is None:
        return "not measured"
    if found.median < target.least:
        return "**missed**"
    if target.aim:
        return f"met, {'and so is the aim' if found.median >= target.aim else 'the aim is not'} ({target.aim:g})"
    return "met"


def markdown(title: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [title, ["---" for _ in title], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def target_rows(trials: Sequence[Trial], work: str) -> list[list[str]]:
    """A row a target, for one work."""
    rows = []
    for target in TARGETS:
        found = ratio(trials, work, target.number, target.over, target.under)
        rows.append([target.title, f">= {target.least:g}", found.text(2) if found else "-", verdict(target, found)])
    return rows
