"""One simulated fleet with its jobs: who runs, who is restarted, and what is looked at all the time."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from dataclasses import replace

from headrace.core.job import JobSpec
from headrace.testing.simulation.coordinator import Replica
from headrace.testing.simulation.faults import Faults
from headrace.testing.simulation.invariants import Monitor
from headrace.testing.simulation.launcher import Launcher
from headrace.testing.simulation.loop import Host, VirtualLoop
from headrace.testing.simulation.network import Network
from headrace.testing.simulation.scenario import JobScenario, Scenario
from headrace.testing.simulation.sockets import Node, SimulatedSocket
from headrace.testing.simulation.store import SimulatedStore
from headrace.testing.simulation.trace import Trace
from headrace.testing.simulation.worker import WorkerProcess

LOOK_EVERY_S = 0.25
# So long all jobs may take once there are no more faults: leases, claims and bars lapse within it, and failed openings are
# tried again.
PATIENCE_S = 400.0
HOUR_S = 3600.0


class World:
    """See the module."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.scenario = scenario
        self.trace = trace
        self.rng = rng
        self.hosts: list[Host] = []
        self.network = Network(loop, rng, trace)
        self.node = Node(self.network)
        SimulatedSocket.node = self.node
        self.node_clock_s = rng.uniform(-HOUR_S, HOUR_S)
        self.monitor = Monitor(trace)
        self.store = SimulatedStore(self.host("store"), trace, self.monitor.write)
        self.store.wait_s = scenario.store_s
        self.monitor.most_workers = scenario.workers
        self.facts = {job.spec.dataset: job.facts for job in scenario.jobs}
        self.replicas: dict[str, Replica] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.reads = ""
        self.opens = True
        self.faulty = True
        self.gone: set[str] = set()  # workers that nobody starts again
        self.healed_s = math.inf
        self._numbers = itertools.count(1)
        self.launchers = [Launcher(self, job, random.Random(f"{scenario.seed} {job.spec.name}")) for job in scenario.jobs]  # noqa: S311
        self.faults = Faults(self)

    def number(self) -> int:
        """Never used before."""
        return next(self._numbers)

    def host(self, name: str, clock_s: float | None = None) -> Host:
        """A new process; clocks of different machines are up to an hour apart."""
        made = Host(self.loop, name, self.rng.uniform(-HOUR_S, HOUR_S) if clock_s is None else clock_s)
        self.hosts = [host for host in self.hosts if host.alive]
        self.hosts.append(made)
        return made

    def filled(self, job: JobScenario) -> JobSpec:
        """The job as the coordinator records it."""
        return replace(job.spec, manifest_hash=job.facts.hash, samples=job.facts.samples)

    def start_replica(self, name: str) -> None:
        """Start or restart a coordinator."""
        host = self.host(name)
        replica = host.call(Replica, host, self.store, self.network, self.scenario, self.facts)
        self.replicas[name] = replica
        self.trace.note("replica_starts", name=name)

    def start_worker(self, name: str) -> None:
        """Start or restart a worker, unless it is gone for good."""
        if name in self.gone:
            return
        host = self.host(name, self.node_clock_s)

        def make() -> WorkerProcess:
            speed = self.scenario.speeds[int(name[1:])]
            return WorkerProcess(
                host, name, f"{name}-{self.number()}", node=self.node, replicas=self.replicas, rng=self.rng, trace=self.trace,
                trouble=lambda: self.reads, opens=lambda: self.opens, in_flight=self.scenario.in_flight, speed=speed,
                on_told=self.monitor.believes,
            )  # fmt: skip

        self.workers[name] = host.call(make)
        self.trace.note("worker_starts", name=name)

    async def run(self) -> float:
        """Faults, then peace until all jobs are done; returns how long that took. Raises Violation."""
        for number in range(self.scenario.replicas):
            self.start_replica(f"c{number}")
        for number in range(self.scenario.workers):
            self.start_worker(f"w{number}")
        self.store.host.start(self.store.keep_copies(), "copies")
        watch = self.host("simulation", 0.0)
        looking = watch.start(self._look(), "look")
        launching = [watch.start(launcher.run(), "launcher") for launcher in self.launchers]
        raging = watch.start(self.faults.run(), "faults")
        await asyncio.wait([raging])
        raging.result()
        self.faults.stop()
        self.healed_s = self.loop.time()
        _, late = await asyncio.wait(launching, timeout=PATIENCE_S)
        for task in launching:
            if task.done():
                task.result()
        if late:
            self.trace.broken("all_work_finishes", f"{PATIENCE_S:.0f} s after the last fault: {self._stuck()}")
        self.trace.checks["all_work_finishes"] += 1
        looking.cancel()
        return self.loop.time() - self.healed_s

    async def _look(self) -> None:
        sighted_s = 0.0
        while True:
            ranks = [pair for launcher in self.launchers for pair in launcher.ranks]
            self.monitor.bounds(self.store, ranks, self.workers.values())
            if all(replica.board.sight.blind for replica in self.replicas.values()):
                sighted_s = self.loop.time()  # silence says nothing yet to any of them
            if not self.faulty:
                running = [launcher.job.spec.name for launcher in self.launchers if not launcher.finished]
                self.monitor.dead_owners(self.store, running, self.loop.time() - max(self.healed_s, sighted_s))
            await asyncio.sleep(LOOK_EVERY_S)

    def _stuck(self) -> str:
        """Who still waits for what."""
        told = []
        for launcher in self.launchers:
            if launcher.finished:
                continue
            told.append(f"{launcher.job.spec.name} in attempt {len(launcher.attempts)}")
            for life, rank in launcher.ranks:
                if rank.host.alive:
                    state = "joining" if rank.intake is None else f"{life.handed} of {len(life.steps)}"
                    awaited = rank.host.call(rank.intake.status).awaited if rank.intake is not None else ""
                    told.append(f"rank {life.rank} ({rank.nonce}) {state}: {awaited}")
        return "; ".join(told)
