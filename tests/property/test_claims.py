"""Claims that two replicas answer from snapshots of any age: ranks are told of one session, and it forms.

What a replica read last may lack claims, show ones that have lapsed, or show an attempt that another replica has ended since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.coordinator.instruments import Instruments
from headrace.coordinator.job_tables import decode, job_table
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import RankClaimed, SessionSuperseded
from headrace.core.events import JobState, Join, Joined, Open, Rules, Tick
from headrace.core.job import JobSpec, Session

SPEC = JobSpec("job", "/data", 4, manifest_hash="aa", samples=4000)
WORLD = 3
S = 1_000_000

step = st.one_of(
    st.tuples(st.just("poll"), st.integers(0, WORLD - 1), st.integers(0, 1)),
    st.tuples(st.just("look"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("anew"), st.integers(0, WORLD - 1), st.just(0)),
    st.tuples(st.just("race"), st.integers(0, WORLD - 1), st.integers(0, 1)),
)


class Store(MemoryStore):
    """Lets others run in the middle of each call, as a real one does."""

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        loaded = await super().load(wanted)
        await asyncio.sleep(0)
        return loaded

    async def commit(self, expected, writes, hint=""):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        return await super().commit(expected, writes, hint)


class Claims:
    """Two replicas on one store, each with what it read last; the clients of three ranks, and what they were told."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000 * S
        self.store = Store(lambda: self.now_us)
        self.replicas = [Ledger(self.store, Rules(), Instruments(CollectorRegistry()), lambda: self.now_us) for _ in range(2)]
        self.snapshots: list[JobState | None] = [None, None]
        self.runs = [0] * WORLD
        self.told: dict[tuple[int, int], str] = {}  # attempt, rank -> who was told that it has begun
        self.sessions: dict[int, Session] = {}
        self.seen: set[int] = set()

    async def stored(self) -> JobState:
        return decode("job", await self.store.load({job_table("job", kind): None for kind in ("main", "lanes", "ranks")}), {})

    async def look(self, replica: int) -> None:
        self.snapshots[replica] = (await self.replicas[replica].update("job", Tick(0))).state

    async def poll(self, rank: int, replica: int, other: bool = False) -> Joined | None:
        """As the service answers. other: it is the one that is about to take this client's place."""
        nonce, ledger = f"n{rank}-{self.runs[rank] + other}", self.replicas[replica]
        claim = Join(0, rank, WORLD, nonce, None, "", 0, "n", 0)
        try:
            joined = await ledger.claim("job", claim, self.snapshots[replica])
            if joined is None:
                effects = (await ledger.update("job", claim)).effects
                joined = next(effect for effect in effects if isinstance(effect, Joined))
        except (RankClaimed, SessionSuperseded):
            return None
        state = await self.stored()
        assert state.session is not None
        assert joined.attempt <= state.session.attempt
        self.begun(state)
        if joined.session is None:
            assert joined.awaited, "somebody must be missing"
            return joined
        assert self.told.setdefault((joined.attempt, rank), nonce) == nonce, "two clients have one rank"
        assert self.sessions.setdefault(joined.attempt, joined.session) == joined.session
        if joined.attempt == state.session.attempt:
            assert state.session.formed
            assert state.ranks[rank].nonce == nonce
        return joined

    def begun(self, state: JobState) -> None:
        """All claims of a session that is seen for the first time live."""
        assert state.session is not None
        if state.session.formed and state.session.attempt not in self.seen:
            self.seen.add(state.session.attempt)
            assert all(record.alive(self.now_us) for record in state.members.values())
            assert len(state.members) == WORLD

    async def play(self, steps: Sequence[tuple[str, int, int]]) -> None:
        await self.replicas[0].update("job", Open(SPEC, WORLD))
        for kind, first, second in steps:
            if kind == "poll":
                await self.poll(first, second)
            elif kind == "look":
                await self.look(first)
            elif kind == "race":
                await asyncio.gather(self.poll(first, second), self.poll(first, 1 - second, True), self.look(second))
                self.runs[first] += self.told.get((max(self.seen, default=0), first), "").endswith(f"-{self.runs[first] + 1}")
            elif kind == "wait":
                self.now_us += first * S // 5
            else:
                self.runs[first] += 1  # its client was killed, and the next one begins

    async def settle(self) -> None:
        """Clients poll once a second, each first 3 s after the other; replicas look once a second: all come together."""
        joined: list[Joined | None] = []
        for second in range(60):
            joined = [await self.poll(rank, (rank + second) % 2) for rank in range(min(WORLD, 1 + second // 3))]
            if len(joined) == WORLD and all(answer is not None and answer.session is not None for answer in joined):
                break
            self.now_us += S
            for replica in range(2):
                await self.look(replica)
        attempts = {answer.attempt if answer is not None and answer.session is not None else None for answer in joined}
        assert len(attempts) == 1, joined
        assert None not in attempts, joined


@example([("poll", 0, 0), ("poll", 1, 0), ("look", 0, 0), ("look", 1, 0), ("anew", 2, 0), ("poll", 2, 1), ("poll", 1, 0)])
@given(st.lists(step, max_size=40))
def test_ranks_are_told_of_one_session_whatever_the_age_of_what_a_replica_read(steps: list[tuple[str, int, int]]) -> None:
    async def whole() -> None:
        claims = Claims()
        await claims.play(steps)
        await claims.settle()

    asyncio.run(whole())
