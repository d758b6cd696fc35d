"""A worker without a fleet: an engine, samples in memory, and the real servers of ranks. `python -m tests.gpu.made JSON`.

So two processes show all of a hand-over, from encoded bytes to pixels in the other one's hands, with no store, coordinator or
disk beside them. What is said to it by standard input is answered by a line of JSON: `memory` what it holds. At the end of its
input, or with its parent, it ends.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.batch import BatchMeta
from headrace.core.epoch_plan import lane_count
from headrace.core.job import Endpoint, JobSpec, LaneTable, Session
from headrace.core.pipeline_spec import HorizontalFlip, PipelineSpec, RandomResizedCrop
from headrace.telemetry import logging
from headrace.telemetry.parent import exit_with_parent
from headrace.testing import numpy_lane
from headrace.testing.null_producer import pattern
from headrace.wire import slot_format
from headrace.wire.batch_meta import encode_meta
from headrace.worker.device_share import DeviceShare
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine, Out, RunResult, Sample, host_memory
from headrace.worker.pixel_places import PixelPlaces
from headrace.worker.ports import OutPort, Room
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_local import LocalServer
from tests.gpu import devices, photos

NODE, NAME, SEED, META_BYTES = "node", "made", 7, 1 << 16


@dataclass(frozen=True, slots=True)
class Order:
    """What such a worker is told. memory: of the slots: one of devices.KINDS; empty: of the host, shared."""

    socket: str
    memory: str
    engine: str
    batch: int
    side: int = 224
    window: int = 4
    threads: int = 2
    photos: int = 64
    grace_s: float = 0.2
    token: int = 1

    @property
    def spec(self) -> PipelineSpec:
        """The work: a random-resized-crop and a flip, uint8 NHWC."""
        return PipelineSpec(ops=(RandomResizedCrop((self.side, self.side)), HorizontalFlip()))

    def session(self, batches: int, world: int = 1) -> Session:
        """A session of so many batches in all."""
        job = JobSpec("job", "file:///data", self.batch, self.spec, samples=batches * self.batch, manifest_hash="m",
                      max_key_bytes=32)  # fmt: skip
        return Session(job, 0, world, 0, 0, 1, self.window, lane_count(job.samples, job.batch_size))

    def table(self, session: Session) -> LaneTable:
        """All lanes are this worker's."""
        endpoint = Endpoint(NAME, str(self.token), NODE, "", self.socket)
        tokens = (self.token,) * session.lanes
        return LaneTable(self.token, self.window, (NAME,) * session.lanes, tokens, {NAME: endpoint})


