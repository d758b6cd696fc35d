"""What the worker says of its time: milestones that blame the right stage, and a speed that counts all of it."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from headrace.core.starvation import split_wait
from headrace.worker.make_batch import Made
from headrace.worker.producer import Limits
from headrace.worker.stats import WorkerStats
from tests.unit.test_producer import Port, Rig, running, until


def made(read_s: float, busy_s: float) -> Made:
    return Made(100, 10, 1, read_s, busy_s, busy_s, 0.0, {})


@pytest.mark.parametrize(
    ("read_s", "busy_s", "per_batch_s"),
    [(0.0, 0.1, 0.1), (0.1, 0.1, 0.1), (0.2, 0.1, 0.1), (0.5, 0.1, 0.2), (3.0, 0.0, 1.0)],
)
def test_a_worker_is_as_fast_as_its_engine_or_where_these_are_slower_its_reads(
    read_s: float, busy_s: float, per_batch_s: float
) -> None:
    """Three batches at a time: one in the engine, two being read."""
    stats = WorkerStats(CollectorRegistry(), batches_in_flight=3)
    stats.made("job", 64, "shm", made(read_s, busy_s))
    assert stats.samples_per_s == pytest.approx(64 / per_batch_s)


def test_a_few_slow_reads_move_no_lanes_and_lasting_ones_count() -> None:
    stats = WorkerStats(CollectorRegistry(), batches_in_flight=3)
    for _ in range(50):
        stats.made("job", 64, "shm", made(0.05, 0.1))
    for _ in range(3):
        stats.made("job", 64, "shm", made(20.0, 0.1))
    assert stats.samples_per_s == pytest.approx(640)
    for _ in range(300):
        stats.made("job", 64, "shm", made(2.9, 0.1))
    assert stats.samples_per_s == pytest.approx(64, rel=0.3)


async def test_until_a_rank_is_connected_its_lane_is_of_no_use_to_it() -> None:
    async with running(Rig()) as rig:
        work = await rig.session()
        await asyncio.sleep(0.05)
        connected_s = time.monotonic()
        port = Port(rig.producer, work)
        rig.producer.opened(port)
        await until(lambda: 0 in port.metas)
        parts = split_wait(connected_s - 0.05, time.monotonic(), port.metas[0].milestones)
        assert parts["lane_wait"] == pytest.approx(0.05, abs=0.04)
        assert parts["slot_wait"] < 0.04


async def test_waiting_for_room_is_the_engines_being_behind_and_no_slow_read() -> None:
    """Room for two batches' bytes, five in flight: three wait for room while the engine works."""
    async with running(Rig(Limits(batches_in_flight=5, read_ahead_bytes=16))) as rig:
        rig.engine.run_s = 0.03
        port = Port(rig.producer, await rig.session(), window=6)
        rig.producer.opened(port)
        await until(lambda: len(port.metas) >= 6)
        for index in range(3, 6):
            line = port.metas[index].milestones
            waited = split_wait(line["leased"], line["published"], line)
            assert waited["worker_busy"] > 2 * waited["read"], waited
            assert list(line.values()) == sorted(line.values())
