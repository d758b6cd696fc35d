"""Several batches in the engine at once: the bound, the order, and a GPU whose memory is full."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from prometheus_client import generate_latest

from headrace.core.errors import GpuLost, GpuMemoryFull
from headrace.testing import numpy_lane
from headrace.testing.image_kinds import encode, photo
from headrace.testing.numpy_lane import NumpyLanes
from headrace.worker import make_batch
from headrace.worker.engines.protocol import Out, RunResult, Sample, host_memory
from headrace.worker.producer import Limits
from headrace.worker.sources.protocol import ReadBatch, Reserve
from headrace.worker.turns import GROW_AFTER, EngineTurns
from tests.unit.test_producer import BATCH, SAMPLES, Engine, Port, Rig, Source, running, until

PHOTOS = [encode(photo(80 + 7 * i, 60), "JPEG", quality=90) for i in range(7)]


class GpuEngine(Engine):
    """Several batches at once, in memory for `room` of them; a batch that finds none raises. Waits for `meet` to be in."""

    def __init__(self, room: int, meet: int = 1) -> None:
        super().__init__()
        self.room, self.meet, self.lost = room, meet, False
        self.most = self.full = self._inside = 0
        self._changed = threading.Condition()

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.meet, timeout=10)
            inside = self._inside
        try:
            if self.lost:
                raise GpuLost("cudaErrorIllegalAddress")
            if inside > self.room:
                self.full += 1
                raise GpuMemoryFull("no memory on the GPU")
            return super().run(samples, keys, host_memory(out))
        finally:
            with self._changed:
                self._inside -= 1


def counted(rig: Rig) -> float:
    lines = generate_latest(rig.stats.registry).decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("headrace_gpu_memory_full_total ")))


def rig_of(engine: GpuEngine, at_once: int, in_flight: int = 6) -> Rig:
    rig = Rig(Limits(batches_in_flight=in_flight, batches_at_once=at_once))
    rig.engine = engine
    return rig


async def test_as_many_batches_as_the_engine_says_are_in_it_at_once() -> None:
    engine = GpuEngine(room=9, meet=3)
    async with running(rig_of(engine, 3)) as rig:
        port = Port(rig.producer, await rig.session(), window=8)
        rig.producer.opened(port)
        await until(lambda: len(port.metas) == SAMPLES // BATCH)
    assert engine.most == 3
    assert engine.full == counted(rig) == 0


async def test_jobs_share_an_engine_that_makes_several_batches_at_once() -> None:
    engine = GpuEngine(room=9)
    engine.run_s = 0.004
    async with running(rig_of(engine, 2, in_flight=4)) as rig:
        first = Port(rig.producer, await rig.session("train", epochs=0), window=8)
        rig.producer.opened(first)
        await until(lambda: len(first.metas) > 10)
        before = len(first.metas)
        second = Port(rig.producer, await rig.session("eval", epochs=0), window=2)
        rig.producer.opened(second)
        await until(lambda: len(second.metas) >= 20)
        assert 10 <= len(first.metas) - before <= 40
        first.closed = second.closed = True


async def test_no_gpu_memory_shrinks_the_batches_in_flight_and_loses_none() -> None:
    engine = GpuEngine(room=1, meet=3)
    async with running(rig_of(engine, 3)) as rig:
        port = Port(rig.producer, await rig.session(), window=8)
        rig.producer.opened(port)
        await until(lambda: len(port.metas) == SAMPLES // BATCH)
        assert not port.errors
        for index, meta in port.metas.items():
            assert np.array_equal(port.pixels[index][:, 0], meta.sample_ids), "made again into the same slot"
    assert engine.full > 0
    assert counted(rig) == engine.full


async def test_a_batch_that_never_finds_gpu_memory_fails_and_the_worker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_batch, "ALONE_PAUSE_S", 0.001)
    engine = GpuEngine(room=0)
    async with running(rig_of(engine, 2)) as rig:
        port = Port(rig.producer, await rig.session(), window=3)
        rig.producer.opened(port)
        await until(lambda: bool(port.errors))
        told = next(iter(port.errors.values()))
        assert isinstance(told, GpuMemoryFull)
        assert {"job", "batch", "epoch"} <= set(told.ids)
        engine.room = 9
        done = len(port.errors)
        await until(lambda: len(port.metas) + len(port.errors) == SAMPLES // BATCH)
        assert len(port.metas) >= SAMPLES // BATCH - done - 3


async def test_a_lost_gpu_ends_the_worker_and_fails_no_batch() -> None:
    engine = GpuEngine(room=9)
    rig = rig_of(engine, 2)
    task = asyncio.create_task(rig.producer.run())
    port = Port(rig.producer, await rig.session(epochs=0), window=4)
    rig.producer.opened(port)
    await until(lambda: len(port.metas) >= 3)
    engine.lost = True
    with pytest.raises(GpuLost):
        await asyncio.wait_for(task, 10)
    begun = len(port.begun)
    await rig.producer.drain(5)
    assert not port.errors, "another worker makes it"
    assert len(port.begun) == begun, "nothing is begun after that"
    rig.producer.close()


async def test_turns_are_given_in_the_order_of_asking_and_grow_again() -> None:
    turns = EngineTurns(2)
    order: list[int] = []
    release = asyncio.Event()

    async def work(number: int) -> None:
        async with turns.turn():
            order.append(number)
            await release.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    turns.shrink()
    assert turns.limit == 1
    tasks[3].cancel()
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 2, 4]
    assert turns.in_use == 0
    for _ in range(GROW_AFTER):
        assert turns.limit == 1
        turns.went_well()
    assert turns.limit == 2
    turns.went_well()
    assert turns.limit == 2, "never more than the engine says"


async def test_a_turn_that_is_cancelled_when_it_was_just_given_is_given_on() -> None:
    turns = EngineTurns(1)
    got: list[str] = []

    async def work(name: str) -> None:
        async with turns.turn():
            got.append(name)

    async with turns.turn():
        given, next_one = asyncio.create_task(work("given")), asyncio.create_task(work("next"))
        await asyncio.sleep(0)
    given.cancel()  # its future is done, its task has not run
    await asyncio.wait_for(asyncio.gather(given, next_one, return_exceptions=True), 5)
    assert got == ["next"]
    assert turns.in_use == 0


def test_engine_seconds_are_shared_by_the_batches_that_spent_them_together() -> None:
    rig = Rig()
    made = make_batch.Made(100, 10, 1, 0.0, 0.2, 0.2, 0.0, {}, at_once=2)
    rig.stats.made("job", 64, "shm", made)
    rig.producer.close()
    assert rig.stats.samples_per_s == pytest.approx(640)


def test_real_threads_meet_in_the_engine() -> None:
    """That `meet` above can only be passed by threads that are there at once."""
    engine = GpuEngine(room=9, meet=2)
    sample, key, out = [Sample(0, "k", b"1")], [(0, 1)], memoryview(bytearray(12))
    threads = [threading.Thread(target=engine.run, args=(sample, key, out)) for _ in range(2)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert engine.most == 2
    assert time.monotonic() - started < 10


class Photos(Source):
    """A JPEG of its own for each id; every tenth is none."""

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        datas = [b"none" if i % 10 == 3 else PHOTOS[i % len(PHOTOS)] for i in sample_ids]
        samples = [Sample(i, f"key{i}", data) for i, data in zip(sample_ids, datas, strict=True)]
        return ReadBatch(samples, np.array(sample_ids, np.int64), [], 8, 1)


@pytest.mark.parametrize("failing", [0, 3])
async def test_the_gpu_engine_makes_the_same_batches_several_at_once_and_where_memory_fails(failing: int) -> None:
    made = {}
    for at_once in (1, 3):
        lanes = NumpyLanes(failing=failing if at_once == 3 else 0)
        engine = numpy_lane.engine(2, lanes)
        async with running(Rig(Limits(batches_in_flight=5, batches_at_once=at_once))) as rig:
            work = await rig.session()
            work.engine, work.source = engine.prepare(work.session.job.pipeline, work.session.job.seed), Photos()
            port = Port(rig.producer, work, window=6)
            rig.producer.opened(port)
            await until(lambda port=port: len(port.metas) == SAMPLES // BATCH)  # type: ignore[misc]
            assert not port.errors
            assert counted(rig) == (failing if at_once == 3 else 0)
        made[at_once] = {index: (port.pixels[index].tobytes(), port.metas[index].source_ids.tolist()) for index in port.metas}
        engine.close()
    assert made[1] == made[3]
    assert len({pixels for pixels, _ in made[1].values()}) > 1
