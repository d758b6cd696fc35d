"""Heartbeats that are answered from what a worker was told last, and what a replica makes of those that it answers too late."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from headrace.coordinator import board, heartbeats
from headrace.coordinator.fleet_ledger import WORKERS
from headrace.coordinator.lane_tables import seen_by_watchers
from headrace.coordinator.sight import Sight
from headrace.core.errors import (
    HeadraceError,
    JobMismatch,
    RankClaimed,
    RecordInvalid,
    StaleToken,
    StateInvalid,
    StoreUnavailable,
)
from headrace.core.events import Adopt, Join, Leave, Open, Rules
from headrace.core.lease import BEATS_A_TTL, heartbeat_patience_s
from headrace.core.tick import tick
from headrace.testing.simulation.network import Aborted, CallContext
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL
from tests.unit.session_world import SPEC, S
from tests.unit.test_board import TTL_US, World
from tests.unit.test_stale_answers import formed, service_of

PATIENCE_US = int(heartbeat_patience_s(TTL_US / 1e6) * 1e6)


def request_of(worker: str, held: list[pb.SessionLeases], incarnation: int = 1) -> pb.HeartbeatRequest:
    endpoint = pb.Endpoint(worker=worker, incarnation=f"{worker}-{incarnation}", node="n", grpc="g")
    return pb.HeartbeatRequest(
        protocol=PROTOCOL, endpoint=endpoint, fingerprint="fp", ops=SPEC.pipeline.op_names, held=held, threads=1
    )


async def more_jobs(world: World, count: int) -> None:
    for number in range(count):
        await world.ledger.update(f"job-{number}", Open(replace(SPEC, name=f"job-{number}"), 1))
        await world.ledger.update(f"job-{number}", Join(0, 0, 1, "n0", None, "", 0, "n0", 0))


async def test_who_states_what_he_was_told_has_nothing_read_and_nothing_made_for_him(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await formed()
    await more_jobs(world, 3)
    await world.board.refresh()
    service = service_of(world)
    first = await service.Heartbeat(request_of("a", []), CallContext())
    assert len(first.leases) == 4
    made: list[object] = []
    for name in ("adopt_of", "_made"):
        of = getattr(heartbeats, name)
        monkeypatch.setattr(heartbeats, name, lambda *given, of=of: made.append(given) or of(*given))
    again = await service.Heartbeat(request_of("a", list(first.leases)), CallContext())
    assert again == first
    assert not made
    await service.Heartbeat(request_of("a", list(first.leases)[:2]), CallContext())
    assert not made
    stated = list(first.leases)
    stated[1].tokens[0] -= 1
    await service.Heartbeat(request_of("a", stated), CallContext())
    assert len(made) == 1, "one that differs is looked at"


@pytest.mark.parametrize("seed", range(20))
async def test_a_replica_that_remembers_answers_as_one_that_does_not(seed: int) -> None:
    rng, world = Random(seed), await formed()
    await more_jobs(world, 2)
    await world.board.refresh()
    service, incarnation = service_of(world), 1
    told: dict[str, list[pb.SessionLeases]] = {"a": [], "b": [], "c": []}
    kept = world.snapshot()
    for number in range(40):
        match rng.randrange(8):
            case 0:
                await world.go(rng.choice((0.5, 4)), rng.choice(("a", "b", "ab")))
            case 1:
                with suppress(RankClaimed):
                    await more_jobs(world, rng.randrange(1, 4))
            case 2:
                await world.ledger.update("job-0", Join(2 + number, 0, 1, f"n{number}", None, "", 0, "n0", 0))
            case 3:
                kept = world.snapshot()
            case 4:
                world.restore(kept)  # the store lost what came since
            case 5:
                incarnation += 1  # of worker c
            case _:
                await world.board.refresh()
        worker = rng.choice("abc")
        held = told[worker] if rng.random() < 0.8 else told[worker][:1]
        request = request_of(worker, held, incarnation if worker == "c" else 1)
        answer = await service.Heartbeat(request, CallContext())
        fresh = await service_of(world).Heartbeat(request, CallContext())
        assert sorted(answer.leases, key=lambda leases: leases.job) == sorted(fresh.leases, key=lambda leases: leases.job)
        told[worker] = list(answer.leases)


async def test_a_token_that_the_store_lost_is_taken_over_though_the_worker_states_what_it_was_told() -> None:
    world = await formed()
    before = world.snapshot()
    service = service_of(world)
    told = await service.Heartbeat(request_of("a", []), CallContext())
    newer = pb.SessionLeases()
    newer.CopyFrom(told.leases[0])
    newer.tokens[0] += 5
    await world.ledger.update("job", Adopt("a", "a-1", newer.attempt, ((newer.lanes[0], newer.tokens[0]),), None))
    await world.board.refresh()
    told = await service.Heartbeat(request_of("a", []), CallContext())
    assert told.leases[0].tokens[0] == newer.tokens[0]
    world.restore(before)
    await world.board.refresh()
    answer = await service.Heartbeat(request_of("a", list(told.leases)), CallContext())
    assert answer.leases[0].tokens[0] == newer.tokens[0]


async def test_what_workers_that_are_gone_were_told_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "_LEAST_ROOM", 8)
    world = await formed()
    service = service_of(world)
    for number in range(50):
        await service.Heartbeat(request_of(f"w{number}", []), CallContext())
        world.now_us += 3600 * S
        await world.beat("ab")
        await world.ledger.fleet.forget(await world.ledger.fleet.look(), 600 * S)
        await world.board.refresh()
    assert len(service._heartbeats._told) <= heartbeats._LEAST_ROOM + 1


async def test_no_lane_moves_while_heartbeats_are_answered_too_late_to_be_heard() -> None:
    """It would make an overloaded replica still slower: it logs, writes and tells each of them."""
    world = await formed()
    for _ in range(20):
        await world.go(0.5, "a")
        with world.board.sight.hearing():  # of b's, which gave up meanwhile
            world.own_us += PATIENCE_US
        with world.board.sight.hearing():
            world.own_us += PATIENCE_US // 10
    assert (world.owners(), world.moved()) == ({"a", "b"}, 0)
    for _ in range(24):
        world.own_us += S // 2
        await world.go(0.5, "a")
    assert world.owners() == {"a"}, "and once they are heard, silence is silence"


async def test_a_replica_that_is_late_asks_for_fewer_heartbeats_for_a_while_and_looks_at_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await formed()
    service = service_of(world)  # which is told every second, of three

    class Late(CallContext):
        def time_remaining(self) -> float:  # type: ignore[override]
            return 0.01

    async def told(context: CallContext, times: int) -> float:
        for _ in range(times):
            world.own_us += S // 2
            await service.Heartbeat(request_of("a", []), context)
            await world.board.refresh()
        return (await service.Heartbeat(request_of("a", []), context)).interval.ToMicroseconds() / 1e6

    assert await told(CallContext(), 4) == 1.0
    assert await told(Late(), 1) == 1.0, "one may be a hiccup"
    assert await told(Late(), 4) == pytest.approx(3.0 / BEATS_A_TTL)
    looks: list[object] = []
    monkeypatch.setattr(world.board, "refresh", lambda *names: looks.append(names))
    await service.Heartbeat(request_of("c", []), Late())
    assert not looks, "of a new worker: the next tick finds it"
    monkeypatch.undo()
    assert await told(CallContext(), 20) == pytest.approx(3.0 / BEATS_A_TTL), "or it would be as late again at once"
    world.own_us += 61 * S
    assert await told(CallContext(), 1) == 1.0
    kinds = [event.kind for event in world.ledger.events.newest()[::-1] if "overload" in event.kind]
    assert kinds == ["overloaded", "overload_over"]


async def test_one_moment_that_made_all_late_hides_nobody_for_long() -> None:
    """However often anybody looks, and however few workers there are."""
    world = await formed()
    for second in range(10):
        for _ in range(3):
            with world.board.sight.hearing(0.7 if second == 2 else 0.0):
                world.own_us += 1000
        world.own_us += S
        await world.go(1, "a")
        for _ in range(10):
            await world.board.refresh("job")
        assert not world.board.sight.strained
    assert world.owners() == {"a"}


async def test_heartbeats_that_the_store_does_not_take_are_not_heard() -> None:
    """It answers at once, and looks that write nothing go on: out of memory, say, or a replica by now."""
    world = await formed()
    for _ in range(8):
        await world.go(0.5, "a")
        with suppress(StoreUnavailable), world.board.sight.hearing():
            raise StoreUnavailable("OOM command not allowed")
        world.own_us += S // 2
    assert world.owners() == {"a", "b"}
    assert not world.board.sight.strained, "fewer heartbeats would be no help"


async def test_a_loop_that_is_blocked_again_and_again_hears_nobody() -> None:
    """Calls whose deadline passed meanwhile never get to us."""
    now_us = 0
    sight = Sight(15 * S, 1.0, lambda: now_us)
    feeling = asyncio.create_task(sight.feel())
    for block in range(5):
        assert not sight.deaf or block > 1, "once or twice may be a hiccup"
        await asyncio.sleep(0)
        now_us += 3 * S  # its sleep of a tenth of a second took that long
        await asyncio.sleep(0.15)
    assert sight.deaf
    now_us += 40 * S
    assert not sight.deaf
    feeling.cancel()


@pytest.mark.parametrize("hangs", [True, False])
def test_heartbeats_that_a_hanging_store_keeps_are_no_overload(hangs: bool) -> None:
    """Their workers give them up before the store's own deadline says so."""
    now_us, answered_us = 100 * S, 100 * S
    sight = Sight(3 * S, 1.0, lambda: now_us, lambda: answered_us)
    for _ in range(20):
        with suppress(asyncio.CancelledError), sight.hearing():
            now_us += PATIENCE_US
            if not hangs:
                answered_us = now_us
            raise asyncio.CancelledError
        now_us += S // 10
        sight.look(now_us, 0)
    assert sight.deaf, "nobody can be heard either way"
    assert sight.strained is not hangs


