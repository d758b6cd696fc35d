"""What somebody else wrote past us into Redis: told where it is used, and nothing else stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry

from headrace.coordinator.board import Board
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.store import Key, Table
from headrace.coordinator.store_address import connect
from headrace.coordinator.store_redis import RedisStore
from headrace.core.errors import RecordInvalid
from headrace.core.events import Open, Rules, Tick
from headrace.core.job import JobSpec
from headrace.testing.processes import free_port
from tests.contract.test_store import valkey_server

MAIN = Table("job:a", "main")
SPEC = JobSpec("a", "/data", 64, manifest_hash="aa", samples=4000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tuple[RedisStore, redis.asyncio.Redis]]:
    with valkey_server(free_port(), tmp_path) as address:
        made = connect(address)
        client = redis.asyncio.Redis.from_url(address)
        yield made, client
        await client.aclose()
        await made.close()


def name(table: Table) -> str:
    return f"headrace:{{{table.group}}}:{table.kind}"


@pytest.mark.parametrize("raw", [b"", b"x", b"no stamp here", b"99999999999999999999999999999 {}", b"12", b"\xff\xfe \x00"])
async def test_raw_values_are_read_and_can_be_replaced(store: tuple[RedisStore, redis.asyncio.Redis], raw: bytes) -> None:
    made, client = store
    await client.hset(name(MAIN), b"r", raw)
    await client.hset(name(MAIN), b"#", b"not a number")
    await client.hset(name(MAIN), b"\xff", b"1 x")
    loaded = await made.load({MAIN: None})
    assert set(loaded.tables[MAIN]) == {"r", "\ufffd"}
    stamp = await made.commit({Key(MAIN, "r"): loaded.tables[MAIN]["r"].stamp}, {Key(MAIN, "r"): b"good"})
    assert stamp > 0
    assert (await made.load({MAIN: None})).tables[MAIN]["r"].data == b"good"


async def test_one_job_whose_keys_are_spoilt_stops_no_other(store: tuple[RedisStore, redis.asyncio.Redis]) -> None:
    made, client = store
    ledger = Ledger(made, Rules(), Instruments(CollectorRegistry()))
    board = Board(ledger, 0.5)
    for job in ("a", "b", "c"):
        await ledger.update(job, Open(JobSpec(job, "/data", 64, manifest_hash="aa", samples=4000), 1))
    await client.delete(name(MAIN))
    await client.set(name(MAIN), b"a text, not a table")
    await client.hset(name(Table("job:c", "main")), b"job", b"5 {")
    await client.hset(name(Table("fleet", "jobs")), b"\xff\xff", b"1 1")
    await client.hset(name(Table("fleet", "workers")), b"w", b"1 [")
    await board.refresh()
    assert board.healthy
    assert [state.name for state in board.jobs()] == ["b"]
    for job in ("a", "c"):
        with pytest.raises(RecordInvalid):
            await ledger.update(job, Tick(0))


async def test_hints_of_a_stranger(store: tuple[RedisStore, redis.asyncio.Redis]) -> None:
    made, client = store

    async def shout() -> None:
        while True:
            await client.publish("headrace:hints", b"\xff" * 100_000)
            await asyncio.sleep(0.05)

    shouting = asyncio.create_task(shout())
    async with asyncio.timeout(60):
        async for hint in made.hints():
            assert len(hint) <= 200
            break
    shouting.cancel()
