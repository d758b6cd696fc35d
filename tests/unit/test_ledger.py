"""The shell around the rules: two replicas on one store, at the same time and one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from headrace.coordinator.fleet_ledger import JOBS, WORKERS
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.store import Key, Loaded
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import JobUnknown, SessionSuperseded, StaleToken, StoreConflict
from headrace.core.events import BadSample, Join, Joined, Open, Progress, Rules
from headrace.core.job import Endpoint, JobSpec, Session
from headrace.core.records import WorkerRecord

WORLD = 32
SPEC = JobSpec("job", "/data", 4, manifest_hash="aa", samples=4000)


class CountingStore(MemoryStore):
    """Counts requests, and lets others run in the middle of each, as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        self.requests += 1
        await asyncio.sleep(0)
        loaded: Loaded = await super().load(wanted)
        await asyncio.sleep(0)
        return loaded

    async def commit(self, expected, writes, hint=""):  # type: ignore[no-untyped-def]
        self.requests += 1
        await asyncio.sleep(0)
        return await super().commit(expected, writes, hint)


def replicas(store: MemoryStore) -> list[Ledger]:
    return [Ledger(store, Rules(), Instruments(CollectorRegistry())) for _ in range(2)]


def claim(rank: int, attempt: int = 0, nonce: str = "") -> Join:
    return Join(attempt, rank, WORLD, nonce or f"n{rank}", None, "", 0, "n", 0)


async def formed(one: Ledger, two: Ledger) -> Session:
    await one.update("job", Open(SPEC, WORLD))
    await asyncio.gather(*((one, two)[rank % 2].update("job", claim(rank)) for rank in range(WORLD)))
    outcome = await one.update("job", claim(0))
    session = next(effect for effect in outcome.effects if isinstance(effect, Joined)).session
    assert session is not None
    return session


def report(session: Session, consumed: int, bad: tuple[BadSample, ...] = ()) -> Progress:
    return Progress(session.attempt, 0, "n0", session, consumed, consumed, elapsed_s=consumed, bad=bad)


async def test_all_ranks_may_join_at_once_through_any_replica() -> None:
    session = await formed(*replicas(CountingStore()))
    assert (session.attempt, session.world) == (1, WORLD)


async def test_a_report_costs_one_request_and_still_sees_what_others_wrote() -> None:
    store = CountingStore()
    one, two = replicas(store)
    session = await formed(one, two)
    await one.update("job", report(session, 1), rank=0)
    before = store.requests
    await one.update("job", report(session, 2), rank=0)
    assert store.requests == before + 1
    await two.update("job", report(session, 9), rank=0)
    outcome = await one.update("job", report(session, 3), rank=0)  # overtaken on its way
    assert outcome.state.ranks[0].consumed == 9
    await two.update("job", claim(0, attempt=2, nonce="x"))
    with pytest.raises(SessionSuperseded):
        await one.update("job", report(session, 10), rank=0)


async def test_a_heartbeat_costs_one_request_and_a_replaced_process_is_told() -> None:
    store = CountingStore()
    one, two = replicas(store)

    def stated(incarnation: str) -> WorkerRecord:
        return WorkerRecord(Endpoint("w", incarnation, "n", "g", ""), "fp", (), 0.0, 1, False, 0)

    assert (await one.fleet.heartbeat(stated("1"), 10**9))[0] is None
    before = store.requests
    assert (await one.fleet.heartbeat(stated("1"), 10**9))[0] is not None
    assert store.requests == before + 1
    await two.fleet.heartbeat(stated("2"), 10**9)
    with pytest.raises(StaleToken):
        await one.fleet.heartbeat(stated("1"), 10**9)


async def test_the_index_of_jobs_is_put_back_when_it_was_lost() -> None:
    store = MemoryStore()
    one, two = replicas(store)
    session = await formed(one, two)
    await store.commit({}, {Key(JOBS, "job"): None})
    assert (await one.fleet.look()).jobs == frozenset()
    await one.update("job", report(session, 1), rank=0)
    assert (await one.fleet.look()).jobs == {"job"}