class PatternEngine:
    """Makes pixels in host memory that name their index (headrace.testing.null_producer.pattern)."""

    name = fingerprint = "pattern"
    ops: frozenset[str] = frozenset()
    memory = frozenset({"host"})
    batches_at_once = 2

    def prepare(self, spec: PipelineSpec, seed: int) -> PatternEngine:
        return self

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        view = host_memory(out)
        view[:] = pattern(keys[0][1] // len(keys), view.nbytes)
        return RunResult(np.zeros(len(keys), np.uint8), 0.0, 0.0)

    def close(self) -> None:
        pass


def make_engine(name: str, threads: int) -> Engine:
    """One of the registry, or one of those that are made for tests. Raises EngineUnsupported."""
    if name == "pattern":
        return PatternEngine()
    return numpy_lane.engine(threads) if name == "cvcuda-on-numpy" else registry.create(name, threads)


@dataclass
class Producer:
    """worker.ports.PortListener: makes what ranks want, as many batches at once as the engine takes."""

    order: Order
    engine: Engine
    samples: list[Sample]
    ports: list[OutPort] = field(default_factory=list)
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.prepared = self.engine.prepare(self.order.spec, SEED)
        self.pixel_bytes = self.order.spec.pixel_bytes(self.order.batch)
        self.places = PixelPlaces(self.engine.memory)
        self.most = self.engine.batches_at_once
        self.pool = ThreadPoolExecutor(self.most, thread_name_prefix="made-engine")
        self.tasks: set[asyncio.Future[Any]] = set()
        self.errors: list[str] = []

    async def admit(self, job: str, attempt: int, rank: int, nonce: str) -> Room:
        return Room(slot_format.slot_bytes(self.pixel_bytes, META_BYTES), self.order.window, self.pixel_bytes)

    def opened(self, port: OutPort) -> None:
        self.ports.append(port)
        self.pump()

    def advanced(self, port: OutPort) -> None:
        self.pump()

    def closed(self, port: OutPort) -> None:
        self.ports.remove(port)

    def pump(self) -> None:
        """Begin what is wanted, the lowest index first."""
        wanted = sorted(
            (i, n) for n, port in enumerate(self.ports) for i in range(port.next_index, port.next_index + port.window)
        )
        for index, number in wanted:
            if self.in_flight >= self.most:
                return
            port = self.ports[number]
            slot = port.acquire(index) if port.wants(index) else None
            if slot is None:
                continue
            self.in_flight += 1
            port.started(index, self.order.token)
            task = asyncio.get_running_loop().run_in_executor(self.pool, self._make, port, index, slot)
            self.tasks.add(task)
            task.add_done_callback(functools.partial(self._made, port, index))

    def _make(self, port: OutPort, index: int, slot: memoryview) -> int:
        count = self.order.batch
        first = index * count
        samples = [self.samples[(first + i) % len(self.samples)] for i in range(count)]
        device = port.device_place(index)
        begun = time.monotonic()
        with self.places.writing(slot, device, self.pixel_bytes) as out:
            result = self.prepared.run(samples, [(0, first + i) for i in range(count)], out)
        augmented = time.monotonic()
        meta = self._meta(port, index, {"engine": begun, "augmented": augmented, "published": time.monotonic()})
        assert not result.reasons.any()
        return slot_format.seal(
            slot,
            encode_meta(meta),
            index=index,
            token=self.order.token,
            dtype="uint8",
            layout="NHWC",
            shape=self.order.spec.shape(count),
            pixel_bytes=self.pixel_bytes,
            on_device=device is not None,
        )

    def _made(self, port: OutPort, index: int, done: asyncio.Future[int]) -> None:
        self.tasks.discard(done)
        self.in_flight -= 1
        if done.cancelled() or done.exception() is not None or port.closed:
            if not done.cancelled() and done.exception() is not None:
                self.errors.append(repr(done.exception()))
                print(json.dumps({"error": self.errors[-1]}), flush=True)
            port.abandon(index)
        else:
            port.publish(index, self.order.token, done.result())
        self.pump()

    def _meta(self, port: OutPort, index: int, milestones: dict[str, float]) -> BatchMeta:
        ids = np.arange(index * self.order.batch, (index + 1) * self.order.batch, dtype=np.int64)
        zeros = np.zeros(self.order.batch, np.uint8)
        return BatchMeta(
            job=port.job,
            attempt=port.attempt,
            rank=port.rank,
            index=index,
            epoch=0,
            step=index,
            batch=index,
            lane=0,
            token=self.order.token,
            worker=NAME,
            plan_hash="none",
            fingerprint=self.engine.fingerprint,
            sample_ids=ids,
            source_ids=ids,
            status=zeros,
            reasons=zeros,
            keys=[""] * self.order.batch,
            labels=ids,
            milestones=milestones,
        )


async def serve(order: Order) -> None:
    """Until the end of standard input."""
    jpegs = photos.jpegs(order.photos) if order.engine not in ("pattern", "null") else [b"."]
    producer = Producer(order, make_engine(order.engine, order.threads), [Sample(i, "", jpeg) for i, jpeg in enumerate(jpegs)])
    device = devices.open_kind(order.memory) if order.memory else None
    share = DeviceShare(lambda: device, grace_s=order.grace_s) if device else DeviceShare()
    server = LocalServer(RankRegister(producer, worker=NAME), Path(order.socket), devices=share)
    await server.start()
    print(json.dumps({"ready": os.getpid(), "engine": producer.engine.fingerprint}), flush=True)
    lines: asyncio.Queue[str] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    while (await lines.get()).strip():
        counted = devices.counter(device) if device else None
        print(
            json.dumps({
                "used_bytes": devices.used_bytes(order.memory or "memfd"),
                "descriptors": devices.descriptors(),
                "quarantined": share.quarantined,
                "ranks": len(producer.ports),
                "in_flight": producer.in_flight,
                "written": counted.written if counted else 0,
                "read_back": counted.read_back if counted else 0,
            }),
            flush=True,
        )  # fmt: skip
    asyncio.get_running_loop().remove_reader(sys.stdin)
    await server.close(0.0)
    while producer.tasks:
        await asyncio.wait(set(producer.tasks))
    producer.places.close()
    producer.engine.close()


def main() -> None:
    """Serve as the JSON argument says."""
    exit_with_parent()
    logging.configure("made", "json", "warning")
    asyncio.run(serve(Order(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
