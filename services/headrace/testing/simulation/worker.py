"""A worker in the simulation: the real lease loop, producer, batches, ports and local server, on simulated sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from headrace.core.batch import REASON_CODE
from headrace.core.errors import SourceUnavailable
from headrace.core.job import Endpoint
from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.testing.simulation.coordinator import Replica
from headrace.testing.simulation.loop import Host
from headrace.testing.simulation.network import Network
from headrace.testing.simulation.sockets import Node, SimulatedSocket
from headrace.testing.simulation.trace import Trace
from headrace.worker.engines.protocol import Out, RunResult, Sample, host_memory
from headrace.worker.lease_loop import Identity, LeaseLoop
from headrace.worker.make_batch import Made
from headrace.worker.producer import Limits, Producer
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_local import LocalServer, _Connection
from headrace.worker.sources.protocol import ReadBatch, Reserve
from headrace.worker.stats import WorkerStats
from headrace.worker.tools import Toolbox
from headrace.worker.work import Sessions

NODE = "node"
FINGERPRINT = "simulated-1"
DRAIN_S = 5.0


class Unregistered(CollectorRegistry):
    """Keeps no metric: thousands of workers come and go in one process."""

    def register(self, collector: Any) -> None:
        """Kept by nobody."""


class SimulatedStats(WorkerStats):
    """Its numbers go nowhere but the speed, which is given: lanes are dealt by it."""

    def __init__(self, speed: float) -> None:
        super().__init__(Unregistered())
        self._speed = speed

    def made(self, job: str, samples: int, transport: str, made: Made) -> None:
        """The engine's time is not simulated."""
        self.samples_per_s = self._speed


class Ordered(dict[Any, None]):
    """As a set of objects, in the order in which they came: a set's own order differs from run to run."""

    def add(self, item: Any) -> None:
        """See set."""
        self[item] = None

    def discard(self, item: Any) -> None:
        """See set."""
        self.pop(item, None)


BAD_SAMPLE = 5  # of data sets whose address says so; another sample of its batch stands in for it
BAD, GOOD = b"bad", b"good"


def has_bad(dataset: str) -> bool:
    """True if the data set has a sample that cannot be decoded."""
    return dataset.endswith("/bad")


def pixel_of(source: int, epoch: int, planned: int) -> int:
    """The value that fills the row of a sample: of its bytes and of the planned sample's augmentation."""
    return (source * 31 + epoch * 7 + planned * 13) % 251


