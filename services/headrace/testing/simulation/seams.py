"""Where the simulation takes the place of the operating system: clocks, sockets, selectors and threads of real modules.

`seams()` puts stand-ins into the modules' own namespaces and takes them out again; nothing else in the process sees them.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import structlog

from headrace.client import handover, join, progress, rpc, session_link, stream
from headrace.client.transports import fetch_pool, intake, local
from headrace.coordinator import board, ledger, manifests
from headrace.telemetry import seldom
from headrace.testing.simulation.loop import HOST, VirtualLoop
from headrace.testing.simulation.sockets import Selector, os_module, socket_module
from headrace.testing.simulation.trace import Trace
from headrace.worker import lease_loop, make_batch, producer, serve_local, stats, tools, work

TIMED = (
    board, fetch_pool, handover, intake, join, ledger, lease_loop, make_batch, manifests, producer, progress, rpc, seldom,
    session_link, stats, stream, tools, work,
)  # fmt: skip


class WouldBlock(BaseException):
    """A thread would sleep here: the simulation has the caller try again when there is something new."""


class HostTime:
    """Stands in for the module `time`: the clock of the host that asks."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Seconds of the asking host's own clock."""
        host = HOST.get()
        return self._loop.time() + 10_000.0 + (host.clock_s if host is not None else 0.0)

    perf_counter = time = monotonic

    def monotonic_ns(self) -> int:
        """As `monotonic`, in whole nanoseconds."""
        return int(self.monotonic() * 1e9)

    def sleep(self, _: float) -> None:
        """No thread sleeps in a simulation."""
        raise WouldBlock


class Idle(threading.Thread):
    """A thread that never runs: its work is done by the simulation."""

    def start(self) -> None:
        """Not started."""

    def join(self, timeout: float | None = None) -> None:
        """Ended already."""

    def is_alive(self) -> bool:
        """Never."""
        return False


class Changed:
    """Stands in for threading.Condition: nobody can sleep on it; `told` is called for notify_all."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.told = lambda: None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, _: float | None = None) -> None:
        """See WouldBlock."""
        raise WouldBlock

    def notify_all(self) -> None:
        """Somebody may want to try again."""
        self.told()  # type: ignore[no-untyped-call]


def _stand_ins(loop: VirtualLoop, rng: random.Random) -> Iterator[tuple[ModuleType, str, object]]:
    clock = HostTime(loop)
    for module in TIMED:
        yield module, "time", clock
    threads = SimpleNamespace(
        Lock=threading.Lock, Condition=Changed, Thread=Idle, current_thread=threading.current_thread, Event=threading.Event
    )
    yield intake, "threading", threads
    yield intake, "selectors", SimpleNamespace(DefaultSelector=Selector, EVENT_READ=selectors.EVENT_READ)
    yield intake, "os", os_module()
    yield local, "socket", socket_module()
    yield serve_local, "socket", socket_module()
    yield ledger, "random", rng
    # What other simulated processes leave behind is no affair of the one that sweeps, and a sweep of this one takes long.
    yield join, "gc", SimpleNamespace(collect=lambda: 0)


@contextlib.contextmanager
def seams(loop: VirtualLoop, rng: random.Random, trace: Trace) -> Iterator[None]:
    """Run real code inside the simulation. rng: for what it draws itself (pauses between retries)."""
    before: list[tuple[ModuleType, str, object]] = []
    try:
        for module, name, value in _stand_ins(loop, rng):
            before.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        structlog.configure(
            processors=[trace.log],
            wrapper_class=structlog.make_filtering_bound_logger(20),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
        structlog.reset_defaults()
