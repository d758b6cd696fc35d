"""The intake against the worker's real servers, with a producer that costs nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import Unauthenticated, WaitTimeout
from headrace.core.job import Endpoint, LaneTable, Session
from headrace.core.job_token import hashes
from headrace.testing.null_producer import NullProducer, pattern
from headrace.wire import slot_format
from headrace.wire.calls import Calls
from headrace.wire.secret import Secret
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import GrpcServer
from headrace.worker.serve_local import LocalServer
from tests.integration.fake_worker import NODE, small_session

DEADLINE_S = 20.0


@asynccontextmanager
async def serving(session: Session, directory: Path, token: str = "") -> AsyncIterator[tuple[NullProducer, LaneTable]]:
    """Both servers of one worker, and a table that gives it all lanes."""
    producer = NullProducer(session.job.pipeline.shape(session.job.batch_size), window=session.window)
    register = RankRegister(producer, worker="w0", tokens_of=lambda job: hashes(job, [token]) if token else ())
    local, remote = LocalServer(register, directory / "w0.sock"), GrpcServer(register, "127.0.0.1:0")
    await local.start()
    await remote.start()
    endpoint = Endpoint("w0", "1", NODE, f"127.0.0.1:{remote.port}", str(directory / "w0.sock"))
    lanes = session.lanes
    try:
        yield producer, LaneTable(1, session.window, ("w0",) * lanes, (1,) * lanes, {"w0": endpoint})
    finally:
        await local.close(0.2)
        await remote.close(0.2)


def eat(intake: ThreadIntake, count: int) -> None:
    for index in range(count):
        taken = intake.take(index, DEADLINE_S)
        with slot_format.pixels(taken.slot, taken.header.pixel_bytes) as pixels:
            assert bytes(pixels) == pattern(index, len(pixels))
        del taken
        intake.release(index + 1)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_batches_come_whole_and_in_order(tmp_path: Path, transport: TransportChoice) -> None:
    session = small_session(side=256, batch_size=4)
    async with serving(session, tmp_path) as (_, table):
        intake = ThreadIntake(session, 0, "n", NODE, transport=transport)
        try:
            intake.update(table)
            await asyncio.to_thread(eat, intake, 30)
            assert intake.status().transports["w0"][0] == transport
        finally:
            await asyncio.to_thread(intake.close)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_a_trainer_that_stalls_holds_its_slots_and_another_rank_goes_on(
    tmp_path: Path, transport: TransportChoice
) -> None:
    session = small_session(world=2)
    async with serving(session, tmp_path) as (producer, table):
        intakes = [ThreadIntake(session, rank, "n", NODE, transport=transport) for rank in (0, 1)]
        try:
            for intake in intakes:
                intake.update(table)
            await asyncio.to_thread(intakes[0].take, 0, DEADLINE_S)
            await asyncio.to_thread(eat, intakes[1], 60)
            assert {index for rank, index in producer.made if rank == 0} <= set(range(session.window))
            await asyncio.to_thread(eat, intakes[0], 10)
        finally:
            for intake in intakes:
                await asyncio.to_thread(intake.close)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_a_larger_window_is_taken_up(tmp_path: Path, transport: TransportChoice) -> None:
    session = small_session()
    async with serving(session, tmp_path) as (producer, table):
        intake = ThreadIntake(session, 0, "n", NODE, transport=transport)
        try:
            intake.update(table)
            await asyncio.to_thread(intake.take, 2, DEADLINE_S)
            producer.window = 7
            intake.update(LaneTable(2, 7, table.owners, table.tokens, table.endpoints))
            await asyncio.to_thread(intake.take, 6, DEADLINE_S)
            await asyncio.to_thread(eat, intake, 20)
        finally:
            await asyncio.to_thread(intake.close)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
async def test_the_ranks_token_is_checked(tmp_path: Path, transport: TransportChoice) -> None:
    session = small_session()
    async with serving(session, tmp_path, token="the-token-of-this-job") as (_, table):
        for token in ("the-token-of-this-job", "a-guess-of-that-token"):
            intake = ThreadIntake(session, 0, "n", NODE, transport=transport, calls=Calls(token=Secret("token", text=token)))
            try:
                intake.update(table)
                if token == "the-token-of-this-job":
                    await asyncio.to_thread(eat, intake, 3)
                else:
                    with pytest.raises(Unauthenticated):
                        await asyncio.to_thread(intake.take, 0, DEADLINE_S)
            finally:
                await asyncio.to_thread(intake.close)


async def test_a_worker_that_stops_is_waited_for_by_name(tmp_path: Path) -> None:
    session = small_session()
    intake = ThreadIntake(session, 0, "n", NODE)
    try:
        async with serving(session, tmp_path) as (_, table):
            intake.update(table)
            await asyncio.to_thread(eat, intake, 4)
        await asyncio.to_thread(intake.take, 5, DEADLINE_S)
        start_s = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"worker w0.*no connection"):
            await asyncio.to_thread(intake.take, 20, 1.0)
        assert time.monotonic() - start_s >= 1.0
        async with serving(session, tmp_path) as (_, table):
            intake.update(LaneTable(2, table.window, table.owners, table.tokens, table.endpoints))
            for index in range(4, 10):
                await asyncio.to_thread(intake.take, index, DEADLINE_S)
                intake.release(index + 1)
    finally:
        await asyncio.to_thread(intake.close)
