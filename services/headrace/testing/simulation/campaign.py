"""Many seeds, over several processes: each is a plain child that runs its share and tells its results as lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from queue import Empty, SimpleQueue
from typing import Any

from headrace.testing.simulation.run import Result, run

# A seed takes a tenth of a second; one that takes so much longer hangs in a way that its own bound of steps does not see.
SILENT_S = 300.0


@dataclass
class Totals:
    """Of all runs so far. slowest: longest recovery and its seed."""

    runs: int = 0
    steps: int = 0
    most_steps: int = 0
    events: int = 0
    simulated_s: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one run."""
        self.runs += 1
        self.steps += result.steps
        self.most_steps = max(self.most_steps, result.steps)
        self.events += result.events
        self.simulated_s += result.simulated_s
        self.slowest = max(self.slowest, (result.recovery_s, result.seed))
        self.faults.update(result.faults)
        self.checks.update(result.checks)
        if result.invariant:
            self.failed.append(result)


def tell(first: int, count: int, every: int) -> None:
    """A child's work: seeds first, first + every, ...; one line each."""
    for seed in range(first, first + count, every):
        print(json.dumps(_plain(run(seed))), flush=True)


def _plain(result: Result) -> dict[str, Any]:
    return {each.name: getattr(result, each.name) for each in fields(result)}


def campaign(first: int, count: int, jobs: int, keep_going: bool, seen: Callable[[Totals], None]) -> Totals:
    """Run seeds first to first + count - 1; ends at the first that fails unless told to keep going."""
    totals = Totals()
    if jobs == 1 or count == 1:
        for seed in range(first, first + count):
            totals.add(run(seed))
            seen(totals)
            if totals.failed and not keep_going:
                break
        return totals
    lines: SimpleQueue[str | None] = SimpleQueue()
    children = [_child(first + number, count - number, jobs) for number in range(min(jobs, count))]
    readers = [threading.Thread(target=_read, args=(child, lines), daemon=True) for child in children]
    for reader in readers:
        reader.start()
    try:
        left = len(children)
        while left and (keep_going or not totals.failed):
            line = lines.get(timeout=SILENT_S)
            if line is None:
                left -= 1
                continue
            data = json.loads(line)
            totals.add(Result(**{**data, "faults": Counter(data["faults"]), "checks": Counter(data["checks"])}))
            seen(totals)
    except KeyboardInterrupt:
        return totals  # what was done so far counts
    except Empty:
        raise TimeoutError(f"no seed ended within {SILENT_S:.0f} s; {totals.runs} of {count} are done") from None
    finally:
        for child in children:
            child.kill()
            child.wait()
    if totals.runs < count and not totals.failed:
        raise RuntimeError(f"a process of the simulation died: {totals.runs} of {count} seeds are done; its error is above")
    return totals


def _child(first: int, count: int, every: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace.testing.simulation", "--tell", str(first), str(count), str(every)]
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def _read(child: subprocess.Popen[str], lines: SimpleQueue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)