def test_a_process_whose_name_another_has_taken_keeps_nobody_else_from_being_heard() -> None:
    """It is refused before the store is asked, again and again."""
    now_us = 100 * S
    sight = Sight(3 * S, 1.0, lambda: now_us, lambda: 0)
    for _ in range(20):
        with suppress(StaleToken), sight.hearing():
            raise StaleToken("another process now runs as worker w")
        now_us += S // 4
        sight.look(now_us, 0)
        sight.looked(now_us)
    assert not sight.deaf and not sight.strained


async def test_few_late_heartbeats_among_many_hide_nobody_that_died() -> None:
    world = await formed()
    for _ in range(8):
        await world.go(0.5, "a")
        for place in range(10):
            with world.board.sight.hearing():
                world.own_us += PATIENCE_US if place < 2 else 1000
    assert world.owners() == {"a"}


async def test_a_job_that_all_have_left_is_let_go_of_though_nobody_can_be_heard() -> None:
    """A goodbye is no silence; and what is done with is a part of the load."""
    world = await formed()
    await world.ledger.update("job", Leave(1, 0, "n0", None), rank=0)
    for _ in range(4):
        world.now_us += S // 2
        await world.beat("ab")
        for _ in range(3):
            with world.board.sight.hearing(1.0):
                world.own_us += S // 4
        await world.board.refresh()
    assert world.board.sight.blind
    assert world.owners() == {""}


