"""One run: a seed in, what came of it out. The same seed gives the same events, in any process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.testing.simulation.loop import OutOfEvents, OutOfSteps, VirtualLoop
from headrace.testing.simulation.scenario import scenario
from headrace.testing.simulation.seams import seams
from headrace.testing.simulation.trace import Trace, Violation
from headrace.testing.simulation.world import World

# A sound run takes some 10,000.
MOST_STEPS = 200_000
SHOWN = 25


@dataclass(slots=True)
class Result:
    """One run. invariant, text: what was broken, or empty. last: the newest events. recovery_s: from the last fault to the end
    of all work."""

    seed: int
    invariant: str
    text: str
    last: list[str]
    digest: str
    events: int
    steps: int
    simulated_s: float
    recovery_s: float
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)


def run(seed: int, shown: int = SHOWN) -> Result:
    """Run a seed. Never raises for what the run breaks: it is in the result."""
    rng = random.Random(f"run {seed}")  # noqa: S311 - a seed decides all of it
    loop = VirtualLoop(rng, MOST_STEPS)
    trace = Trace(loop.time)
    recovery_s = 0.0
    collecting = gc.isenabled()
    gc.disable()  # nothing may depend on when cycles are found
    try:
        with seams(loop, rng, trace):
            asyncio.set_event_loop(loop)
            loop.set_exception_handler(lambda _, context: _defect(trace, context))
            loop.on_step = lambda: _look(trace)
            world = World(loop, scenario(seed), rng, trace)
            try:
                recovery_s = loop.run_until_complete(world.run())
            except Violation as found:
                trace.violation = trace.violation or found
            except (OutOfEvents, OutOfSteps) as error:
                trace.violation = trace.violation or Violation("every_wait_ends", f"{error}; {world._stuck()}")
            broken = trace.violation
            result = Result(
                seed, broken.name if broken else "", str(broken or ""), trace.last(shown), trace.digest, trace.count,
                loop.steps, loop.time(), recovery_s, trace.faults, trace.checks,
            )  # fmt: skip
            _clear_up(loop, world)
            return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()


def _look(trace: Trace) -> None:
    if trace.violation is not None:
        raise trace.violation


def _defect(trace: Trace, context: dict[str, Any]) -> None:
    """What nobody handled in a task or a callback."""
    error = context.get("exception")
    if error is not None and not isinstance(error, Violation | asyncio.CancelledError):
        trace.note("unhandled", message=context.get("message"), error=repr(error))
        trace.violation = trace.violation or Violation("no_defect", f"{context.get('message')}: {error!r}")


def _clear_up(loop: VirtualLoop, world: World) -> None:
    """End all processes, so that no descriptor or mapping is left."""
    loop.on_step = lambda: None
    loop.set_exception_handler(lambda *_: None)
    loop.steps = 0

    async def end() -> None:
        for host in list(world.hosts):
            host.kill()
        await asyncio.sleep(5.0)

    ending = loop.create_task(end())
    while not ending.done():
        with contextlib.suppress(RuntimeError):  # the run's own end may still be on its way, and stops the loop
            loop.run_until_complete(ending)
