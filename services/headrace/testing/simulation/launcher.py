"""What starts a job's trainers again until it is done, as torchrun or a person does; and the audit from attempt to attempt."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.client.options import StreamOptions
from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.core.job import Session, StreamState
from headrace.testing.simulation.invariants import Life
from headrace.testing.simulation.oracle import Oracle, Place
from headrace.testing.simulation.scenario import JobScenario, lanes_of
from headrace.testing.simulation.trainer import Rank

if TYPE_CHECKING:
    from headrace.testing.simulation.world import World

WAIT_S = 60.0
JOIN_S = 30.0
# A rank whose step waits for others that are gone is ended after so long, as by a collective's own deadline.
HUNG_S = 20.0
# A bar lapses within 30 s; a lane is relieved within some 10.
PEACE_S = 45.0


class Attempt:
    """One generation of a job's trainers."""

    def __init__(self, number: int, world: int, state: StreamState | None) -> None:
        self.number = number
        self.world = world
        self.state = state
        self.done = 0
        self.failed = asyncio.Event()
        self.ends_at: int | None = None  # overtaken: its ranks stop after so many steps
        self._arrived: dict[int, int] = {}
        self._gates: dict[int, asyncio.Event] = {}

    @property
    def overtaken(self) -> bool:
        """The next one was started beside it."""
        return self.ends_at is not None

    async def meet(self, step: int) -> None:
        """Wait until all ranks are at a step, as an all-reduce does."""
        gate = self._gates.setdefault(step, asyncio.Event())
        self._arrived[step] = self._arrived.get(step, 0) + 1
        if self._arrived[step] == self.world:
            gate.set()
            self._gates.pop(step - 2, None)
        await gate.wait()