class SimulatedEngine:
    """Fills each row with `pixel_of`."""

    name = "simulated"
    ops = frozenset(OPS_BY_NAME)
    memory = frozenset({"host"})
    batches_at_once = 1
    fingerprint = FINGERPRINT

    def prepare(self, spec: PipelineSpec, seed: int) -> SimulatedEngine:
        """Any spec."""
        return self

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See Engine."""
        out = host_memory(out)
        row = len(out) // len(samples)
        reasons = np.zeros(len(samples), np.uint8)
        for i, (sample, (epoch, planned)) in enumerate(zip(samples, keys, strict=True)):
            if sample.data == BAD:
                reasons[i] = REASON_CODE["corrupt"]
            else:
                out[i * row : (i + 1) * row] = bytes([pixel_of(sample.sample_id, epoch, planned)]) * row
        return RunResult(reasons, 0.0, 0.0)

    def close(self) -> None:
        """Nothing to free."""


class SimulatedSource:
    """Reads that take a while, and fail or hang while the object store is in trouble. trouble: '', 'fails' or 'hangs'."""

    def __init__(self, rng: random.Random, dataset: str, manifest_hash: str, trouble: Callable[[], str]) -> None:
        self.samples = 0
        self._bad = BAD_SAMPLE if has_bad(dataset) else -1
        self.manifest_hash = manifest_hash
        self._rng = rng
        self._trouble = trouble

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        """See Source."""
        if reserve is not None:
            await reserve(100 * len(sample_ids))
        await asyncio.sleep(self._rng.uniform(0.0005, 0.01))
        for _ in range(1200):
            if self._trouble() != "hangs":
                break
            await asyncio.sleep(0.1)
        if self._trouble() == "fails":
            raise SourceUnavailable("the simulated object store answers 503; look at it")
        samples = [Sample(number, f"{number:06d}", BAD if number == self._bad else GOOD) for number in sample_ids]
        return ReadBatch(samples, np.array(sample_ids, np.int64), [], 100 * len(samples), 1)

    async def close(self) -> None:
        """Nothing to free."""


class SimulatedLeaseLoop(LeaseLoop):
    """Its calls go over the simulated network. replicas: by address, those that run now."""

    network: Network
    host: Host
    replicas: dict[str, Replica]
    on_told: Callable[[tuple[str, int], dict[int, int], dict[int, int]], None]

    async def _take_over(self, answer: Any) -> None:
        await super()._take_over(answer)
        told = {(each.job, each.attempt): dict(zip(each.lanes, each.tokens, strict=True)) for each in answer.leases}
        for key, work in self._sessions.by_key.items():
            self.on_told(key, {lane: lease.token for lane, lease in work.leases.items()}, told.get(key, {}))

    def _stub(self, address: str) -> Any:
        replica = self.replicas[address]

        async def heartbeat(request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - as gRPC's stubs have it
            return await self.network.call(self.host, replica.host, replica.unary("Heartbeat", request), timeout)

        return SimpleNamespace(Heartbeat=heartbeat)


class WorkerProcess:
    """One run of a worker's process."""

    def __init__(
        self, host: Host, name: str, incarnation: str, *, node: Node, replicas: dict[str, Replica], rng: random.Random,
        trace: Trace, trouble: Callable[[], str], opens: Callable[[], bool], in_flight: int, speed: float,
        on_told: Callable[[str, tuple[str, int], dict[int, int], dict[int, int]], None],
    ) -> None:  # fmt: skip
        self.host = host
        self.name = name
        self.endpoint = Endpoint(name, incarnation, NODE, f"{name}:1", f"/{name}.sock")
        self._node = node
        self._trace = trace
        self.sessions = Sessions()
        engine = SimulatedEngine()
        stats = SimulatedStats(speed)
        self.producer = Producer(name, FINGERPRINT, self.sessions, stats, Limits(in_flight, 1000, 30.0))
        self.register = RankRegister(self.producer, worker=name)
        self.server = LocalServer(self.register, Path(self.endpoint.socket))
        self.server.connections = Ordered()  # type: ignore[assignment]

        async def open_source(dataset: str, manifest_hash: str) -> SimulatedSource:
            await asyncio.sleep(rng.uniform(0.001, 0.2))
            if not opens():
                raise SourceUnavailable("the simulated manifest cannot be read; look at the store")
            return SimulatedSource(rng, dataset, manifest_hash, trouble)

        self.leases = SimulatedLeaseLoop(
            rng.sample(sorted(replicas), len(replicas)),
            Identity(self.endpoint, engine, 2),
            sessions=self.sessions,
            producer=self.producer,
            toolbox=Toolbox(engine, open_source, linger_s=5.0),
            stats=stats,
        )
        self.leases.on_told = partial(on_told, name)
        self.leases.network, self.leases.host, self.leases.replicas = node.network, host, replicas
        node.listeners[self.endpoint.socket] = (host, self._accept)
        host.on_death.append(self._died)
        self._beats = host.start(self.leases.run(), "heartbeats")
        host.start(self.producer.run(), "producer")

    @property
    def ports(self) -> list[Any]:
        """The connected ranks."""
        return list(self.register._ports.values())

    async def drain(self) -> None:
        """SIGTERM: as worker.app does it."""
        await self.producer.drain(DRAIN_S)
        await self.server.drain()
        self._beats.cancel()
        await asyncio.wait([self._beats])
        self.leases.draining = True
        for _ in range(3):
            if await self.leases.beat():
                break
            await asyncio.sleep(0.5)
        await self.server.close(1.0)
        self._trace.note("worker_stopped", worker=self.name)

    def _accept(self, end: SimulatedSocket) -> None:
        self.server.connections.add(_Connection(self.server, self.register, end))  # type: ignore[arg-type]

    def _died(self) -> None:
        if self._node.listeners.get(self.endpoint.socket, (None,))[0] is self.host:
            del self._node.listeners[self.endpoint.socket]
        for connection in list(self.server.connections):
            connection.end("killed")
        self.producer.close()
