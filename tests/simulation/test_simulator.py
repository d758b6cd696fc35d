"""The simulator itself: equal seeds are equal runs in any process; hosts, sockets and the store do what the kernel's do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.client.transports.connections import Connections
from headrace.coordinator.store import Key, Table
from headrace.core.errors import StoreUnavailable
from headrace.testing.simulation.campaign import campaign
from headrace.testing.simulation.loop import Host, OutOfEvents, VirtualLoop
from headrace.testing.simulation.network import Network, Weather
from headrace.testing.simulation.run import run
from headrace.testing.simulation.sockets import ROOM, Node, SimulatedSocket
from headrace.testing.simulation.store import SimulatedStore, StoreClient
from headrace.testing.simulation.trace import Trace
from headrace.testing.simulation.world import World

SEEDS = (11, 1064, 5003)


@pytest.fixture
def loop(seed: int) -> Any:
    """A simulated loop."""
    made = VirtualLoop(random.Random(seed), 100_000)
    yield made
    made.close()


@pytest.fixture
def network(loop: VirtualLoop, seed: int) -> Network:
    """A simulated network."""
    return Network(loop, random.Random(seed), Trace(loop.time))


def _digest(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "headrace.testing.simulation", "--tell", str(seed), "1", "1"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    return str(json.loads(told.stdout)["digest"])


@pytest.mark.timeout(600)
def test_equal_seeds_are_equal_runs() -> None:
    """To the last event and number of steps."""
    for seed in SEEDS:
        one, other = run(seed), run(seed)
        assert (one.digest, one.steps, one.simulated_s) == (other.digest, other.steps, other.simulated_s)
    assert run(SEEDS[0]).digest != run(SEEDS[1]).digest


@pytest.mark.timeout(600)
def test_runs_do_not_depend_on_the_hash_seed() -> None:
    """Nor on what ran before in the process: sets of names have another order in each."""
    here = [run(seed).digest for seed in SEEDS]
    for hash_seed, seed, digest in zip(("0", "1", "4242"), SEEDS, here, strict=True):
        assert _digest(seed, hash_seed) == digest


@pytest.mark.timeout(600)
def test_runs_leave_nothing_behind() -> None:
    """No descriptor stays open, whatever was killed in the middle of what."""
    run(1)
    gc.collect()  # a killed process leaves cycles
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counting
    for seed in range(20, 26):
        run(seed)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


@pytest.mark.timeout(600)
def test_runs_are_let_go_of_whole() -> None:
    """Ten thousand in one process: what outlives a run must not hold it."""
    for seed in range(3):
        run(seed)
    gc.collect()
    worlds = [found for found in gc.get_objects() if isinstance(found, World)]
    assert len(worlds) <= 1, f"{len(worlds)} of 3"  # what ran last may be in a frame or a cache of the event loop's


def test_a_campaign_runs_each_seed_once() -> None:
    """Over two processes."""
    totals = campaign(300, 7, 2, keep_going=True, seen=lambda _: None)
    assert totals.runs == 7
    assert totals.steps == sum(run(seed).steps for seed in range(300, 307))


def test_what_is_due_for_a_paused_host_waits(loop: VirtualLoop) -> None:
    """In its order, and a dead host does nothing any more."""
    host, other = Host(loop, "one"), Host(loop, "other")
    seen: list[str] = []

    async def work(name: str) -> None:
        for step in range(3):
            await asyncio.sleep(1.0)
            seen.append(f"{name}{step}")

    host.start(work("a"))
    other.start(work("b"))

    async def main() -> None:
        await asyncio.sleep(0.5)
        host.pause()
        await asyncio.sleep(3.0)
        assert seen == ["b0", "b1", "b2"]
        host.wake()
        await asyncio.sleep(0.1)
        assert seen == ["b0", "b1", "b2", "a0"]
        host.kill()
        await asyncio.sleep(9.0)
        assert len(seen) == 4

    loop.run_until_complete(main())
    assert loop.time() == pytest.approx(12.6)


def test_a_wait_for_nothing_is_told(loop: VirtualLoop) -> None:
    """Where a real program would hang for ever."""
    with pytest.raises(OutOfEvents):
        loop.run_until_complete(loop.create_future())


def _pair(loop: VirtualLoop, network: Network) -> tuple[SimulatedSocket, SimulatedSocket]:
    node = SimulatedSocket.node = Node(network)
    client, server = Host(loop, "client"), Host(loop, "server")
    ends: list[SimulatedSocket] = []
    node.listeners["/path"] = (server, ends.append)
    ours = client.call(SimulatedSocket)
    ours.connect("/path")
    loop.run_until_complete(asyncio.sleep(1.0))
    return ours, ends[0]


def _read(end: SimulatedSocket) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: end.recvmsg_into([buffer])[0]])


def test_packets_arrive_in_order_until_the_end(loop: VirtualLoop, network: Network) -> None:
    """What was sent before a close is read before the end is."""
    ours, theirs = _pair(loop, network)
    for number in range(ROOM):
        ours.send(bytes([number]))
    with pytest.raises(BlockingIOError):
        ours.send(b"too much")
    network.cut("client", "server", 5.0)
    ours.close()
    loop.run_until_complete(asyncio.sleep(1.0))
    got = [_read(theirs) for _ in range(ROOM)]
    assert got == [bytes([number]) for number in range(ROOM)]
    with pytest.raises(BlockingIOError):
        _read(theirs)  # the end was said while the two were apart
    loop.run_until_complete(asyncio.sleep(10.0))
    assert _read(theirs) == b""
    with pytest.raises(BrokenPipeError):
        theirs.send(b"to nobody")


def test_nobody_listens(loop: VirtualLoop, network: Network) -> None:
    """As with a socket's path whose process died."""
    ours, _ = _pair(loop, network)
    ours.node.listeners["/path"][0].kill()
    with pytest.raises(ConnectionRefusedError):
        ours.host.call(SimulatedSocket).connect("/path")


