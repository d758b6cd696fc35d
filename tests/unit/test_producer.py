"""The worker's scheduler: order, credit, fairness, leases lost on the way, bad samples, errors, draining.

Ports, source and engine are small stand-ins here, since the scheduler is what is tested; the real ones meet it in
tests/integration.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from headrace.core.batch import OK, REASON_CODE, SUBSTITUTED, BatchMeta
from headrace.core.credit import CreditWindow
from headrace.core.epoch_plan import lane_count
from headrace.core.errors import BatchFailed, HeadraceError, SessionSuperseded, SessionUnknown, SourceUnavailable, WorldMismatch
from headrace.core.job import JobSpec, Session, Shuffle
from headrace.core.pipeline_spec import PipelineSpec, Resize
from headrace.telemetry.metrics import STAGES
from headrace.wire import batch_meta, slot_format
from headrace.worker import producer
from headrace.worker.budget import ByteBudget
from headrace.worker.engines.protocol import RunResult, Sample
from headrace.worker.ports import SlotStates
from headrace.worker.producer import Limits, Producer
from headrace.worker.sources.protocol import ReadBatch, Reserve
from headrace.worker.stats import WorkerStats
from headrace.worker.work import Sessions, SessionWork

BATCH = 4
SAMPLES = 96


class Source:
    """Hands out each id's number as its bytes; ids in `bad` have none; ids in `gone` can't be read."""

    samples = SAMPLES
    manifest_hash = "m"

    def __init__(self) -> None:
        self.bad: set[int] = set()
        self.gone: set[int] = set()
        self.reserved_bytes = self.held_bytes = self.most_reserved_bytes = 0

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        if reserve is not None:
            await reserve(8)
            self.reserved_bytes += 8
            self.held_bytes += 8
            self.most_reserved_bytes = max(self.most_reserved_bytes, self.held_bytes)
        await asyncio.sleep(0)
        self.held_bytes -= 8
        if self.gone & set(sample_ids):
            raise SourceUnavailable("the store is away", shard="s0")
        samples = [
            Sample(i, f"key{i}", None if i in self.bad else str(i).encode(), "corrupt" if i in self.bad else "none")
            for i in sample_ids
        ]
        return ReadBatch(samples, np.array(sample_ids, np.int64) * 10, [], 8, 1)

    async def close(self) -> None:
        return None


class HangingSource(Source):
    """Reads never end, as on a mount whose server is gone."""

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        await asyncio.Event().wait()
        raise AssertionError


class Engine:
    """Writes a row's id and its key's id, so that a test sees whose pixels and whose parameters a row has."""

    def __init__(self) -> None:
        self.run_s = 0.0
        self.order: list[tuple[int, ...]] = []

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: memoryview) -> RunResult:
        time.sleep(self.run_s)
        rows = np.frombuffer(out, np.uint8).reshape(len(samples), -1)
        reasons = np.zeros(len(samples), np.uint8)
        for row, (sample, (_, planned)) in enumerate(zip(samples, keys, strict=True)):
            if sample.data is None:
                reasons[row] = REASON_CODE[sample.reason]
            else:
                rows[row, 0], rows[row, 1] = int(bytes(sample.data)), planned
        if len(samples) > 1:
            self.order.append(tuple(sample.sample_id for sample in samples))
        return RunResult(reasons, 0.5, 0.5)

    def close(self) -> None:
        return None


class Port:
    """A rank that releases at once what it is given when `eager`."""

    transport = "shm"
    slab_bytes = 4096

    def __init__(self, producer: Producer, work: SessionWork, rank: int = 0, window: int = 3, eager: bool = True) -> None:
        self.job, self.attempt = work.session.key
        self.rank, self.window, self.eager = rank, window, eager
        self._producer = producer
        self._work = work
        self._slots = [bytearray(work.slot_bytes) for _ in range(window)]
        self._credit = CreditWindow(0, window, set())
        self.closed = False
        self.begun: list[int] = []
        self.granted: list[int] = []
        self.abandoned: list[int] = []
        self.metas: dict[int, BatchMeta] = {}
        self.pixels: dict[int, np.ndarray] = {}
        self.errors: dict[int, HeadraceError] = {}

    def grant(self, window: int) -> None:
        self.granted.append(window)

    def close(self, reason: str) -> None:
        self.closed = True
        self._producer.closed(self)

    @property
    def next_index(self) -> int:
        return self._credit.next

    def wants(self, index: int) -> bool:
        return self._credit.wants(index)

    def device_place(self, index: int) -> None:
        return None

    def slot_states(self) -> SlotStates:
        return SlotStates(1, 2, 4)

    def acquire(self, index: int) -> memoryview | None:
        return memoryview(self._slots[index % self.window])

    def started(self, index: int, token: int) -> None:
        assert self.next_index <= index < self.next_index + self.window
        self.begun.append(index)

    def publish(self, index: int, token: int, total_bytes: int) -> None:
        slot = memoryview(self._slots[index % self.window])
        header = slot_format.read_header(slot)
        assert (header.index, header.token, header.total_bytes) == (index, token, total_bytes)
        self.metas[index] = batch_meta.decode_meta(bytes(slot[header.meta_offset : header.total_bytes]))
        self.pixels[index] = np.frombuffer(slot_format.pixels(slot, header.pixel_bytes), np.uint8).reshape(BATCH, -1).copy()
        self._credit.mark_made(index)
        self._release()

    def abandon(self, index: int) -> None:
        self.abandoned.append(index)

    def fail(self, index: int, error: HeadraceError) -> None:
        self.errors[index] = error
        self._credit.mark_made(index)
        self._release()

    def _release(self) -> None:
        done = {*self.metas, *self.errors}
        while self.eager and self._credit.next in done:
            self._credit.advance(self._credit.next + 1)
        asyncio.get_running_loop().call_soon(self._producer.advanced, self)


class Rig:
    def __init__(self, limits: Limits | None = None) -> None:
        self.sessions = Sessions()
        self.stats = WorkerStats(CollectorRegistry())
        self.producer = Producer("w0", "fp", self.sessions, self.stats, limits or Limits())
        self.engine = Engine()
        self.source = Source()

    async def session(self, name: str = "train", world: int = 1, epochs: int = 1, policy: str = "substitute") -> SessionWork:
        pipeline = PipelineSpec(ops=(Resize((2, 2)),), on_bad_sample=policy)  # type: ignore[arg-type]
        job = JobSpec(
            name,
            "d",
            BATCH,
            pipeline,
            seed=3,
            shuffle=Shuffle(run=2, window=8),
            samples=SAMPLES,
            max_key_bytes=10,
            manifest_hash="m",
        )
        lanes = lane_count(SAMPLES, BATCH)
        work = SessionWork(Session(job, 1, world, 0, 0, epochs, 3, lanes), self.engine, self.source)
        work.set_leases({lane: 100 + lane for lane in range(lanes)})
        await self.sessions.put(work)
        return work


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    task = asyncio.create_task(rig.producer.run())
    yield rig
    await rig.producer.drain(5)
    rig.producer.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition, deadline_s: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_makes_the_whole_epoch_in_order_and_stops(rig: Rig) -> None:
    port = Port(rig.producer, await rig.session())
    rig.producer.opened(port)
    await until(lambda: len(port.metas) == SAMPLES // BATCH)
    assert port.begun == sorted(port.begun)
    ids = np.concatenate([port.metas[i].sample_ids for i in range(SAMPLES // BATCH)])
    assert sorted(ids) == list(range(SAMPLES))
    await asyncio.sleep(0.02)
    assert len(port.begun) == SAMPLES // BATCH  # nothing past the last epoch
    meta = port.metas[0]
    assert meta.labels is not None
    assert meta.labels.tolist() == (meta.sample_ids * 10).tolist()
    assert meta.keys == [f"key{i}" for i in meta.sample_ids]
    times = list(meta.milestones.values())
    assert times == sorted(times)
    assert len(times) == 8


async def test_what_is_seen_of_it_from_outside(rig: Rig) -> None:
    work = await rig.session(world=2)
    ports = [Port(rig.producer, work, rank=rank) for rank in range(2)]
    for port in ports:
        rig.producer.opened(port)
    batches = SAMPLES // BATCH // 2
    await until(lambda: all(len(port.metas) == batches for port in ports))
    seen = rig.stats.registry.get_sample_value
    for stage in STAGES:
        assert seen("headrace_stage_seconds_count", {"stage": stage}) == 2 * batches
    assert 0 < (seen("headrace_stage_seconds_sum", {"stage": "publish"}) or 0) < 60
    slots = {
        state: seen("headrace_slots", {"job": "train", "transport": "shm", "state": state}) for state in SlotStates._fields
    }
    assert slots == {"making": 2, "ready": 4, "free": 8}
    await until(lambda: sum(rig.producer._begun().values()) == 0)
    assert [seen("headrace_batches_in_flight", {"state": state}) for state in ("reading", "engine")] == [0, 0]
    rig.producer.closed(ports[0])
    assert seen("headrace_slots", {"job": "train", "transport": "shm", "state": "free"}) == 4


async def test_a_rank_that_releases_nothing_holds_the_worker_at_its_window_and_no_other_rank(rig: Rig) -> None:
    work = await rig.session(world=2)
    stalled, running = Port(rig.producer, work, rank=0, eager=False), Port(rig.producer, work, rank=1)
    rig.producer.opened(stalled)
    rig.producer.opened(running)
    await until(lambda: len(running.metas) == SAMPLES // BATCH // 2)
    assert sorted(stalled.begun) == [0, 1, 2]


async def test_only_leased_lanes_are_made_and_new_leases_wake_it(rig: Rig) -> None:
    work = await rig.session()
    lanes = dict(work.leases)
    work.set_leases({})
    port = Port(rig.producer, work)
    rig.producer.opened(port)
    await asyncio.sleep(0.02)
    assert port.begun == []
    work.set_leases({lane: lease.token for lane, lease in lanes.items()})
    rig.producer.leases_changed()
    await until(lambda: len(port.metas) == SAMPLES // BATCH)


async def test_a_batch_whose_lease_moved_meanwhile_is_not_handed_over(rig: Rig) -> None:
    work = await rig.session()
    rig.engine.run_s = 0.05
    port = Port(rig.producer, work)
    rig.producer.opened(port)
    await until(lambda: bool(rig.engine.order) or bool(port.begun))
    work.set_leases({lane: lease.token + 1000 for lane, lease in work.leases.items()})
    rig.engine.run_s = 0.0
    rig.producer.leases_changed()
    await until(lambda: len(port.metas) == SAMPLES // BATCH)
    assert port.abandoned
    assert rig.stats.registry.get_sample_value("headrace_batches_outrun_total", {"job": "train"}) == len(port.abandoned)
    assert all(meta.token >= 1100 for meta in port.metas.values())


async def test_two_jobs_share_the_engine_whatever_their_order(rig: Rig) -> None:
    rig.engine.run_s = 0.004
    first = Port(rig.producer, await rig.session("train", epochs=0), window=6)
    rig.producer.opened(first)
    await until(lambda: len(first.metas) > 10)
    before = len(first.metas)
    second = Port(rig.producer, await rig.session("eval", epochs=0), window=2)
    rig.producer.opened(second)
    await until(lambda: len(second.metas) >= 20)
    # Equal engine time: neither gets much more than the other, though one came late and has a smaller window.
    assert 10 <= len(first.metas) - before <= 40
    first.closed = second.closed = True


async def test_bad_samples_are_substituted_by_good_ones_under_the_planned_parameters(rig: Rig) -> None:
    rig.source.bad = {5, 17, 40, 41, 42}
    port = Port(rig.producer, await rig.session())
    rig.producer.opened(port)
    await until(lambda: len(port.metas) == SAMPLES // BATCH)
    substituted = 0
    for index, meta in port.metas.items():
        for row in range(BATCH):
            planned, source = int(meta.sample_ids[row]), int(meta.source_ids[row])
            assert port.pixels[index][row, 0] == source
            assert port.pixels[index][row, 1] == planned
            assert meta.keys[row] == f"key{source}"
            if planned in rig.source.bad:
                substituted += 1
                assert source in meta.sample_ids
                assert source not in rig.source.bad
                assert (meta.status[row], meta.reasons[row]) == (SUBSTITUTED, REASON_CODE["corrupt"])
                assert f"key{planned}" in meta.bad_keys
            else:
                assert (source, meta.status[row], meta.reasons[row]) == (planned, OK, 0)
    assert substituted == len(rig.source.bad)


async def test_substitutes_do_not_depend_on_when_or_by_whom_the_batch_is_made() -> None:
    chosen = []
    for _ in range(2):
        rig = Rig()
        rig.source.bad = {5, 17, 40, 41, 42}
        task = asyncio.create_task(rig.producer.run())
        port = Port(rig.producer, await rig.session(), window=1 + len(chosen) * 4)
        rig.producer.opened(port)
        await until(lambda port=port: len(port.metas) == SAMPLES // BATCH)  # type: ignore[misc]
        chosen.append({index: meta.source_ids.tolist() for index, meta in port.metas.items()})
        await rig.producer.drain(5)
        rig.producer.close()
        await task
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("policy", ["substitute", "fail"])
async def test_a_batch_that_cannot_be_made_is_told_with_its_sample(rig: Rig, policy: str) -> None:
    work = await rig.session(policy=policy)
    planned = work.batch_samples(work.plan.locate(0, 1)).sample_ids.tolist()  # type: ignore[arg-type]
    rig.source.bad = set(planned) if policy == "substitute" else {planned[2]}
    port = Port(rig.producer, work)
    rig.producer.opened(port)
    await until(lambda: len(port.metas) + len(port.errors) == SAMPLES // BATCH)
    assert list(port.errors) == [1]
    error = port.errors[1]
    assert isinstance(error, BatchFailed)
    assert error.ids["sample"] in rig.source.bad
    assert error.ids["job"] == "train"


async def test_a_failed_read_is_never_substituted(rig: Rig) -> None:
    rig.source.gone = {7}
    port = Port(rig.producer, await rig.session())
    rig.producer.opened(port)
    await until(lambda: len(port.metas) + len(port.errors) == SAMPLES // BATCH)
    assert [type(error) for error in port.errors.values()] == [SourceUnavailable]
    assert all((meta.status == OK).all() for meta in port.metas.values())


async def test_draining_finishes_what_was_begun_and_begins_nothing(rig: Rig) -> None:
    rig.engine.run_s = 0.02
    port = Port(rig.producer, await rig.session())
    rig.producer.opened(port)
    await until(lambda: len(port.begun) >= 2)
    await rig.producer.drain(5)
    begun = len(port.begun)
    assert len(port.metas) == begun
    rig.producer.advanced(port)
    await asyncio.sleep(0.05)
    assert len(port.begun) == begun


async def test_admission(rig: Rig) -> None:
    work = await rig.session()
    assert await rig.producer.admit("train", 1, 0, "n") == (work.slot_bytes, 3, work.pixel_bytes)
    with pytest.raises(WorldMismatch):
        await rig.producer.admit("train", 1, 1, "n")
    with pytest.raises(SessionUnknown):
        await rig.producer.admit("train", 2, 0, "n")
    newer = SessionWork(Session(work.session.job, 2, 1, 0, 0, 1, 3, work.session.lanes), rig.engine, rig.source)
    await rig.sessions.put(newer)
    with pytest.raises(SessionSuperseded):
        await rig.producer.admit("train", 1, 0, "n")


async def test_a_waiting_hello_is_admitted_when_the_session_becomes_known(rig: Rig) -> None:
    waiting = asyncio.create_task(rig.producer.admit("late", 1, 0, "n"))
    await asyncio.sleep(0.02)
    await rig.session("late")
    assert (await waiting)[1] == 3


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.producer.run())
    yield rig
    await rig.producer.drain(0.5)
    rig.producer.close()
    await task


async def test_a_head_that_is_wanted_and_not_begun_lags_but_one_that_is_being_made_does_not() -> None:
    async with running(Rig(Limits(batches_in_flight=1))) as rig:
        rig.engine.run_s = 0.4
        work = await rig.session(world=2)
        first, second = Port(rig.producer, work, rank=0), Port(rig.producer, work, rank=1)
        rig.producer.opened(first)
        await until(lambda: bool(first.begun))
        rig.producer.opened(second)
        await until(lambda: bool(rig.producer.lagging(0.05)))
        [(job, lane, behind_s)] = rig.producer.lagging(0.05)
        position = work.plan.locate(1, 0)
        assert position is not None
        assert (job, lane) == ("train", position.lane)
        assert behind_s >= 0.05
        assert rig.producer.lagging(60) == []


async def test_reads_that_hang_neither_starve_another_job_nor_last_for_ever() -> None:
    async with running(Rig(Limits(read_deadline_s=1.0))) as rig:
        hung = await rig.session("hung")
        hung.source = HangingSource()
        stuck = Port(rig.producer, hung)
        rig.producer.opened(stuck)
        await until(lambda: bool(stuck.begun))
        well = Port(rig.producer, await rig.session("well"))
        rig.producer.opened(well)
        await until(lambda: len(well.metas) == SAMPLES // BATCH, 0.9)
        await until(lambda: bool(stuck.errors))
        assert isinstance(stuck.errors[min(stuck.errors)], SourceUnavailable)


async def test_reads_that_take_long_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "READ_LAG_S", 0.1)
    async with running(Rig(Limits(read_deadline_s=2.0))) as rig:
        work = await rig.session()
        work.source = HangingSource()
        port = Port(rig.producer, work)
        rig.producer.opened(port)
        await until(lambda: bool(port.begun))
        assert rig.producer.lagging(0.0) == []
        await until(lambda: bool(rig.producer.lagging(0.05)), 1.5)


async def test_a_large_request_is_granted_in_its_turn() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []

    async def small() -> None:
        for _ in range(50):
            await budget.take(30)
            await asyncio.sleep(0.001)
            budget.give(30)
        granted.append("small")

    async def large() -> None:
        await asyncio.sleep(0.005)
        await budget.take(80)
        granted.append("large")
        budget.give(80)

    await asyncio.gather(small(), small(), small(), large())
    assert granted[0] == "large"
    assert budget.held_bytes == 0


async def test_encoded_bytes_in_flight_are_bounded() -> None:
    async with running(Rig(Limits(batches_in_flight=8, read_ahead_bytes=20))) as rig:
        rig.engine.run_s = 0.002
        port = Port(rig.producer, await rig.session(), window=8)
        rig.producer.opened(port)
        await until(lambda: len(port.metas) == SAMPLES // BATCH)
        assert rig.source.most_reserved_bytes <= 20
        assert rig.source.reserved_bytes == 24 * 8


async def test_a_batch_larger_than_the_whole_budget_is_made_alone() -> None:
    async with running(Rig(Limits(read_ahead_bytes=1))) as rig:
        port = Port(rig.producer, await rig.session())
        rig.producer.opened(port)
        await until(lambda: len(port.metas) == SAMPLES // BATCH)
