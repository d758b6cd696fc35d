"""Tasks end, whatever a library in them does with a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace.telemetry.tasks import end


async def _loses_cancellations(count: int) -> None:
    for _ in range(count):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
    await asyncio.sleep(60)


async def test_a_lost_cancellation_is_sent_again() -> None:
    tasks = [asyncio.create_task(_loses_cancellations(count)) for count in (0, 1, 2)]
    await asyncio.sleep(0)
    await end(*tasks)
    assert all(task.cancelled() for task in tasks)


async def test_what_has_ended_keeps_its_outcome() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await end(task)
    with pytest.raises(ValueError, match="mine"):
        task.result()


async def test_a_cancelled_caller_ends_its_tasks_first() -> None:
    inner = asyncio.create_task(_loses_cancellations(2))
    outer = asyncio.create_task(end(inner))
    await asyncio.sleep(0.01)
    await end(outer)
    assert inner.cancelled()
    assert outer.cancelled()