class Formed:
    """A session that was formed. said: commits of each rank; acknowledged: those that the coordinator answered for."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.start = Place(session.epoch, session.first)
        self.said = [0] * session.world
        self.acknowledged = [0] * session.world


class Launcher:
    """Of one job."""

    def __init__(self, world: World, job: JobScenario, rng: random.Random) -> None:
        self.world = world
        self.job = job
        self.finished = False
        self.ranks: list[tuple[Life, Rank]] = []
        self.attempts: list[Attempt] = []
        self.formed: dict[int, Formed] = {}  # by the coordinator's number; ranks of two of our attempts may meet in one
        self.oracle = Oracle(world.filled(job), job.epochs)
        self._rng = rng
        self._checkpoint = StreamState()
        self._checked = Place(0, 0)

    async def run(self) -> None:
        """Until an attempt ends well."""
        monitor = self.world.monitor
        monitor.lanes[self.job.spec.name] = lanes_of(self.job)
        monitor.oracles[self.job.spec.name] = self.oracle
        monitor.most_world[self.job.spec.name] = max(self.job.worlds)
        while not self.finished:
            attempt = Attempt(len(self.attempts) + 1, self._rng.choice(self.job.worlds), None)
            if self.job.explicit and len(self.attempts) > 0:
                attempt.state = self._checkpoint
            self.attempts.append(attempt)
            self._start(attempt)
            await attempt.failed.wait()
            if self.job.numbered and self.world.faulty and self._rng.random() < 0.4:
                await self._start_again(attempt)
            if attempt.done == attempt.world:
                self.finished = True
                self.world.trace.note("job_done", job=self.job.spec.name, attempts=len(self.attempts))
                return
            # The ranks of one that is overtaken say goodbye while those of the next join.
            await asyncio.sleep(self._rng.uniform(0.0, 0.2 if attempt.overtaken else 1.0))
            self._end(attempt)

    def overtake(self) -> bool:
        """Somebody starts the job anew while its ranks are at work; False where it has no numbers for that."""
        attempt = self.attempts[-1] if self.attempts else None
        if self.finished or not self.job.numbered or attempt is None or attempt.failed.is_set():
            return False
        handed = max((life.handed for life, _ in self.ranks if life.number == attempt.number), default=0)
        if not handed:
            return False
        attempt.ends_at = handed + self._rng.choice((1, 1, 1, 2, 4))
        attempt.failed.set()
        return True

    async def _start_again(self, attempt: Attempt) -> None:
        """A rank that died comes back in its own attempt, as a container does whose node restarts it: it must be refused."""
        dead = [life.rank for life, rank in self.ranks if life.number == attempt.number and not rank.host.alive]
        if dead and not attempt.overtaken:
            await asyncio.sleep(self._rng.uniform(3.0, 9.0))  # the claim of the one before lapses meanwhile
            number = self._rng.choice(dead)
            self.world.trace.fault("rank started again in its attempt", job=self.job.spec.name, rank=number)
            self._start_rank(attempt, number)
            await asyncio.sleep(2.0)

    def _end(self, attempt: Attempt) -> None:
        """The ranks that are left are killed; now and then one is forgotten, paused, and wakes up later."""
        for life, rank in self.ranks:
            if life.number == attempt.number and rank.host.alive:
                if attempt.overtaken:
                    continue  # the next attempt ends it
                if self.world.faulty and self._rng.random() < 0.2:
                    self.world.trace.fault("trainer left behind", rank=rank.host.name)
                    rank.host.pause()
                    pause_s = self._rng.uniform(1.0, 8.0)
                    rank.host.loop.call_later(pause_s, rank.host.wake)
                    # Waiting for ranks that have left it hears nothing, and the next attempt waits for it.
                    rank.host.loop.call_later(pause_s + HUNG_S, rank.host.kill)
                else:
                    rank.host.kill()
        self.ranks = [(life, rank) for life, rank in self.ranks if rank.host.alive]

    def _start(self, attempt: Attempt) -> None:
        for number in range(attempt.world):
            self._start_rank(attempt, number)

    def _start_rank(self, attempt: Attempt, number: int) -> None:
        host = self.world.host(f"{self.job.spec.name}.{attempt.number}.r{number}", self.world.node_clock_s)
        nonce = f"n{self.world.number()}"
        rank = host.call(Rank, host, self.world.network, self.world.replicas, self.world.trace, nonce)
        life = Life(self.job.spec.name, number, attempt.number, attempt.world, 0, self.oracle, Place(0, 0), [])
        self.ranks.append((life, rank))
        host.on_death.append(partial(self._died, attempt, life))
        host.start(self._train(attempt, life, rank), "train")

    @staticmethod
    def _died(attempt: Attempt, life: Life) -> None:
        if not life.finished:
            attempt.failed.set()

    async def _train(self, attempt: Attempt, life: Life, rank: Rank) -> None:
        try:
            if not await self._session(attempt, life, rank):
                self.world.loop.call_soon(rank.host.kill)
                return
            life.finished = True
            attempt.done += 1
            if attempt.done == attempt.world:
                attempt.failed.set()
        except HeadraceError as error:
            self.world.trace.note("trainer_failed", error=error.code, message=str(error)[:200])
            if rank.link is not None and self._rng.random() < 0.5:  # a script with a `with` statement
                await rank.leave()
        self.world.loop.call_soon(rank.host.kill)

    async def _session(self, attempt: Attempt, life: Life, rank: Rank) -> bool:
        """Train to the end; False if it was told to stop on the way."""
        job, monitor, store = self.job, self.world.monitor, self.world.store
        number = attempt.number if job.numbered else 0
        options = StreamOptions(life.rank, attempt.world, job.epochs, number, wait_deadline_s=WAIT_S, join_deadline_s=JOIN_S)
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        session = await rank.join(job.spec, options, attempt.state)
        formed = self._begins(attempt, life, session)
        rank.on_recorded = partial(formed.acknowledged.__setitem__, life.rank)
        rank.on_table = lambda table: monitor.tokens_told(life, table.tokens)
        self._watch_arrivals(life, rank)
        while True:
            batch = await self._next(life, rank)
            if batch is None:
                break
            monitor.handed(life, rank, batch, store)
            # In peace there is nothing to wait for: the rest is trained fast.
            await asyncio.sleep(self._rng.expovariate(1.0) * job.step_s * (1.0 if self.world.faulty else 0.05))
            step = life.steps[life.handed - 1]
            monitor.content(rank.host.name, life, batch, Place(step.epoch, step.batch + life.rank))
            if job.lock_step:
                await attempt.meet(life.handed)
            if life.handed % job.commit_every == 0 or life.handed == len(life.steps):
                self._commit(attempt, formed, life, rank)
            # SIGTERM: a last checkpoint of all its ranks, while the next attempt begins.
            if attempt.ends_at is not None and life.handed >= attempt.ends_at:
                self._commit(attempt, formed, life, rank)
                await rank.leave()
                return False
        monitor.handed_all(life)
        await rank.leave()
        return True

    async def _next(self, life: Life, rank: Rank) -> Any:
        """The next batch. While there are faults it may take as long as it likes; in peace, no longer than what must lapse."""
        world = self.world
        begun_s = world.loop.time()
        try:
            return await rank.next(WAIT_S)
        except WaitTimeout as error:
            peace_s = world.loop.time() - max(begun_s, world.healed_s)
            if peace_s > PEACE_S and not world.faults.openings:
                world.trace.broken("every_wait_ends", f"rank {life.rank} of {life.job}: {error}; no fault for {peace_s:.0f} s")
            raise
        finally:
            world.trace.checks["every_wait_ends"] += 1

    def _commit(self, attempt: Attempt, formed: Formed, life: Life, rank: Rank) -> None:
        assert rank.stream is not None
        if self.job.explicit and life.rank == 0 and attempt is self.attempts[-1]:
            state = rank.stream.state_dict()
            self._checkpoint = StreamState(state["epoch"], state["first"], state["step"], state["world"])
            self._checked = self.oracle.after(life.start, life.world, life.handed)
        formed.said[life.rank] = life.handed
        rank.stream.commit()

    def _watch_arrivals(self, life: Life, rank: Rank) -> None:
        intake = rank.intake
        assert intake is not None
        arrivals, links = intake._arrivals, intake._links
        judge, lane_of = arrivals.ready, intake._lane_of

        def ready(arrival):  # type: ignore[no-untyped-def]
            before = arrivals.get(arrival.index)
            verdict = judge(arrival)
            self.world.monitor.first_copy(life, before, arrival, verdict)
            peer = links.by_number(arrival.link)
            link: Any = peer.link if peer is not None else None
            maker = link.socket.peer.host.serial if link is not None else 0
            self.world.monitor.taken(life, lane_of(arrival.index), arrival, verdict, maker)
            return verdict

        arrivals.ready = ready  # type: ignore[method-assign]

    # --- the audit ------------------------------------------------------------------------------------------------------

    def _begins(self, attempt: Attempt, life: Life, session: Session) -> Formed:
        """Where a session begins: its checkpoint, or what all ranks of the one before had committed."""
        formed = Formed(session)
        trace, store, monitor = self.world.trace, self.world.store, self.world.monitor
        life.attempt, life.start = session.attempt, formed.start
        life.steps = self.oracle.steps(formed.start, attempt.world)
        trace.note("session", job=life.job, attempt=session.attempt, rank=life.rank, start=formed.start, steps=len(life.steps))
        known = self.formed.get(session.attempt)
        if known is not None and (not store.forgot or (known.start, known.session.world) == (formed.start, session.world)):
            monitor.agrees(life, known.session, session)
            return known
        if self.job.explicit and attempt.state is not None:
            monitor.begins(life, formed.start, [self._checked], "its checkpoint")
        elif not store.emptied:
            monitor.begins(life, formed.start, self._possible(session.attempt), "what was committed before")
        self.formed[session.attempt] = formed
        return formed

    def _possible(self, number: int) -> list[Place]:
        """Where it may begin: in the newest session before it, from what was recorded for certain to what was said."""
        before = max((attempt for attempt in self.formed if attempt < number), default=0)
        if not before:
            return [Place(0, 0)]
        formed = self.formed[before]
        low = 0 if self.world.store.forgot else min(formed.acknowledged)
        return [self.oracle.after(formed.start, formed.session.world, count) for count in range(low, min(formed.said) + 1)]
