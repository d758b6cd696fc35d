"""Manifests are read once for all, and a slow store is told before the caller's call is over."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from headrace.coordinator import manifests as manifests_module
from headrace.coordinator.manifests import Manifests
from headrace.core.errors import ManifestMissing, SourceUnavailable


class Reads:
    """Counts reads, each of which ends when it is let go."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.count = 0
        self.go = asyncio.Event()

    async def __call__(self, address: str) -> Any:
        self.count += 1
        await self.go.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_a_slow_read_is_told_and_the_next_try_waits_for_the_same() -> None:
    read = Reads("facts")
    manifests = Manifests(read, keep_s=10.0, patience_s=0.01)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="check that the coordinator reaches s3://") as caught:
            await manifests.get("s3://key:secret@bucket/train")
        assert "secret" not in str(caught.value)
    read.go.set()
    assert await manifests.get("s3://key:secret@bucket/train") == "facts"
    assert read.count == 1


async def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    read = Reads(ManifestMissing("none there"))
    manifests = Manifests(read, keep_s=10.0, patience_s=5.0)
    waiting = [asyncio.ensure_future(manifests.get("/data")) for _ in range(3)]
    await asyncio.sleep(0)
    read.go.set()
    assert all(isinstance(got, ManifestMissing) for got in await asyncio.gather(*waiting, return_exceptions=True))
    read.outcome = "facts"
    assert await manifests.get("/data") == "facts"
    assert read.count == 2


async def test_a_caller_that_goes_away_leaves_the_read_and_no_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    read = Reads(SourceUnavailable("away"))
    manifests = Manifests(read, keep_s=0.0, patience_s=5.0)
    caller = asyncio.ensure_future(manifests.get("s3://bucket/train"))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    read.go.set()
    await asyncio.sleep(0.01)
    manifests._reads.clear()
    gc.collect()
    assert complaints == []


async def test_a_new_job_gets_the_data_set_as_it_was_indexed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other ranks, a moment later, share the read; those of a job that is known have no need of another."""
    reads, now_s = 0, 100.0

    async def read(address: str) -> Any:
        nonlocal reads
        reads += 1
        return f"indexed {reads} times"

    monkeypatch.setattr(manifests_module.time, "monotonic", lambda: now_s)
    manifests = Manifests(read, keep_s=10.0)
    assert await manifests.get("/data", new=True) == "indexed 1 times"
    assert [await manifests.get("/data", new=True) for _ in range(3)] == ["indexed 1 times"] * 3
    now_s += 2
    assert await manifests.get("/data") == "indexed 1 times"
    assert await manifests.get("/data", new=True) == "indexed 2 times"
    assert await manifests.get("/data") == "indexed 2 times"


async def test_a_slow_read_for_a_new_job_serves_those_who_wait_for_it_by_trying_again() -> None:
    reads, ended = 0, asyncio.Event()

    async def read(address: str) -> Any:
        nonlocal reads
        reads += 1
        await ended.wait()
        return "facts"

    manifests = Manifests(read, keep_s=10.0, patience_s=0.01)
    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            await manifests.get("/data", new=True)
    await asyncio.sleep(1.2)
    ended.set()
    await asyncio.sleep(0.01)
    assert [await manifests.get("/data", new=True) for _ in range(2)] == ["facts"] * 2
    assert reads == 1
