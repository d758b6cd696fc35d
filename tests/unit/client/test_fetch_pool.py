"""What the fetcher's keeper bears: a lack of memory, descriptors or processes passes; a fetcher that ends at once does not."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import selectors
import socket
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from headrace.client.transports import fetch_pool, mapping
from headrace.client.transports.fetch_host import FetchHost
from headrace.client.transports.fetch_pool import FetchPool
from headrace.client.transports.mapping import Slab
from headrace.core.arrivals import Arrivals
from headrace.core.errors import TransportUnavailable

SLOT_BYTES = 8192
WINDOW = 3


class Rig:
    """A pool whose processes are none: each start makes a socket, or raises what `refusals` has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrivals = Arrivals(lambda index: 0, 1, WINDOW)
        self.slabs: list[Slab] = []
        self.refusals: list[OSError] = []
        self.free_bytes = 2**40
        self.starts = 0
        self.now_s = 100.0
        self._others: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        numbers = itertools.count(1)
        self.pool = FetchPool(self._selector, self.arrivals, SLOT_BYTES, lambda: next(numbers), self.slabs.append)
        rig = self

        def start(host: FetchHost, next_index: int, have: tuple[int, ...]) -> socket.socket:
            rig.starts += 1
            if rig.refusals:
                raise rig.refusals.pop(0)
            host.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            rig._others.append(other)
            return host.socket

        monkeypatch.setattr(FetchHost, "start", start)
        monkeypatch.setattr(mapping, "available_bytes", lambda: rig.free_bytes)

    def wait(self) -> FetchHost | None:
        """Ask for the host as soon as the pool says that it is worth it."""
        self.now_s = max(self.now_s + 0.001, self.pool.retry_at_s)
        return self.pool.running(self.now_s)

    def close(self) -> None:
        self.pool.close()
        self._selector.close()
        for other in self._others:
            other.close()
        for slab in self.slabs:
            assert slab.close(2**64)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(monkeypatch)
    yield rig
    rig.close()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EAGAIN, "limit of processes"),
        (errno.ENOMEM, "larger memory limit"),
    ],
)
@pytest.mark.parametrize("tries", [1, 100])
def test_what_is_lacking_for_a_start_is_waited_for_however_long(rig: Rig, number: int, advice: str, tries: int) -> None:
    rig.refusals = [OSError(number, os.strerror(number)) for _ in range(tries)]
    began_s = rig.now_s
    with capture_logs() as logs:
        for _ in range(tries):
            assert rig.wait() is None
            assert os.strerror(number) in rig.pool.trouble and advice in rig.pool.trouble
        assert rig.wait() is not None
    assert [line["event"] for line in logs] == ["fetcher_waits"], "said once"
    assert rig.now_s - began_s >= 0.9 * tries, "not asked for all the time"
    assert not rig.pool.trouble


def no_descriptor(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("call", ["memfd_create", "mmap"])
def test_a_slab_for_which_there_is_no_descriptor_is_waited_for(rig: Rig, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os if call == "memfd_create" else mmap, call, no_descriptor)
        for _ in range(20):
            assert rig.wait() is None
    assert "ulimit -n" in rig.pool.trouble and rig.starts == 0
    assert rig.wait() is not None


def test_two_that_ask_at_one_time_try_once(rig: Rig) -> None:
    rig.refusals = [OSError(errno.EMFILE, "") for _ in range(2)]
    assert rig.pool.running(200.0) is None and rig.pool.running(200.0) is None
    assert rig.starts == 1


def test_what_does_not_pass_by_itself_ends_the_stream_after_some_tries(rig: Rig) -> None:
    rig.refusals = [OSError(errno.ENOENT, "No such file or directory") for _ in range(100)]
    with pytest.raises(TransportUnavailable, match="No such file"):
        for _ in range(100):
            rig.wait()
    assert rig.starts == fetch_pool._MOST_STARTS


def test_a_first_slab_for_which_there_is_no_memory_is_an_error(rig: Rig) -> None:
    rig.free_bytes = 2 * SLOT_BYTES
    with pytest.raises(TransportUnavailable, match="larger memory limit"):
        rig.wait()


@pytest.mark.parametrize("lack", ["memory", "descriptors"])
def test_a_window_that_cannot_grow_leaves_all_as_it_is(rig: Rig, lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = rig.wait()
    assert host is not None
    rig.arrivals.window = 2 * WINDOW
    with capture_logs() as logs, monkeypatch.context() as patch:
        if lack == "memory":
            rig.free_bytes = WINDOW * SLOT_BYTES
        else:
            patch.setattr(os, "memfd_create", no_descriptor)
        assert not rig.pool.grow()
        assert rig.wait() is host
    (line,) = logs
    assert line["event"] == "window_kept" and "cannot be had, remote batches go on with 3" in line["reason"]
    assert len(rig.slabs) == 1 and host.slab.in_use and host.socket is not None
    rig.free_bytes = 2**40
    assert rig.pool.grow()
    after = rig.wait()
    assert after is not None and after.slab.slots == 2 * WINDOW and not host.slab.in_use


def test_a_window_that_grows_before_anything_was_fetched_takes_no_memory(rig: Rig) -> None:
    rig.arrivals.window = 2 * WINDOW
    assert rig.pool.grow() and not rig.slabs
    host = rig.wait()
    assert host is not None and host.slab.slots == 2 * WINDOW


@pytest.mark.parametrize("grows", [False, True])
def test_a_second_slab_in_the_place_of_one_in_use_waits_for_memory(
    rig: Rig, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process before was killed and does not die: it may still write to its slab."""
    host = rig.wait()
    assert host is not None
    rig.free_bytes = (WINDOW - 1) * SLOT_BYTES
    if grows:
        rig.arrivals.window = 2 * WINDOW
        assert not rig.pool.grow()
    monkeypatch.setattr(FetchHost, "gone", lambda one, wait_s=0.0: one is not host)
    rig.pool.ended("it hangs", rig.now_s)
    rig.now_s += 10.0
    with capture_logs() as logs:
        for _ in range(20):
            rig.free_bytes -= 1  # other words each time
            assert rig.wait() is None
    assert [line["event"] for line in logs] == ["fetcher_lingers", "fetcher_waits"]
    assert "larger memory limit" in rig.pool.trouble
    rig.free_bytes = WINDOW * SLOT_BYTES
    after = rig.wait()
    assert after is not None and after is not host and after.slab.slots == WINDOW
    monkeypatch.setattr(FetchHost, "gone", lambda one, wait_s=0.0: True)
