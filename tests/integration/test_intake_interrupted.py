"""A signal handler that raises while the trainer's thread reads messages itself: nothing that was read may be lost."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.client.transports.local import LocalLink
from headrace.wire import messages
from headrace.wire.messages import Ready
from tests.integration.intake_bench import Bench, eat, until


@pytest.fixture(params=[KeyboardInterrupt, TimeoutError])
def raised(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """What the handler of SIGALRM raises; the second is also an OSError, as a socket's errors are."""
    error: type[BaseException] = request.param

    def handler(*_: object) -> None:
        raise error("by a signal handler")

    before = signal.signal(signal.SIGALRM, handler)
    yield error
    signal.signal(signal.SIGALRM, before)


def _ready_lies_unread(sock: socket.socket) -> bool:
    """True once the next message is a READY; what comes before it is lost."""
    try:
        if isinstance(messages.decode(sock.recv(messages.MAX_CONTROL_BYTES, socket.MSG_PEEK)), Ready):
            return True
        sock.recv(messages.MAX_CONTROL_BYTES)
    except BlockingIOError:
        pass
    return False


def test_a_ready_that_was_read_when_a_signal_came_is_sent_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    assert threading.current_thread() is threading.main_thread(), "where Python runs signal handlers"
    worker = bench.worker()
    worker.held = set(range(400))
    intake = bench.intake()
    intake.update(bench.tables.give(worker))
    until(lambda: any(peer.connected for peer in intake._links.peers.values()), "connected")
    receive, interrupted = LocalLink._receive_one, []

    def receive_and_signal(link: LocalLink) -> tuple[int, list[int], int]:
        received = receive(link)
        if not interrupted and isinstance(messages.decode(memoryview(link._buffer)[: received[0]]), Ready):
            interrupted.append(link.number)
            signal.raise_signal(signal.SIGALRM)
        return received

    with intake._lock:
        (peer,) = intake._links.peers.values()
        assert isinstance(peer.link, LocalLink)
        sock = peer.link.socket
        worker.held = set()
        until(lambda: _ready_lies_unread(sock), "a batch is complete, and nobody has read so")
        monkeypatch.setattr(LocalLink, "_receive_one", receive_and_signal)
        with pytest.raises(raised, match="by a signal handler"):
            intake._connections.read_local(time.monotonic())
    eat(intake, range(10))
    assert interrupted and len(worker.hellos) == 2
