"""Real processes: they are awaited, die with their parent, and a store comes back with what it promised to keep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest
import redis

from headrace.core.errors import PeerGone, PortInUse, WaitTimeout
from headrace.testing.append_only import cut_since
from headrace.testing.cluster import Cluster
from headrace.testing.processes import ServiceProcess, free_address, free_port, is_listening, start_service

DEADLINE_S = 30.0


def _store(directory: Path, address: str) -> ServiceProcess:
    store = start_service(
        "store", ["store", "--address", address, "--data-dir", str(directory / "data")], directory / "store.log"
    )
    store.wait_listening(address, DEADLINE_S)
    return store


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Cluster]:
    """A store alone."""
    with Cluster(tmp_path, coordinators=0, workers=0) as cluster:
        yield cluster


def _client(cluster: Cluster) -> redis.Redis:
    return redis.Redis.from_url(cluster.store_url, socket_timeout=DEADLINE_S)


def test_every_answered_write_survives_kill_9(fleet: Cluster) -> None:
    with _client(fleet) as client:
        for i in range(200):
            client.set(f"key-{i}", i)
    fleet.restart_store()
    with _client(fleet) as client:
        assert [int(value) for value in client.mget([f"key-{i}" for i in range(200)])] == list(range(200))


def test_a_store_can_forget_its_last_second(fleet: Cluster) -> None:
    with _client(fleet) as client:
        client.set("old", 1)
        time.sleep(2.5)
        client.set("new", 1)
        client.incr("old")
    assert fleet.restart_store(cut_last_second=True) > 0
    with _client(fleet) as client:
        assert client.get("new") is None
        assert client.get("old") == b"1"


def test_cutting_finds_stamps_not_values(tmp_path: Path) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    first = b"#TS:100\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$7\r\n#TS:200\r\n"
    (folder / "appendonly.aof.1.incr.aof").write_bytes(first + b"#TS:150\r\n*1\r\n$4\r\nPING\r\n")
    assert cut_since(tmp_path, 120) == len(b"#TS:150\r\n*1\r\n$4\r\nPING\r\n")
    assert (folder / "appendonly.aof.1.incr.aof").read_bytes() == first


def test_close_leaves_no_process_and_is_idempotent(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, coordinators=0, workers=0).start()
    pid = cluster.store.running.pid
    os.kill(pid, signal.SIGSTOP)  # even one that hangs
    cluster.close()
    cluster.close()
    assert not psutil.pid_exists(pid)


def test_a_directory_is_of_one_store_at_a_time(tmp_path: Path) -> None:
    first, others = free_address(), [free_address(), free_address()]
    stores = [_store(tmp_path, first)]
    try:
        with redis.Redis(port=int(first.rpartition(":")[2]), socket_timeout=DEADLINE_S) as client:
            client.set("kept", 1)
            refused = start_service(
                "store", ["store", "--address", others[0], "--data-dir", str(tmp_path / "data")], tmp_path / "second.log"
            )
            assert refused.wait(DEADLINE_S) == 1
            told = refused.log_tail(1)
            assert f"process {stores[0].pid} at {first}" in told and "--data-dir" in told and "config_invalid" in told, told
            assert client.get("kept") == b"1"
            client.bgrewriteaof()  # by a child, which must not hold the lock for longer than the server lives
        stores[0].kill()
        stores.append(_store(tmp_path, others[1]))
        with redis.Redis(port=int(others[1].rpartition(":")[2]), socket_timeout=DEADLINE_S) as client:
            assert client.get("kept") == b"1"
    finally:
        for store in stores:
            store.kill()


def test_a_service_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    address = free_address()
    arguments = ["store", "--address", address, "--data-dir", str(tmp_path / "data")]
    code = f"""
import time
from pathlib import Path
from headrace.testing.processes import start_service
store = start_service("store", {arguments!r}, Path({str(tmp_path / "store.log")!r}))
store.wait_listening({address!r}, {DEADLINE_S})
print(store.pid, flush=True)
time.sleep({DEADLINE_S})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        service = psutil.Process(int(parent.stdout.readline()))
        assert is_listening(address)
        parent.kill()
    service.wait(DEADLINE_S)
    assert not is_listening(address)


def test_a_service_started_from_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    address = free_address()
    started: list[ServiceProcess] = []
    thread = Thread(target=lambda: started.append(_store(tmp_path, address)))
    thread.start()
    thread.join(DEADLINE_S)
    (store,) = started
    try:
        with pytest.raises(WaitTimeout):
            store.wait(1.0)
        assert is_listening(address)
    finally:
        store.stop()


def test_a_service_that_cannot_start_is_told_with_its_words(tmp_path: Path) -> None:
    address = free_address()
    store = _store(tmp_path, address)
    try:
        arguments = ["store", "--address", address, "--data-dir", str(tmp_path / "other")]
        second = start_service("second", arguments, tmp_path / "second.log")
        with pytest.raises(PeerGone, match=r"second ended with code 1 .*\n.*port_in_use"):
            second.wait_until(lambda: False, "became ready", DEADLINE_S)
    finally:
        store.stop()


def test_a_service_that_is_not_ready_in_time_is_told(tmp_path: Path) -> None:
    store = _store(tmp_path, free_address())
    try:
        with pytest.raises(WaitTimeout, match=r"store has not grown wings within 0\.1 s"):
            store.wait_until(lambda: False, "grown wings", 0.1)
    finally:
        assert store.stop() == 0


def test_ports_differ_and_are_free() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not any(is_listening(f"127.0.0.1:{port}") for port in ports)


def test_no_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.processes._ports", [])
    monkeypatch.setattr("headrace.testing.processes._PORTS", range(0))
    with pytest.raises(PortInUse):
        free_port()


def test_no_other_process_is_given_a_port_that_is_free_at_the_moment() -> None:
    """A service that is down for a restart finds its port again, whatever other fleets this machine runs."""
    mine = {free_port() for _ in range(250)}
    give = "from headrace.testing.processes import free_port; print(*(free_port() for _ in range(2000)))"
    others = subprocess.run([sys.executable, "-c", give], capture_output=True, text=True, timeout=60, check=True)
    given = {int(word) for word in others.stdout.split()}
    assert len(given) == 2000 and not given & mine
