"""Engines and sources of jobs: opened once, shared, and kept over a restart of the trainers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from headrace.core.errors import ManifestMissing
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import PipelineSpec
from headrace.worker.tools import Toolbox, tools_key


class Thing:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class AsyncThing(Thing):
    async def close(self) -> None:  # type: ignore[override]
        self.closed += 1


class Shop:
    """Counts what is made; stands in for an engine and for the opening of sources."""

    def __init__(self) -> None:
        self.engines: list[Thing] = []
        self.sources: list[AsyncThing] = []
        self.opened: list[str] = []
        self.error: Exception | None = None

    def prepare(self, spec: PipelineSpec, seed: int) -> Thing:
        self.engines.append(Thing())
        return self.engines[-1]

    async def open_source(self, address: str, manifest_hash: str) -> AsyncThing:
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        self.sources.append(AsyncThing())
        self.opened.append(address)
        return self.sources[-1]


def job(name: str = "a", seed: int = 0) -> JobSpec:
    return JobSpec(name, "data", 4, seed=seed, samples=10)


def toolbox(shop: Shop, linger_s: float) -> Toolbox:
    return Toolbox(shop, shop.open_source, linger_s)  # type: ignore[arg-type]


async def test_many_that_ask_at_once_share_one() -> None:
    shop = Shop()
    tools = toolbox(shop, 60)
    found = await asyncio.gather(*(tools.get(job()) for _ in range(5)))
    assert len(shop.engines) == len(shop.sources) == 1
    assert all(one is found[0] for one in found)
    await tools.close()
    assert (shop.engines[0].closed, shop.sources[0].closed) == (1, 1)


async def test_equal_data_sets_in_two_places_are_read_where_each_job_says() -> None:
    shop = Shop()
    tools = toolbox(shop, 60)
    here, there = replace(job("a"), dataset="here"), replace(job("b"), dataset="there")
    assert here.plan_hash == there.plan_hash
    assert (await tools.get(here)).source is not (await tools.get(there)).source
    assert shop.opened == ["here", "there"]
    await tools.close()


async def test_only_what_was_long_unused_is_freed() -> None:
    shop = Shop()
    tools = toolbox(shop, 2.0)
    await tools.get(job(seed=1))
    await tools.get(job(seed=2))
    await tools.free_unused(set())
    assert [source.closed for source in shop.sources] == [0, 0]
    await asyncio.sleep(2.1)
    await tools.free_unused({tools_key(job(seed=2))})
    assert [source.closed for source in shop.sources] == [1, 0]
    await tools.get(job(seed=1))
    assert len(shop.sources) == 3
    await tools.close()


async def test_a_failed_opening_leaks_no_engine_and_can_be_tried_again() -> None:
    shop = Shop()
    shop.error = ManifestMissing("not there")
    tools = toolbox(shop, 60)
    with pytest.raises(ManifestMissing):
        await tools.get(job())
    assert shop.engines[0].closed == 1
    shop.error = None
    await tools.get(job())
    await tools.close()