async def test_bad_samples_count_once_each_epoch() -> None:
    one, two = replicas(MemoryStore())
    session = await formed(one, two)
    first, again = BadSample(0, 5, "k", "corrupt"), BadSample(1, 5, "k", "corrupt")
    for ledger, bad in ((one, (first,)), (two, (first, again)), (one, (again,))):
        await ledger.update("job", report(session, 1, bad), rank=0)
    listed = await two.quarantine.of("job")
    assert [(bad.sample, bad.key, bad.count, bad.last_epoch) for bad in listed.samples] == [(5, "k", 2, 1)]
    assert (listed.total, listed.beyond, listed.by_reason()) == (2, 0, {"corrupt": 2})


async def test_a_call_for_nothing_leaves_nothing_behind() -> None:
    one, _ = replicas(MemoryStore())
    with pytest.raises(JobUnknown):
        await one.update("job", claim(0))
    assert (await one.fleet.look()).jobs == frozenset()


async def test_losing_all_the_time_ends_in_a_conflict_that_may_be_retried() -> None:
    class Losing(MemoryStore):
        async def commit(self, expected, writes, hint=""):  # type: ignore[no-untyped-def]
            return 0

    one, _ = replicas(Losing())
    with pytest.raises(StoreConflict) as caught:
        await one.update("job", Open(SPEC, WORLD))
    assert caught.value.retriable
    assert caught.value.job == "job"


# --- what must not be lost, and what must --------------------------------------------------------------------------


async def test_a_commit_that_was_confirmed_while_an_attempt_began_counts() -> None:
    class Interrupted(CountingStore):
        """Lets a report in between the load and the write of a join."""

        between = None

        async def load(self, wanted):  # type: ignore[no-untyped-def]
            loaded: Loaded = await super().load(wanted)  # type: ignore[no-untyped-call]
            between, self.between = self.between, None
            if between is not None and any(table.kind == "ranks" for table in wanted):
                await between()
            return loaded

    store = Interrupted()
    one, two = replicas(store)
    session = await formed(one, two)
    reports = [replace(report(session, 3), rank=rank, nonce=f"n{rank}") for rank in range(WORLD)]
    for rank, each in enumerate(reports):
        await one.update("job", each, rank=rank)

    async def commits() -> None:
        for rank, each in list(enumerate(reports))[1:]:  # not rank 0's, whose record is written anyway
            await two.update("job", replace(each, consumed=9, committed=9), rank=rank)

    await one.update("job", replace(reports[0], consumed=9, committed=9), rank=0)
    workers = (await one.fleet.look()).workers
    store.between = commits  # type: ignore[assignment]
    outcome = await one.update("job", claim(0, attempt=2, nonce="x"), workers=workers)
    assert store.between is None
    assert outcome.state.session is not None
    assert outcome.state.session.fallback.next_batch == 9 * WORLD


async def test_an_attempt_begins_although_other_ranks_report_all_the_time() -> None:
    class Busy(MemoryStore):
        """Ranks that are ahead report between any load and write."""

        reports: tuple[Progress, ...] = ()
        other: Ledger | None = None

        async def load(self, wanted):  # type: ignore[no-untyped-def]
            loaded = await super().load(wanted)
            other, self.other = self.other, None
            if other is not None:
                for each in self.reports:
                    await other.update("job", replace(each, consumed=loaded.now_us, committed=5), rank=each.rank)
                self.other = other
            return loaded

    store = Busy()
    one, two = replicas(store)
    session = await formed(one, two)
    store.reports = tuple(replace(report(session, 5), rank=rank, nonce=f"n{rank}") for rank in range(1, WORLD))
    store.other = two
    outcome = await one.update("job", claim(0, attempt=2, nonce="x"))
    assert outcome.state.session is not None
    assert outcome.state.session.attempt == 2


def stated(name: str, **change: object) -> WorkerRecord:
    record = WorkerRecord(Endpoint(name, "1", "n", "g", ""), "fp", (), 0.0, 1, False, 0)
    return replace(record, **change)  # type: ignore[arg-type]


