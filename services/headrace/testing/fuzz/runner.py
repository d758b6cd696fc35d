"""Runs targets in turn on mutated inputs, and keeps what breaks one.

A finding is any exception but a HeadraceError, more lines executed or bytes allocated than the input may cost, or CPU time
without an end. Each input comes from (seed, target, number) alone, so that a run with the printed seed repeats it.
"""

from __future__ import annotations

import hashlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from headrace.core.errors import HeadraceError
from headrace.testing.fuzz.measure import Unbounded, measured
from headrace.testing.fuzz.mutate import Mutator, mutate

MEASURE_EVERY = 16  # tracing costs some 20 times the call itself
CPU_LIMIT_S = 20.0
_TURN = 200


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


def run(
    targets: Mapping[str, Target], seed: int, *, seconds: float = 0.0, executions: int = 0, most_findings: int = 5
) -> Tally:
    """All targets in turn, for so long or until each had so many executions. A target with findings enough rests."""
    tally = Tally(dict.fromkeys(targets, 0))
    found = dict.fromkeys(targets, 0)
    until = time.monotonic() + seconds
    while True:
        active = [t for t in targets.values() if found[t.name] < most_findings]
        if executions:
            active = [t for t in active if tally.executions[t.name] < executions]
        if not active or (seconds and time.monotonic() >= until):
            return tally
        for target in active:
            first = tally.executions[target.name]
            turn = min(_TURN, executions - first) if executions else _TURN
            for number in range(first, first + turn):
                finding = attempt(target, target.case(seed, number), number % MEASURE_EVERY == 0)
                tally.executions[target.name] += 1
                if finding is not None and finding.trace not in {other.trace for other in tally.findings}:
                    tally.findings.append(finding)
                    found[target.name] += 1
                if seconds and time.monotonic() >= until:
                    break


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
