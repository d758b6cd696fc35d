"""Runs targets in turn on mutated inputs, and keeps what breaks one.

A finding is any exception but a HeadraceError, more lines executed or bytes allocated than the input may cost, or CPU time
without an end. Each input comes from (seed, target, number) alone, so that a run with the printed seed repeats it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

import structlog

from headrace.core.errors import HeadraceError
from headrace.testing.fuzz.measure import Unbounded, measured
from headrace.testing.fuzz.mutate import Mutator, mutate

MEASURE_EVERY = 16  # tracing costs some 20 times the call itself
CPU_LIMIT_S = 20.0
MOST_FINDINGS = 8
_TURN, _TURN_S = 500, 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """Something that parses. seeds: sound inputs. run: raises nothing but HeadraceError.

    special: a mutator that knows the format, used for half of the inputs. repair: mends checksums and lengths, so that what
    lies behind them is reached; used for three of four. The rest: lines executed and bytes allocated
    that an input may cost.
    """

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    special: Mutator | None = None
    repair: Mutator | None = None
    lines: int = 5_000
    lines_a_byte: int = 60
    memory: int = 1 << 20
    memory_a_byte: int = 100

    def case(self, seed: int, number: int) -> bytes:
        """The input of that number; the first ones are the seeds themselves."""
        if number < len(self.seeds):
            return self.seeds[number]
        rng = Random(f"{seed}:{self.name}:{number}")  # noqa: S311 - not a secret
        if self.special is not None and rng.random() < 0.5:
            data = self.special(rng, rng.choice(self.seeds))
        else:
            data = mutate(rng, self.seeds)
        return self.repair(rng, data) if self.repair is not None and rng.random() < 0.75 else data


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that broke a target. trace: the exception's."""

    target: str
    data: bytes
    trace: str

    @property
    def place(self) -> tuple[str, ...]:
        """Where and of what kind: the same for inputs that break the same line."""
        lines = self.trace.strip().splitlines()
        files = [line for line in lines if line.startswith("  File ")]
        return self.target, files[-1] if files else "", lines[-1].partition(":")[0]

    def save(self, folder: Path) -> Path:
        """Write the input as hex and return the file's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{hashlib.blake2b(self.data, digest_size=6).hexdigest()}.hex"
        path.write_text(self.data.hex() + "\n")
        return path


@dataclass(slots=True)
class Tally:
    """What a run came to."""

    executions: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


@contextmanager
def quiet() -> Iterator[None]:
    """Logs nothing meanwhile: hostile input is logged line by line."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def attempt(target: Target, data: bytes, measure: bool) -> Finding | None:
    """Run one input; the finding, or None."""
    try:
        with _cpu_limit():
            if measure:
                most_bytes = target.memory + target.memory_a_byte * len(data)
                measured(target.run, data, target.lines + target.lines_a_byte * len(data), most_bytes)
            else:
                target.run(data)
    except HeadraceError:
        return None
    except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
        return Finding(target.name, data, traceback.format_exc(limit=-6))
    return None


def run(targets: Mapping[str, Target], seed: int, *, seconds: float = 0.0, executions: int = 0) -> Tally:
    """All targets in turn, for so long (each gets the same share), or until each had so many executions.

    A target with MOST_FINDINGS different ones rests.
    """
    tally = Tally(dict.fromkeys(targets, 0))
    end = time.monotonic() + seconds if seconds else math.inf
    active = list(targets.values())
    with quiet():
        while active and time.monotonic() < end:
            for target in active:
                most = executions - tally.executions[target.name] if executions else _TURN
                turn_ends = min(end, time.monotonic() + _TURN_S) if seconds else math.inf
                _take_turn(target, seed, tally, min(most, _TURN), turn_ends)
            active = [target for target in active if not _done(target, tally, executions)]
    return tally


def _done(target: Target, tally: Tally, executions: int) -> bool:
    found = sum(finding.target == target.name for finding in tally.findings)
    return found >= MOST_FINDINGS or (executions > 0 and tally.executions[target.name] >= executions)


def _take_turn(target: Target, seed: int, tally: Tally, most: int, end: float) -> None:
    first = tally.executions[target.name]
    for number in range(first, first + most):
        finding = attempt(target, target.case(seed, number), number % MEASURE_EVERY == 0)
        tally.executions[target.name] += 1
        if finding is not None and finding.place not in {other.place for other in tally.findings}:
            tally.findings.append(finding)
        if time.monotonic() > end:
            return


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise Unbounded after CPU_LIMIT_S of this process's CPU time; where signals cannot be had, there is no limit."""

    def ended(_signum: int, _frame: FrameType | None) -> None:
        raise Unbounded(f"no end after {CPU_LIMIT_S} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
