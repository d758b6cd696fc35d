"""The intake and its fetcher process: what is on the way when links end, and a process that hangs."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any

import psutil
import pytest

from headrace.client.transports import fetch_host, mapping
from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.fetch_host import FetchHost
from headrace.core.errors import PeerGone, WaitTimeout
from headrace.testing.leaks import fetchers_of
from headrace.wire.messages import Ready
from tests.integration.fake_worker import Connection
from tests.integration.intake_bench import DEADLINE_S, Bench, eat, take_in_vain, until


def fetchers() -> list[psutil.Process]:
    """Those of this process; other tests may have left children of other kinds."""
    return [psutil.Process(pid) for pid in fetchers_of(os.getpid())]


def _ready_lies_unread(pipe: socket.socket) -> bool:
    """True once the next message is a READY; what comes before it is lost."""
    try:
        message = protocol.decode(pipe.recv(protocol.MAX_BYTES, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    if isinstance(message, protocol.Forward) and isinstance(message.message, Ready):
        return True
    pipe.recv(protocol.MAX_BYTES)
    return False


def test_a_batch_that_was_complete_when_its_link_was_given_up_is_sent_again(bench: Bench) -> None:
    worker = bench.worker()
    worker.held = set(range(400))
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    until(lambda: any(peer.connected for peer in intake._links.peers.values()), "connected")
    with intake._lock:
        host = intake._links.fetch.host
        assert host is not None and host.socket is not None
        pipe = host.socket
        worker.held = set()
        until(lambda: _ready_lies_unread(pipe), "a batch is complete, and the trainer has not read so")
        (peer,) = intake._links.peers.values()
        intake._links.down(peer, PeerGone("given up"), time.monotonic())
    eat(intake, range(10))
    assert len(worker.hellos) >= 2


def test_a_copy_that_came_second_is_sent_again_if_the_first_turns_out_wrong(bench: Bench) -> None:
    here, there = bench.worker("here"), bench.worker("there", node="node-b")
    table = bench.tables.give(here, there)  # index 1 is there's
    here.lanes = dict.fromkeys(range(bench.session.lanes), 1)
    here.held, there.held = {4}, {1}

    def wrong(connection: Connection, index: int, token: int) -> bool:
        if index == 1:
            here.held = {1}  # it is made here once
            connection.credit.mark_made(index)
            connection.write(index, token, connection.batch(2, token))
        return index == 1

    here.on_make = wrong
    intake = bench.intake("auto")
    intake.update(table)
    until(lambda: 1 in intake._arrivals.have(), "the wrong copy came first")
    there.held = set()
    until(lambda: intake._arrivals.duplicates >= 1, "the good copy came second")
    assert "there" in eat(intake, range(10))
    assert len(there.hellos) == 2


def test_a_fetcher_that_hangs_is_named_killed_and_started_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_host, "HUNG_S", 2.0)
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    eat(intake, range(5))
    (fetcher,) = fetchers()
    os.kill(fetcher.pid, signal.SIGSTOP)
    until(lambda: len(worker.made) >= 8, "the window is full")
    waiter = take_in_vain(intake, 399, 30.0)
    named = f"the fetcher process {fetcher.pid} has not answered for"
    until(lambda: named in intake.status().awaited, "the wait says who hangs")
    intake.fail(WaitTimeout("enough"))
    waiter.join()
    until(lambda: not psutil.pid_exists(fetcher.pid), "it is killed")


def test_a_fetcher_that_cannot_be_started_is_named_and_started_when_it_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = FetchHost.start
    failing = [True]

    def refused(self: FetchHost, *arguments: Any) -> socket.socket:
        if failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return start(self, *arguments)

    monkeypatch.setattr(FetchHost, "start", refused)
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(intake.take(0, DEADLINE_S).index))
    waiter.start()
    until(
        lambda: "the fetcher process cannot be started: [Errno 24]" in intake.status().awaited,
        "the wait says why nothing comes",
    )
    failing.clear()
    waiter.join()
    assert taken == [0]


def test_batches_go_on_after_a_fetcher_hung(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_host, "HUNG_S", 1.0)
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    eat(intake, range(5))
    (fetcher,) = fetchers()
    os.kill(fetcher.pid, signal.SIGSTOP)
    eat(intake, range(5, 30))
    (after,) = fetchers()
    assert after.pid != fetcher.pid and len(worker.hellos) == 2


def test_a_fetcher_that_works_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUNG_S", "PING_AFTER_S"):
        monkeypatch.setattr(fetch_host, name, 0.3)
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    eat(intake, range(5))
    (fetcher,) = fetchers()
    pings = [0]
    send = FetchHost.send

    def counted(host: FetchHost, message: protocol.FetchMessage) -> None:
        pings[0] += isinstance(message, protocol.Ping)
        send(host, message)

    monkeypatch.setattr(FetchHost, "send", counted)
    until(lambda: pings[0] >= 3, "it is pinged while nothing flows")
    eat(intake, range(5, 20))
    assert fetchers() == [fetcher]


def test_a_pause_of_this_process_is_not_held_against_the_fetcher() -> None:
    host = FetchHost(1, 1, 8192)
    try:
        host.start(0, ())
        host._answers, host._pinged = True, True
        for now_s in (10.0, 11.0, 500.0):
            host.check(now_s)
        with pytest.raises(PeerGone, match="did not answer for 5"):
            for now_s in (501.0, 502.0, 503.0):
                host.check(now_s)
    finally:
        host.close()
        assert host.gone(DEADLINE_S)
        host.slab.close(2**64)


def test_a_fetcher_that_outlives_its_kill_holds_nobody_up_and_writes_to_no_slab_in_use(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_host, "HUNG_S", 1.0)
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    eat(intake, range(5))
    (fetcher,) = fetchers()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda process: None)  # as if it hung in the kernel
        slab = intake._links.fetch.host.slab  # type: ignore[union-attr]
        os.kill(fetcher.pid, signal.SIGSTOP)
        eat(intake, range(5, 30))
        assert fetcher.status() == psutil.STATUS_STOPPED
        assert len(fetchers()) == 2 and slab.memory.closed
    fetcher.kill()
    until(lambda: not psutil.pid_exists(fetcher.pid), "it is reaped once it is dead")
    eat(intake, range(30, 40))
    assert len(worker.hellos) == 2


@pytest.mark.parametrize("first_ready", [False, True])
def test_a_window_that_cannot_grow_for_lack_of_memory_ends_no_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, first_ready: bool
) -> None:
    """The larger slab would lie beside the one in use. Remote batches go on with that, whatever links and fetcher do."""
    worker = bench.worker()
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    if first_ready:
        intake.take(2, DEADLINE_S)
    else:
        until(lambda: worker.hellos, "it is connected")
    with monkeypatch.context() as patch:
        patch.setattr(mapping, "available_bytes", lambda: 0)
        bench.tables.window = 8
        intake.update(bench.tables.table())
        eat(intake, range(20))
        assert [hello.window for hello in worker.hellos] == [3]
        worker.connections[-1].cut()
        eat(intake, range(20, 40))
        (fetcher,) = fetchers()
        fetcher.kill()
        eat(intake, range(40, 60))
        assert [hello.window for hello in worker.hellos] == [3, 3, 3]
    bench.tables.window = 9
    intake.update(bench.tables.table())
    until(lambda: worker.hellos[-1].window == 9, "there is memory again when it grows once more")
    eat(intake, range(60, 80))
