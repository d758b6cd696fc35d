"""What keeps a coordinator's work from growing with workers times jobs: shared work, kept answers, and that they are right."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.coordinator.holdings import Holdings
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.shared import Shared
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import StateMismatch
from headrace.core.events import JobState, Join, Joined, Open, Rules
from headrace.core.fleet import Fleet, Roster, fleet_for
from headrace.core.job import Endpoint, JobSpec, StreamState
from headrace.core.lease import NEARLY, best_load, deal
from headrace.core.records import LaneRecord, WorkerRecord

SPEC = JobSpec("job", "/data", 4, manifest_hash="aa", samples=4000)
WORLD = 8

# --- work that is shared ----------------------------------------------------------------------------------------------


async def test_who_asks_while_nothing_has_begun_shares_a_run_that_begins_later() -> None:
    begun: list[int] = []
    go = asyncio.Event()

    async def work(key: int) -> int:
        begun.append(key)
        await go.wait()
        return len(begun)

    shared = Shared(work, asyncio.Lock())
    first = asyncio.create_task(shared.run(1))
    await asyncio.sleep(0)
    late = [asyncio.create_task(shared.run(1)) for _ in range(100)]  # the first has begun: it may have read already
    await asyncio.sleep(0)
    go.set()
    assert await first == 1
    assert set(await asyncio.gather(*late)) == {2}
    assert begun == [1, 1]


async def test_one_who_is_cancelled_takes_nobody_with_him() -> None:
    turns = asyncio.Lock()
    runs = Counter[int]()

    async def work(key: int) -> int:
        runs[key] += 1
        return key

    shared = Shared(work, turns)
    async with turns:
        asking = [asyncio.create_task(shared.run(1)) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()  # who would have done it
        asking[1].cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert await asyncio.gather(*asking[2:]) == [1, 1, 1]
    assert runs[1] == 1


async def test_all_who_share_a_run_are_told_of_its_failure_and_the_next_one_runs() -> None:
    turns = asyncio.Lock()
    fail = True

    async def work(key: int) -> int:
        if fail:
            raise ValueError(key)
        return key

    shared = Shared(work, turns)
    async with turns:
        asking = [asyncio.create_task(shared.run(1)) for _ in range(3)]
        await asyncio.sleep(0)
    assert [type(found) for found in await asyncio.gather(*asking, return_exceptions=True)] == [ValueError] * 3
    fail = False
    assert await shared.run(1) == 1


# --- what is kept with a roster -----------------------------------------------------------------------------------------

workers = st.lists(
    st.tuples(st.sampled_from(["fp", "other"]), st.booleans(), st.integers(50, 150), st.booleans(), st.integers(0, 3)),
    max_size=12,
)


def roster(rows: list[tuple[str, bool, int, bool, int]]) -> dict[str, WorkerRecord]:
    found = {}
    for number, (fingerprint, draining, until_us, unable, lag) in enumerate(rows):
        record = WorkerRecord(
            Endpoint(f"w{number}", "1", f"n{number % 3}", "g", ""), fingerprint, SPEC.pipeline.op_names, number * 10.0, 2,
            draining, until_us, (("job", number, 4.0 * lag),), ("job",) if unable else (),
        )  # fmt: skip
        found[f"w{number}"] = record
    return found


@given(workers, st.lists(st.tuples(st.integers(40, 160), st.booleans(), st.sampled_from(["", "fp", "any"])), max_size=8))
def test_a_roster_that_is_asked_often_answers_as_one_that_was_never_asked(
    rows: list[tuple[str, bool, int, bool, int]], asked: list[tuple[int, bool, str]]
) -> None:
    records = roster(rows)
    kept = Roster(records)
    for now_us, blind, fingerprint in asked:
        for name in ("job", "another"):
            job = replace(SPEC, name=name, fingerprint=fingerprint)
            assert fleet_for(job, kept, now_us, 5.0, blind=blind) == fleet_for(job, records, now_us, 5.0, blind=blind)


# --- dealing ------------------------------------------------------------------------------------------------------------

speeds = st.dictionaries(st.sampled_from([f"w{i}" for i in range(30)]), st.floats(50, 3000), min_size=1)


@given(st.integers(1, 60), speeds, st.sampled_from(["one", "two", "three"]))
@example(3, {"w0": 500.0, "w1": 500.0, "w2": 601.0, "w3": 1201.0}, "one")
@example(5, {"w0": 601.0, "w1": 3000.0, "w2": 50.0, "w3": 50.0, "w4": 2993.9, "w5": 50.0, "w6": 3000.0}, "one")
def test_who_is_drawn_is_nearly_as_well_off_as_the_best(lanes: int, speed: dict[str, float], job: str) -> None:
    fleet = Fleet(speed, {})
    share = Counter(deal({}, lanes, fleet, job=job).values())
    nearly = NEARLY if lanes < len(speed) else 1.0
    assert max(count / speed[name] for name, count in share.items()) <= nearly * best_load(lanes, fleet) * (1 + 1e-9)


def test_speeds_that_wobble_move_no_lane_where_most_workers_have_none() -> None:
    speed = {f"w{number:03d}": 1000.0 + number % 7 for number in range(100)}
    dealt = deal({}, 12, Fleet(speed, {}), 4, job="job")
    other = {name: 1000.0 + number * 37 % 90 for number, name in enumerate(speed)}
    barred = frozenset({(dealt[0], 0)})
    after = deal(dealt, 12, Fleet(other, {}, barred=barred), 4, job="job")
    assert [lane for lane in dealt if after[lane] != dealt[lane]] == [0]
    slow = {**other, dealt[5]: 10.0}
    after = deal(dealt, 12, Fleet(slow, {}), 4, job="job")
    assert [lane for lane in dealt if after[lane] != dealt[lane]] == [5]


@given(st.integers(1, 60), speeds, st.sampled_from(["one", "two"]))
def test_what_was_dealt_stays(lanes: int, speed: dict[str, float], job: str) -> None:
    fleet = Fleet(speed, {})
    dealt = deal({}, lanes, fleet, 2, job=job)
    assert set(dealt) == set(range(lanes))
    assert deal(dealt, lanes, fleet, 2, job=job) == dealt


def test_jobs_with_fewer_lanes_than_workers_do_not_sit_on_the_same_ones() -> None:
    fleet = Fleet({f"w{number:03d}": 1000.0 + number for number in range(200)}, {})
    held = Counter[str]()
    for job in range(20):
        held.update(deal({}, 12, fleet, 1, job=f"job-{job}").values())
    assert held.total() == 240
    assert len(held) > 100  # without a draw: 12
    assert max(held.values()) < 8


def test_dealing_to_a_large_fleet_takes_no_time_by_lanes_times_workers() -> None:
    """CPU time, of which a solution that looks at every worker for every lane takes a minute."""
    begun_s = time.process_time()
    fleet = Fleet({f"w{number:05d}": 1000.0 + number % 100 for number in range(10_000)}, {})
    dealt = deal({}, 6144, fleet, 8, job="job")
    assert len(set(dealt.values())) == 6144
    barred = replace(fleet, barred=frozenset({(dealt[0], 0), (dealt[9], 1)}), kept={})
    assert deal(dealt, 6144, barred, 8, job="job")[0] != dealt[0]
    lagging = replace(fleet, lagging=frozenset((owner, lane) for lane, owner in list(dealt.items())[:1000]))
    moved = deal(dealt, 6144, lagging, 8, job="job")
    assert sum(moved[lane] != owner for lane, owner in dealt.items()) == 1000
    one = deal({}, 6144, Fleet({"a": 1.0}, {}), 8)
    two = deal(one, 6144, Fleet({"a": 1.0, "b": 1.0}, {}), 8)
    assert Counter(two.values()) == {"a": 3072, "b": 3072}
    assert time.process_time() - begun_s < 30


# --- who holds what -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["j1", "j2"]), st.lists(st.sampled_from(["", "a", "b"]), max_size=6)), max_size=8))
def test_holdings_are_what_the_lanes_say(steps: list[tuple[str, list[str]]]) -> None:
    holdings, jobs = Holdings(), dict[str, dict[int, LaneRecord]]()
    for job, owners in steps:
        jobs[job] = {number: LaneRecord(owner, f"{owner}-1", number + 7) for number, owner in enumerate(owners)}
        if owners:
            holdings.note(job, jobs[job])
        else:
            holdings.drop(job)
        for worker in ("a", "b"):
            expected = {
                name: [(n, lane.token) for n, lane in lanes.items() if lane.owner == worker] for name, lanes in jobs.items()
            }
            assert holdings.of(worker, f"{worker}-1") == sorted((name, held) for name, held in expected.items() if held)
            assert holdings.of(worker, "another") == []


# --- claims that are repeated -------------------------------------------------------------------------------------------


class CountingStore(MemoryStore):
    """Counts what is read."""

    read = 0

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        loaded = await super().load(wanted)
        self.read += sum(len(found) for found in loaded.tables.values())
        return loaded


def claim(rank: int, attempt: int) -> Join:
    return Join(attempt, rank, WORLD, f"n{rank}", None, "", 0, "n", 0)


async def forming(ledger: Ledger, ranks: int) -> JobState:
    await ledger.update("job", Open(SPEC, WORLD))
    for rank in range(ranks):
        outcome = await ledger.update("job", claim(rank, 1))
    return outcome.state


@pytest.fixture
def world() -> tuple[CountingStore, Ledger, list[int]]:
    now_us = [1_700_000_000_000_000]
    store = CountingStore(lambda: now_us[0])
    return store, Ledger(store, Rules(), Instruments(CollectorRegistry()), lambda: now_us[0]), now_us


async def test_a_claim_reads_its_own_record_and_one_that_is_repeated_nothing(
    world: tuple[CountingStore, Ledger, list[int]],
) -> None:
    store, ledger, now_us = world
    state = await forming(ledger, WORLD - 2)
    store.read = 0
    told = await ledger.claim("job", claim(0, 1), state)
    assert told == Joined(1, None, (WORLD - 2, WORLD - 1))
    assert store.read == 0
    told = await ledger.claim("job", claim(WORLD - 2, 0), state)  # its first: attempt 0 is whichever is being formed
    assert told == Joined(1, None, (WORLD - 1,))
    assert store.read == 2  # job, session
    now_us[0] += 4_000_000  # of 5 s
    store.read = 0
    told = await ledger.claim("job", claim(0, 1), state)
    assert told is not None
    assert store.read == 3  # and its own record
    now_us[0] += 2_000_000
    outcome = await ledger.update("job", claim(WORLD - 1, 1))
    lapsed = next(effect for effect in outcome.effects if isinstance(effect, Joined))
    assert lapsed.awaited == tuple(range(1, WORLD - 1))  # 0 was renewed


async def test_what_changes_more_than_a_claim_is_decided_by_all_records(world: tuple[CountingStore, Ledger, list[int]]) -> None:
    _, ledger, now_us = world
    state = await forming(ledger, WORLD - 1)
    assert await ledger.claim("job", claim(WORLD - 1, 1), state) is None  # it forms the session
    assert await ledger.claim("job", replace(claim(0, 1), nonce="another"), state) is None  # refused
    assert await ledger.claim("job", claim(0, 1), None) is None  # this replica has yet to see it
    assert await ledger.claim("job", claim(0, 2), state) is None  # another attempt
    whole = await forming(ledger, WORLD)
    told = await ledger.claim("job", claim(0, 1), whole)
    assert told is not None
    assert told.session is not None
    now_us[0] += 10_000_000
    assert await ledger.claim("job", replace(claim(0, 0), nonce="next"), whole) is None  # all are gone: a new attempt


async def test_ranks_that_disagree_are_told_so_although_the_snapshot_knows_all_claims(
    world: tuple[CountingStore, Ledger, list[int]],
) -> None:
    _, ledger, _ = world
    await ledger.update("job", Open(SPEC, 2))
    odd = [replace(claim(rank, 1), world=2, state=StreamState(0, 0, rank, 2)) for rank in range(2)]
    state = (await ledger.update("job", odd[0])).state
    assert await ledger.claim("job", odd[1], state) is None
    with pytest.raises(StateMismatch):
        await ledger.update("job", odd[1])
    assert await ledger.claim("job", odd[0], replace(state, ranks={**state.ranks, 1: state.ranks[0]})) is None
