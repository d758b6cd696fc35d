"""What only the Unix socket server promises."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, PortInUse
from headrace.testing.null_producer import NullProducer
from headrace.wire import messages
from headrace.worker.ports import Room
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_local import LocalServer
from headrace.worker.unix_socket import BoundSocket
from tests.contract.raw_rank import HELLO, SHAPE, LocalRank, eventually, note_slabs, serving, slab_mappings

CHILD = """
import sys
from pathlib import Path
from headrace.worker.unix_socket import BoundSocket
bound = BoundSocket(Path(sys.argv[1]))
print("bound", flush=True)
sys.stdin.read()
"""


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture(autouse=True)
def only_slabs_of_this_test() -> None:
    note_slabs()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.sock"


def test_a_killed_owners_file_is_taken_over_a_live_ones_is_not(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "bound\n"
        with pytest.raises(PortInUse, match="another live process"):
            BoundSocket(path)
        child.kill()
        child.wait(10)
    assert path.exists(), "a killed process leaves its file"
    bound = BoundSocket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    bound.close()
    bound.close()
    assert not path.exists()


def test_a_stale_file_stays_until_the_new_socket_takes_its_place(path: Path) -> None:
    """Who finds none believes that there is no such worker: at each line of our code there is one."""
    lines: list[bool] = []

    def look(frame: FrameType, event: str, _: object) -> Any:
        lines.append(os.path.lexists(path))
        return look

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(os.fspath(path))
    old = path.stat().st_ino
    sys.settrace(look)
    try:
        bound = BoundSocket(path)
    finally:
        sys.settrace(None)
    assert len(lines) > 20 and all(lines)
    assert path.stat().st_ino != old
    assert {entry.name for entry in path.parent.iterdir()} == {"worker.sock", "worker.sock.lock"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
        rank.connect(os.fspath(path))
    bound.close()


def test_a_name_as_long_as_an_address_holds_is_served(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # a short one
        path = Path(directory) / ("w" * (limits.SOCKET_PATH_BYTES - len(directory) - 1))
        bound = BoundSocket(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
            rank.connect(os.fspath(path))
        bound.close()
        assert [entry.name for entry in Path(directory).iterdir()] == [f"{path.name}.lock"]


def test_a_file_that_came_since_is_not_removed(path: Path) -> None:
    bound = BoundSocket(path)
    path.unlink()
    path.write_text("another's")
    bound.close()
    assert path.read_text() == "another's"


def test_a_foreign_live_socket_is_not_taken_over(path: Path) -> None:
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as foreign:
            foreign.bind(os.fspath(path))
            foreign.listen()
            with pytest.raises(PortInUse):
                BoundSocket(path)
        path.unlink()


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(PortInUse, match="not a socket"):
        BoundSocket(path)
    assert path.read_text() == "precious"


def test_impossible_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="longer than"):
        BoundSocket(tmp_path / ("x" * 120))
    with pytest.raises(ConfigInvalid, match="cannot listen"):
        BoundSocket(tmp_path / "missing" / "s")


async def test_a_rank_that_reads_nothing_never_blocks_the_loop(path: Path) -> None:
    """It moves its window on and on: messages pile up in the socket, then in a bounded outbox, then it is cut."""
    producer = NullProducer(SHAPE, window=4, fill=False)
    async with serving("shm", path, producer) as harness:
        deaf = await harness.connect(rank=0)
        healthy = await harness.connect(rank=1)
        for index in range(0, 40_000, 4):
            await deaf.send(messages.Next(index))
            if not any(port.rank == 0 for port in producer.ports):
                break
        await harness.settle(lambda: ("closed", 0) in producer.events)
        assert len([made for made in producer.made if made[0] == 0]) < 40_000
        await healthy.until_ready(3)
        await deaf.close()
        await healthy.close()


async def test_a_burst_that_fills_the_socket_arrives_whole_and_in_order(path: Path) -> None:
    producer = NullProducer(SHAPE, auto=False)
    async with serving("shm", path, producer) as harness:
        rank = await harness.connect()
        (port,) = producer.ports
        for token in range(3000):
            port.started(0, token)
        for token in range(3000):
            assert await rank.receive() == messages.Started(0, token)
        await rank.close()


async def test_descriptors_that_a_rank_sends_are_not_kept(path: Path) -> None:
    async with serving("shm", path) as harness:
        rank = await harness.connect()
        assert isinstance(rank, LocalRank)
        before = open_fds()
        for index in range(1, 5):
            socket.send_fds(rank.socket, [messages.encode(messages.Next(index))], [0, 1, 2])
        await rank.until_ready(7)
        assert open_fds() == before
        await rank.close()


async def test_the_slab_passed_on_is_sealed(path: Path) -> None:
    async with serving("shm", path) as harness:
        rank = await harness.connect()
        assert isinstance(rank, LocalRank) and rank.welcome is not None
        assert os.fstat(rank.fd).st_size == rank.welcome.slots * rank.welcome.slot_bytes
        with pytest.raises(PermissionError):
            os.ftruncate(rank.fd, 4096)
        with pytest.raises(PermissionError):
            mmap.mmap(rank.fd, 0)
        await rank.close()


async def test_a_killed_workers_batches_stay_readable(path: Path) -> None:
    """The rank's mapping outlives the worker's slab."""
    async with serving("shm", path) as harness:
        rank = await harness.connect()
        assert isinstance(rank, LocalRank) and rank.map is not None
        await rank.until_ready(3)
        before = rank.map[:]
        await harness.server.close(0.0)
        assert rank.map[:] == before
        await rank.close()


async def test_next_before_welcome_counts(path: Path) -> None:
    async with serving("shm", path) as harness:
        rank = harness.rank()
        await rank.send(HELLO)
        await rank.send(messages.Next(6))
        await rank.until(messages.Welcome)
        await rank.until_ready(6)
        assert 0 not in {index for _, index in harness.producer.made} or 6 in rank.batches
        await rank.close()


async def test_a_rank_that_leaves_during_admission_leaves_nothing(path: Path) -> None:
    producer = NullProducer(SHAPE)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> Room:
        entered.set()
        await leave.wait()
        return Room(producer.slot_bytes, 4)

    producer.admit = slow  # type: ignore[method-assign]
    server = LocalServer(RankRegister(producer, worker="w0"), path)
    await server.start()
    rank = LocalRank(path)
    await rank.send(HELLO)
    await entered.wait()
    await rank.close()
    await eventually(lambda: not server.connections)
    leave.set()
    await asyncio.sleep(0.05)
    assert producer.events == []
    assert slab_mappings() == 0
    await server.close(0.0)


async def test_a_refusal_is_read_though_more_was_sent(path: Path) -> None:
    """Closing a socket with unread input resets the peer, which would see that error before the REFUSE."""
    async with serving("shm", path) as harness:
        rank = harness.rank()
        assert isinstance(rank, LocalRank)
        for data in [b"\xff", *[messages.encode(messages.Next(index)) for index in range(100)]]:
            rank.socket.send(data)
        (refusal,) = await rank.until_gone()
        assert isinstance(refusal, messages.Refuse) and refusal.code == "protocol_mismatch"
        await rank.close()