async def test_ranks_that_are_not_known_again_yet_may_live() -> None:
    """The store lost all; of two ranks one has said goodbye since, and the other has yet to be heard of."""
    world = await formed()
    job = world.board.job("job")
    assert job is not None and job.session is not None
    left = {0: replace(job.ranks[0], left=True)}
    two = replace(job, session=replace(job.session, world=2), ranks=left)
    now_us = world.now_us + 100 * S
    held, _ = tick(two, now_us, Rules(), 1, blind=True)
    assert {lane.owner for lane in held.lanes.values()} == {"a", "b"}
    gone, _ = tick(replace(two, session=job.session), now_us, Rules(), 1, blind=True)
    assert {lane.owner for lane in gone.lanes.values()} == {""}


async def test_a_lane_table_that_never_changes_is_told_with_the_time_of_now_and_then() -> None:
    """Ranks take no token that is a day newer than the table."""
    world = await formed()

    def table() -> pb.WatchSessionResponse:
        job = world.board.job("job")
        assert job is not None
        return world.board.lane_table(job)

    first = table()
    assert table() is first
    await world.go(1, "ab")
    assert table() is first, "what ranks report is not in it"
    world.now_us += 3600 * S
    await world.board.refresh()
    assert table().version - first.version >= 3600 * S


