"""A worker that is slow or breaks on purpose: `python -m headrace.testing.slow_worker worker ... --slow '{...}'`.

It is the real worker, whose engine, source and credit take longer for chosen batches, so that tests can see where the time is
found again. `--slow` is a `Slow` as JSON; all other arguments are the worker's own.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import GpuLost, HeadraceError
from headrace.worker import app, producer, rank_port
from headrace.worker.budget import ByteBudget
from headrace.worker.engines.protocol import Out, PreparedEngine, RunResult, Sample
from headrace.worker.make_batch import Made, Order, Workshop, make_batch
from headrace.worker.sources.protocol import ReadBatch, Reserve, Source


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds more that some batches take in a stage: those of `ranks` (all where empty) with since <= index < until.

    stage: read, decode, augment, or `slot`: so much later the worker hears that the rank gave a slot back.
    """

    stage: str
    seconds: float
    since: int
    until: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slow:
    """What is slow. node: where this worker says that it runs, with a clock `clock_s` ahead; empty: where it does.

    gpu_lost_after: it has no use of its GPU any more once so many batches were made; 0: never.
    """

    delays: tuple[Delay, ...] = ()
    node: str = ""
    clock_s: float = 0.0
    gpu_lost_after: int = 0

    @staticmethod
    def from_json(text: str) -> Slow:
        """Read what json.dumps(asdict(...)) wrote."""
        data = json.loads(text)
        delays = tuple(Delay(**{**delay, "ranks": tuple(delay["ranks"])}) for delay in data.pop("delays"))
        return Slow(delays, **data)

    def of(self, rank: int, index: int) -> dict[str, float]:
        """Seconds by stage for a batch."""
        found = dict.fromkeys(("read", "decode", "augment", "slot"), 0.0)
        for delay in self.delays:
            if delay.since <= index < delay.until and (not delay.ranks or rank in delay.ranks):
                found[delay.stage] += delay.seconds
        return found


@dataclass(frozen=True, slots=True)
class SlowEngine:
    """Sleeps in the engine's thread and says, as an engine must, what it did so."""

    inner: PreparedEngine
    decode_s: float
    augment_s: float

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine."""
        result = self.inner.run(samples, keys, out)
        time.sleep(self.decode_s + self.augment_s)
        result.decode_s += self.decode_s
        result.augment_s += self.augment_s
        return result

    def close(self) -> None:
        """See PreparedEngine."""
        self.inner.close()


class SlowSource:
    """Reads take longer; others go on meanwhile."""

    def __init__(self, inner: Source, read_s: float) -> None:
        self.samples = inner.samples
        self.manifest_hash = inner.manifest_hash
        self._inner = inner
        self._read_s = read_s

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        """See Source."""
        await asyncio.sleep(self._read_s)
        return await self._inner.read(sample_ids, reserve)

    async def close(self) -> None:
        """See Source."""
        await self._inner.close()


def install(slow: Slow) -> None:
    """Make this process's worker slow."""
    batches = itertools.count(1)

    async def make_slowly(order: Order, shop: Workshop, budget: ByteBudget) -> Made:
        delays = slow.of(order.rank, order.index)
        if any(delays.values()):
            order.work = copy.copy(order.work)
            order.work.engine = SlowEngine(order.work.engine, delays["decode"], delays["augment"])
            order.work.source = SlowSource(order.work.source, delays["read"])
        made = await make_batch(order, shop, budget)
        if 0 < slow.gpu_lost_after < next(batches):
            raise GpuLost("CUDA failed to wait for the GPU: cudaErrorIllegalAddress: this process can use its GPU no more")
        return made

    advance = rank_port.RankPort.advance

    def advance_later(port: Any, next_index: int) -> None:
        delay_s = slow.of(port.rank, next_index)["slot"]
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, advance, port, next_index)
        else:
            advance(port, next_index)

    producer.make_batch = make_slowly  # type: ignore[attr-defined]
    rank_port.RankPort.advance = advance_later  # type: ignore[assignment,method-assign]
    if slow.node:
        clock = time.monotonic
        time.monotonic = lambda: clock() + slow.clock_s
        app.node_id = lambda: slow.node  # type: ignore[attr-defined]


def main(argv: list[str]) -> None:
    """Run the worker; the first argument is its name as a command. Errors are told in a line, as the program does."""
    at = argv.index("--slow")
    install(Slow.from_json(argv[at + 1]))
    try:
        app.main([*argv[1:at], *argv[at + 2 :]])
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