async def test_a_worker_record_that_cannot_be_read_is_skipped_and_written_anew() -> None:
    store = MemoryStore()
    one, two = replicas(store)
    await one.fleet.heartbeat(stated("a"), 10**9)
    for garbage in (b"{", b"[]", b"null", b'{"endpoint": 3}', b"\xff"):
        await store.commit({}, {Key(WORKERS, "b"): garbage})
        assert list((await two.fleet.look()).workers) == ["a"]
    await two.fleet.heartbeat(stated("b"), 10**9)
    assert sorted((await one.fleet.look()).workers) == ["a", "b"]


async def test_a_clock_that_is_put_back_keeps_no_dead_worker_alive() -> None:
    now_us = 1_700_000_000_000_000
    store = MemoryStore(lambda: now_us)
    ledger = Ledger(store, Rules(), Instruments(CollectorRegistry()), lambda: now_us)
    await ledger.fleet.heartbeat(stated("a"), 3_000_000)
    now_us -= 3_600_000_000
    assert (await ledger.fleet.look()).workers["a"].alive(now_us)
    now_us += 3_100_000
    fleet = await ledger.fleet.look()
    assert not fleet.workers["a"].alive(fleet.now_us)
    await ledger.fleet.heartbeat(stated("a"), 3_000_000)
    assert (await ledger.fleet.look()).workers["a"].alive(now_us)


async def test_a_job_that_nobody_used_for_long_is_forgotten_with_all_that_was_noted_of_it() -> None:
    day_us = 86_400_000_000
    now_us = 1_700_000_000_000_000
    store = MemoryStore(lambda: now_us)
    one, two = (Ledger(store, Rules(), Instruments(CollectorRegistry()), lambda: now_us) for _ in range(2))
    session = await formed(one, two)
    now_us += 20 * day_us
    await one.update("job", report(session, 1, (BadSample(0, 1, "k", "corrupt"),)), rank=0)
    now_us += 20 * day_us
    assert not await one.forget_job("job", 30 * day_us)  # opened 40 days ago, used 20 days ago
    now_us += 11 * day_us
    assert await one.forget_job("job", 30 * day_us)
    assert (await two.fleet.look()).jobs == frozenset()
    assert (await two.quarantine.of("job")).total == 0
    with pytest.raises(JobUnknown):
        await two.update("job", claim(0))
    assert (await formed(one, two)).attempt == 1  # the name is free
    assert (await two.fleet.look()).jobs == {"job"}


async def test_a_job_that_says_how_long_it_is_of_use_is_forgotten_after_that() -> None:
    """But never while it is used, nor later than any other."""
    minute_us, now_us = 60_000_000, 1_700_000_000_000_000
    ledger = Ledger(MemoryStore(lambda: now_us), Rules(), Instruments(CollectorRegistry()), lambda: now_us)
    for name, keep_s in (("short", 600), ("plain", 0), ("endless", 2**32 - 1)):
        await ledger.update(name, Open(replace(SPEC, name=name), 1, keep_s=keep_s))
    await ledger.update("short", Open(replace(SPEC, name="short"), 1))  # once more, by who does not say it: it holds
    now_us += 9 * minute_us
    assert not await ledger.forget_job("short", 90 * 1440 * minute_us)
    now_us += 2 * minute_us
    assert await ledger.forget_job("short", 90 * 1440 * minute_us)
    assert not await ledger.forget_job("plain", 90 * 1440 * minute_us)
    assert not await ledger.forget_job("endless", 90 * 1440 * minute_us)
    now_us += 90 * 1440 * minute_us
    assert await ledger.forget_job("plain", 90 * 1440 * minute_us)
    assert await ledger.forget_job("endless", 90 * 1440 * minute_us)


async def test_a_name_in_the_index_without_a_job_is_forgotten() -> None:
    one, _ = replicas(store := MemoryStore())
    await store.commit({}, {Key(JOBS, "ghost"): b"1"})
    assert await one.forget_job("ghost", 1)
    assert (await one.fleet.look()).jobs == frozenset()