def _stored(
    loop: VirtualLoop, network: Network, act: Callable[[SimulatedStore, StoreClient], Coroutine[Any, Any, None]]
) -> None:
    store = SimulatedStore(Host(loop, "store"), Trace(loop.time), lambda *_: None)
    loop.run_until_complete(act(store, StoreClient(store, network, Host(loop, "replica"))))


def test_a_store_loses_its_last_second(loop: VirtualLoop, network: Network) -> None:
    """And nothing older; stamps go on growing."""
    table = Table("job:j", "main")

    async def act(store: SimulatedStore, client: StoreClient) -> None:
        copies = asyncio.create_task(store.keep_copies())
        first = await client.commit({}, {Key(table, "old"): b"1"})
        await asyncio.sleep(5.0)
        lost = await client.commit({}, {Key(table, "new"): b"2"})
        store.lose_last_second()
        assert set((await client.load({table: None})).tables[table]) == {"old"}
        assert await client.commit({Key(table, "old"): first}, {Key(table, "new"): b"3"}) > lost
        copies.cancel()

    _stored(loop, network, act)


def test_a_store_that_cannot_be_reached_is_unavailable(loop: VirtualLoop, network: Network) -> None:
    """Whether the request was lost or the answer: then it was written all the same."""
    table = Table("job:j", "main")

    async def act(store: SimulatedStore, client: StoreClient) -> None:
        network.weather = Weather(lost=1.0)
        with pytest.raises(StoreUnavailable):
            await client.load({table: None})
        network.heal()
        network.cut("store", "replica", 1.0)
        with pytest.raises(StoreUnavailable):
            await client.load({table: None})
        await asyncio.sleep(1.0)
        store.up = False
        with pytest.raises(StoreUnavailable):
            await client.load({table: None})

    _stored(loop, network, act)


def test_batches_are_taken_by_their_marks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slabs are real memory, and a trainer that is behind finds its batches before their messages are read."""
    look, found = Connections.look, []

    def counted(self: Connections, index: int, now_s: float) -> bool:
        found.append(look(self, index, now_s))
        return found[-1]

    monkeypatch.setattr(Connections, "look", counted)
    for seed in SEEDS:
        run(seed)
    assert sum(found) >= 10, f"{sum(found)} of {len(found)} looks"


def test_the_makefile_names_it() -> None:
    """What a failing test tells people to type exists."""
    assert "\nsimulate: ##" in (Path(__file__).parents[2] / "Makefile").read_text()