async def test_a_worker_that_serves_elsewhere_under_the_same_lease_is_seen_by_watchers() -> None:
    """The fleet is read before the job: lanes may be newer than what is known of their owner."""
    world = await formed()
    job = world.board.job("job")
    assert job is not None
    worker = job.workers["a"]
    moved = replace(worker, endpoint=replace(worker.endpoint, grpc="elsewhere:1"))
    assert seen_by_watchers(job) != seen_by_watchers(replace(job, workers={**job.workers, "a": moved}))
    newer = replace(worker, alive_until_us=worker.alive_until_us + S, samples_per_s=5.0)
    assert seen_by_watchers(job) == seen_by_watchers(replace(job, workers={**job.workers, "a": newer}))


@pytest.mark.parametrize("after_s", [0.0, 0.05])
async def test_a_store_that_hangs_is_not_asked_for_each_job_in_turn(after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that refuses some requests at once is: it may do well with the other jobs."""
    monkeypatch.setattr(board, "_HANGS_S", 0.05)
    world = await formed()
    await more_jobs(world, 30)
    await world.board.refresh()
    asked, load = 0, world.load

    async def hangs(wanted):  # type: ignore[no-untyped-def]
        nonlocal asked
        if WORKERS in wanted:
            return await load(wanted)
        asked += 1
        await asyncio.sleep(after_s)
        raise StoreUnavailable("timed out")

    world.load = hangs  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await world.board.refresh()
    assert asked <= 8 if after_s else asked == 62


@pytest.mark.parametrize(
    "wrong",
    [JobMismatch("another plan", job="job-0"), RecordInvalid("no record", job="job-0"), StateInvalid("odd", job="job-0")],
)
async def test_what_is_wrong_with_one_job_keeps_no_worker_from_the_others(
    wrong: HeadraceError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that cannot be read, or a name under which the store has another job now."""
    world = await formed()
    await more_jobs(world, 3)
    await world.board.refresh()
    service = service_of(world)
    held = list((await service.Heartbeat(request_of("a", []), CallContext())).leases)
    assert len(held) == 4
    newer = [pb.SessionLeases.FromString(lease.SerializeToString()) for lease in held]
    for lease in newer:
        lease.tokens[0] += 1  # news of all
    update, taken = world.ledger.update, set[str]()

    async def updated(job: str, event: object) -> object:
        taken.add(job)
        if job == "job-0":
            raise wrong
        return await update(job, event)  # type: ignore[arg-type]

    monkeypatch.setattr(world.ledger, "update", updated)
    with capture_logs() as logs:
        for _ in range(3):
            answer = await service.Heartbeat(request_of("a", newer), CallContext())
    assert taken == {lease.job for lease in held}
    assert {lease.job for lease in answer.leases} == taken, "and it is told what it holds"
    assert [line["job"] for line in logs if line["event"] == "leases_not_taken"] == ["job-0"], "told once"


async def test_a_store_that_is_away_is_told_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leases are kept then; an answer without them would take them away."""
    world = await formed()
    service = service_of(world)
    held = list((await service.Heartbeat(request_of("a", []), CallContext())).leases)
    held[0].tokens[0] += 1

    async def away(*_: object) -> object:
        raise StoreUnavailable("away")

    monkeypatch.setattr(world.ledger, "update", away)
    with pytest.raises(Aborted, match="away"):
        await service.Heartbeat(request_of("a", held), CallContext())
