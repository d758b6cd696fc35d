"""What goes wrong, and when: drawn from the seed, counted by kind, mended at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.testing.simulation.network import Weather

if TYPE_CHECKING:
    from headrace.testing.simulation.loop import Host
    from headrace.testing.simulation.world import World


class Faults:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.openings = 0  # after a failed one a worker stays away for half a minute, and longer each time
        self._rng = random.Random(f"faults {world.scenario.seed}")  # noqa: S311 - a seed decides all of it
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._worker_killed, 4),
            (self._worker_paused, 4),
            (self._worker_stopped, 1),
            (self._worker_gone, 2),
            (self._replica_killed, 2),
            (self._replica_paused, 2),
            (self._trainer_killed, 2),
            (self._trainer_paused, 2),
            (self._job_started_anew, 2),
            (self._store_down, 2),
            (self._bad_weather, 3),
            (self._cut, 3),
            (self._isolated, 2),
            (self._connection_reset, 3),
            (self._reads_in_trouble, 1),
            (self._manifest_gone, 1),
        ]
        if world.scenario.store_forgets:
            self._kinds += [(self._store_loses_last_second, 4), (self._store_loses_all, 1)]
        if world.scenario.store_clock_jumps:
            self._kinds.append((self._store_clock_set, 3))
        # Each run has its own mix, so that some runs are nothing but one kind of trouble.
        self._kinds = [(kind, weight) for kind, weight in self._kinds if self._rng.random() < 0.7] or self._kinds
        if world.scenario.restless:
            self._kinds.append((self._job_started_anew, 60))

    async def run(self) -> None:
        """Break things for as long as the scenario says."""
        world = self._world
        end_s = world.loop.time() + world.scenario.faults_s
        kinds, weights = zip(*self._kinds, strict=True)
        while world.loop.time() < end_s and not all(launcher.finished for launcher in world.launchers):
            await asyncio.sleep(self._rng.expovariate(1.0 / world.scenario.fault_every_s))
            self._rng.choices(kinds, weights)[0]()

    def stop(self) -> None:
        """Mend everything."""
        world = self._world
        world.trace.note("faults_end")
        world.faulty = False
        world.network.heal()
        world.store.up = True
        world.reads, world.opens = "", True
        for host in world.hosts:
            host.wake()
        for name, replica in list(world.replicas.items()):
            if not replica.host.alive:
                world.start_replica(name)
        for name, worker in list(world.workers.items()):
            if not worker.host.alive:
                world.start_worker(name)

    def _later(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        """What ends a fault; at the end of all faults it has happened already."""

        def unless_over() -> None:
            if self._world.faulty:
                act(*args)

        self._world.loop.call_later(delay_s, unless_over)

    def _pause(self, host: Host, for_s: float, kind: str) -> None:
        self._world.trace.fault(kind, host=host.name, for_s=round(for_s, 2))
        host.pause()
        self._later(for_s, host.wake)

    def _for_s(self) -> float:
        """Shorter than a lease, longer, or much longer."""
        return self._rng.choice((self._rng.uniform(0.05, 1.0), self._rng.uniform(1.0, 4.0), self._rng.uniform(4.0, 10.0)))

    # --- processes ------------------------------------------------------------------------------------------------------

    def _worker_killed(self) -> None:
        world = self._world
        worker = self._rng.choice(list(world.workers.values()))
        if worker.host.alive:
            world.trace.fault("worker killed", worker=worker.name)
            worker.host.kill()
            self._later(self._rng.uniform(0.05, 5.0), self._restart_worker, worker.name)

    def _restart_worker(self, name: str) -> None:
        if not self._world.workers[name].host.alive:
            self._world.start_worker(name)

    def _worker_gone(self) -> None:
        """It never comes back; one of them always does."""
        world = self._world
        worker = self._rng.choice(list(world.workers.values()))
        if worker.host.alive and len(world.gone) + 1 < len(world.workers):
            world.trace.fault("worker gone for good", worker=worker.name)
            world.gone.add(worker.name)
            worker.host.kill()

    def _worker_paused(self) -> None:
        worker = self._rng.choice(list(self._world.workers.values()))
        if worker.host.alive and not worker.host.paused:
            self._pause(worker.host, self._for_s(), "worker paused")

    def _worker_stopped(self) -> None:
        world = self._world
        worker = self._rng.choice(list(world.workers.values()))
        if not worker.host.alive or worker.host.paused or worker.leases.draining:
            return
        world.trace.fault("worker drained", worker=worker.name)

        async def stop() -> None:
            await worker.drain()
            world.loop.call_soon(worker.host.kill)
            # It may end after the last fault; then, too, somebody starts another one.
            world.loop.call_later(self._rng.uniform(0.1, 3.0), self._restart_worker, worker.name)

        worker.host.start(stop(), "drain")

    def _replica_killed(self) -> None:
        world = self._world
        name, replica = self._rng.choice(list(world.replicas.items()))
        if replica.host.alive:
            world.trace.fault("coordinator killed", replica=name)
            replica.host.kill()
            self._later(self._rng.uniform(0.05, 5.0), self._restart_replica, name)

    def _restart_replica(self, name: str) -> None:
        if not self._world.replicas[name].host.alive:
            self._world.start_replica(name)

    def _replica_paused(self) -> None:
        replica = self._rng.choice(list(self._world.replicas.values()))
        if replica.host.alive and not replica.host.paused:
            self._pause(replica.host, self._for_s(), "coordinator paused")

    def _trainers(self) -> list[Host]:
        return [rank.host for launcher in self._world.launchers for _, rank in launcher.ranks if rank.host.alive]

    def _trainer_killed(self) -> None:
        hosts = self._trainers()
        if hosts:
            host = self._rng.choice(hosts)
            self._world.trace.fault("trainer killed", rank=host.name)
            host.kill()

    def _trainer_paused(self) -> None:
        hosts = [host for host in self._trainers() if not host.paused]
        if hosts:
            self._pause(self._rng.choice(hosts), self._for_s(), "trainer paused")

    def _job_started_anew(self) -> None:
        launcher = self._rng.choice(self._world.launchers)
        if launcher.overtake():
            self._world.trace.fault("job started anew beside itself", job=launcher.job.spec.name)

    # --- the store ------------------------------------------------------------------------------------------------------

    def _store_down(self) -> None:
        self._restart_store("store down", self._rng.uniform(0.1, 5.0))

    def _restart_store(self, kind: str, for_s: float) -> None:
        store = self._world.store
        self._world.trace.fault(kind, for_s=round(for_s, 2))
        store.up = False
        self._later(for_s, self._store_up)

    def _store_up(self) -> None:
        self._world.store.up = True

    def _store_loses_last_second(self) -> None:
        self._restart_store("store lost its last second", self._rng.choice((0.0, self._rng.uniform(0.0, 3.0))))
        self._world.store.lose_last_second()

    def _store_loses_all(self) -> None:
        self._restart_store("store came back empty", self._rng.uniform(0.0, 2.0))
        self._world.store.lose_all()

    def _store_clock_set(self) -> None:
        by_s = self._rng.choice((-3600.0, -60.0, -2.0, 2.0, 60.0, 3600.0))
        self._world.trace.fault("store clock set", by_s=by_s)
        self._world.store.clock_s += by_s

    # --- between them ---------------------------------------------------------------------------------------------------

    def _bad_weather(self) -> None:
        weather = Weather(
            delay_s=self._rng.choice((0.001, 0.02, 0.1)),
            slow=self._rng.choice((0.0, 0.02, 0.1)),
            slow_s=self._rng.choice((0.5, 3.0)),
            lost=self._rng.choice((0.0, 0.02, 0.2)),
            repeated=self._rng.choice((0.0, 0.05, 0.2)),
        )
        self._world.trace.fault("bad weather", weather=weather)
        self._world.network.weather = weather
        self._later(self._rng.uniform(0.5, 6.0), self._fine_weather)

    def _fine_weather(self) -> None:
        self._world.network.weather = Weather()

    def _names(self) -> list[str]:
        world = self._world
        return sorted({*world.replicas, *world.workers, "store", *(host.name for host in self._trainers())})

    def _cut(self) -> None:
        one, other = self._rng.sample(self._names(), 2)
        for_s = self._for_s()
        self._world.trace.fault("pair cut", one=one, other=other, for_s=round(for_s, 2))
        self._world.network.cut(one, other, for_s)

    def _isolated(self) -> None:
        names = self._names()
        alone, for_s = self._rng.choice(names), self._for_s()
        self._world.trace.fault("host isolated", host=alone, for_s=round(for_s, 2))
        for other in names:
            if other != alone:
                self._world.network.cut(alone, other, for_s)

    def _connection_reset(self) -> None:
        ends = list(self._world.node.sockets)
        if ends:
            end = self._rng.choice(ends)
            self._world.trace.fault("connection reset", rank=end.host.name)
            end.cut()

    # --- data -----------------------------------------------------------------------------------------------------------

    def _reads_in_trouble(self) -> None:
        self._world.reads = self._rng.choice(("hangs", "hangs", "fails"))
        self._world.trace.fault(f"reads: object store {self._world.reads}")
        self._later(self._rng.uniform(0.2, 8.0), self._reads_mended)

    def _reads_mended(self) -> None:
        self._world.reads = ""

    def _manifest_gone(self) -> None:
        self.openings += 1
        self._world.opens = False
        self._world.trace.fault("manifest cannot be opened")
        self._later(self._rng.uniform(0.2, 3.0), self._manifest_back)

    def _manifest_back(self) -> None:
        self._world.opens = True
