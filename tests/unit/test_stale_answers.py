"""Calls that are answered from what this replica read last: not from what the store had before it lost it, nor after a wait."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from headrace.coordinator.access import Access
from headrace.coordinator.grpc_api import CoordinatorService
from headrace.coordinator.heartbeats import HeartbeatRules
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.job_tables import job_table
from headrace.coordinator.manifests import Manifests
from headrace.core.events import Join, Observe, Open
from headrace.core.job import Stop
from headrace.testing.simulation.network import CallContext
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL
from tests.unit.session_world import SPEC
from tests.unit.test_board import World


async def no_manifest(address: str) -> object:
    raise AssertionError(address)


def service_of(world: World, ttl_s: float = 3.0) -> CoordinatorService:
    manifests = Manifests(no_manifest, 10.0)  # type: ignore[arg-type]
    beats = HeartbeatRules(1.0, ttl_s)
    return CoordinatorService(world.ledger, world.board, manifests, beats, Instruments(CollectorRegistry()), access=Access())


async def formed() -> World:
    world = World()
    await world.form()
    return world


async def first_table(world: World, rank: int, nonce: str, attempt: int = 1) -> pb.WatchSessionResponse:
    request = pb.WatchSessionRequest(id=pb.RankId(job="job", rank=rank, attempt=attempt, nonce=nonce))
    async with aclosing(service_of(world).WatchSession(request, CallContext())) as tables:  # type: ignore[type-var]
        async with asyncio.timeout(10):
            return await anext(tables)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("nonce", ["new", "n"])
async def test_a_session_that_began_after_the_store_was_emptied_is_not_told_of_the_one_before(size: int, nonce: str) -> None:
    """It has the same name and number. No pass came in between: the snapshot is that of the old one, which was to stop."""
    world = await formed()
    await world.ledger.update("job", Observe(1, 0, "n0", None, stop=Stop(7, "too many bad samples")), rank=0)
    await world.board.refresh()
    assert (await first_table(world, 0, "n0")).stop_why
    world.restore(({}, {}))
    await world.beat("c")
    await world.ledger.update("job", Open(replace(SPEC, seed=5), size))
    for rank in range(size):
        await world.ledger.update("job", Join(0, rank, size, f"{nonce}{rank}", None, "", 0, "n0", 0))
    for rank in range(size):
        table = await first_table(world, rank, f"{nonce}{rank}")
        assert not table.stop_why
        assert {endpoint.worker for endpoint in table.endpoints} == {"c"}


async def test_watchers_that_come_back_at_once_read_the_store_for_their_own_rank_alone() -> None:
    world = await formed()
    await world.board.refresh()
    looks = 0
    refresh = world.board.refresh

    async def counted(job: str | None = None) -> None:
        nonlocal looks
        looks += 1
        await refresh(job)

    world.board.refresh = counted  # type: ignore[method-assign]
    for _ in range(10):
        await first_table(world, 0, "n0")
    assert looks == 0


async def test_a_heartbeat_is_answered_although_a_look_at_the_fleet_takes_long() -> None:
    """Its worker lives by the answer: it waits less than a second, and then asks somebody else."""
    world = await formed()
    service = service_of(world, ttl_s=0.4)

    async def endless(job: str | None = None) -> None:
        await asyncio.Event().wait()

    world.board.refresh = endless  # type: ignore[method-assign]
    owner = next(worker for worker in world.board.workers() if worker.endpoint.worker == "a")
    request = pb.HeartbeatRequest(
        protocol=PROTOCOL, endpoint=convert.endpoint_to_proto(owner.endpoint), fingerprint="fp", ops=SPEC.pipeline.op_names,
        draining=True,
    )  # fmt: skip
    async with asyncio.timeout(20):
        answer = await service.Heartbeat(request, CallContext())
    assert sum(len(leases.lanes) for leases in answer.leases) == 6, "what it holds until others have it"


async def test_a_heartbeat_to_a_replica_that_has_read_nothing_yet_takes_no_lease_away() -> None:
    """However long the first look takes: an answer without leases would end them."""
    world = await formed()
    world.replica()
    service = service_of(world, ttl_s=0.01)
    go = asyncio.Event()
    refresh = world.board.refresh

    async def later(job: str | None = None) -> None:
        await go.wait()
        await refresh(job)

    world.board.refresh = later  # type: ignore[method-assign]
    request = pb.HeartbeatRequest(
        protocol=PROTOCOL, endpoint=pb.Endpoint(worker="a", incarnation="a-1", node="n", grpc="g"), fingerprint="fp",
        ops=SPEC.pipeline.op_names,
    )  # fmt: skip
    asking = asyncio.create_task(service.Heartbeat(request, CallContext()))
    await asyncio.wait({asking}, timeout=0.1)
    assert not asking.done()
    go.set()
    assert sum(len(leases.lanes) for leases in (await asking).leases) == 6


async def test_all_leases_that_the_store_lost_are_told_again_before_anybody_waits_for_a_look_at_them() -> None:
    """A worker waits less than a second for the answer, and has leases in many jobs."""
    world = await formed()
    names = ["job", "job-2", "job-3"]
    for name in names[1:]:
        await world.ledger.update(name, Open(replace(SPEC, name=name), 1))
        await world.ledger.update(name, Join(0, 0, 1, "n0", None, "", 0, "n0", 0))
    await world.board.refresh()
    request = pb.HeartbeatRequest(
        protocol=PROTOCOL, endpoint=pb.Endpoint(worker="a", incarnation="a-1", node="n", grpc="g"), fingerprint="fp",
        ops=SPEC.pipeline.op_names,
    )  # fmt: skip
    held = (await service_of(world).Heartbeat(request, CallContext())).leases
    assert sorted(leases.job for leases in held) == names
    world.restore(({}, {}))
    for name in names:
        world.board._drop(name)

    async def endless(job: str | None = None) -> None:
        await asyncio.Event().wait()

    world.board.refresh = endless  # type: ignore[method-assign]
    request = pb.HeartbeatRequest(
        protocol=PROTOCOL, endpoint=pb.Endpoint(worker="a", incarnation="a-1", node="n", grpc="g"), fingerprint="fp",
        ops=SPEC.pipeline.op_names, held=held,
    )  # fmt: skip
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await service_of(world).Heartbeat(request, CallContext())
    for name in names:
        lanes = (await world.load({job_table(name, "lanes"): None})).tables[job_table(name, "lanes")]
        assert len(lanes) == 6, name
