"""An event loop whose clock jumps, and the processes ("hosts") that live on it: they can be paused, woken and killed.

The real coroutines run on it unchanged. Each belongs to the host in whose context it was started, and so does all that it
starts: what becomes due while its host is paused waits, in order, until the host is woken. One thread, no real time: a run is
decided by its seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("headrace_simulated_host", default=None)


_NOBODY = contextvars.Context()


class OutOfEvents(Exception):
    """Nothing is left that could ever happen: everybody waits for somebody."""


class OutOfSteps(Exception):
    """A run took more steps than any sound one does."""


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class Host:
    """One process. clock_s: how far its monotonic clock is ahead of the simulation's.

    serial: its process id, never used again. on_death: what the kernel does for a process that died, called once.
    """

    def __init__(self, loop: VirtualLoop, name: str, clock_s: float = 0.0) -> None:
        self.name = name
        self.loop = loop
        self.clock_s = clock_s
        self.serial = next(loop.serials)
        self.alive = True
        self.paused = False
        self.on_death: list[Callable[[], None]] = []
        self._late: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.Context()
        self._context.run(HOST.set, self)

    def start(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run a coroutine in this process; it ends with the process."""
        return self.loop.create_task(work, name=name or None, context=self._context.copy())

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as this process, now."""
        return self._context.copy().run(function, *args)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have this process call a function; later if it is paused, never if it is dead."""
        self.loop.call_soon(self._unless_dead, function, *args, context=self._context.copy())

    def call_later(self, delay_s: float, function: Callable[..., object], *args: Any) -> None:
        """As `call_soon`, after a delay."""
        self.loop.call_later(delay_s, self._unless_dead, function, *args, context=self._context.copy())

    def _unless_dead(self, function: Callable[..., object], *args: Any) -> None:
        if self.alive:
            function(*args)

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def wake(self) -> None:
        """SIGCONT: what became due meanwhile happens now."""
        if self.paused:
            self.paused = False
            self.loop.requeue(self._late)
            self._late.clear()

    def kill(self) -> None:
        """SIGKILL. Its tasks are cancelled so that nothing stays behind; what they still say is heard by nobody."""
        if not self.alive:
            return
        self.alive = False
        self.wake()
        for task in list(self._tasks):
            task.cancel()
        for end in self.on_death:
            self.call(end)
        self.on_death.clear()

    def own(self, task: asyncio.Task[Any]) -> None:
        """A task that was started by this process."""
        self._tasks[task] = None
        task.add_done_callback(self._disown, context=_NOBODY)

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep what became due while the host is paused."""
        self._late.append(handle)


class Socket(Protocol):
    """What the loop needs of a simulated socket (simulation.sockets)."""

    def watch(self, readable: Callable[[], object] | None) -> None:
        """Call this while there is something to read."""
        ...

    def watch_room(self, writable: Callable[[], object] | None) -> None:
        """Call this while there is room to write."""
        ...


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. rng decides how long work in executors takes."""

    _ready: deque[asyncio.Handle]

    def __init__(self, rng: random.Random, most_steps: int) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._rng = rng
        self._most_steps = most_steps
        self.serials = itertools.count(1)
        self.steps = 0
        self.work_s = (0.0005, 0.02)
        self.on_step: Callable[[], None] = lambda: None

    def time(self) -> float:
        """Simulated seconds since the run began."""
        return self._now_s

    def requeue(self, handles: deque[asyncio.Handle]) -> None:
        """Let these happen now, before all that is ready."""
        self._ready.extendleft(reversed(handles))

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """As asyncio's; the task belongs to the host that starts it."""
        task = super().create_task(coro, name=name, context=context)
        host = context.get(HOST) if context is not None else HOST.get()
        if host is not None:
            host.own(task)
        return task

    def add_reader(self, fd: Socket, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Simulated sockets only."""
        fd.watch(partial(callback, *args))

    def remove_reader(self, fd: Socket) -> bool:  # type: ignore[override]
        """See add_reader."""
        fd.watch(None)
        return True

    def add_writer(self, fd: Socket, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """See add_reader."""
        fd.watch_room(partial(callback, *args))

    def remove_writer(self, fd: Socket) -> bool:  # type: ignore[override]
        """See add_reader."""
        fd.watch_room(None)
        return True

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call it after a while, as if a thread had done so; its result is there a little later still."""
        future: asyncio.Future[T] = self.create_future()
        low, high = self.work_s
        took_s = self._rng.uniform(low, high)

        def work() -> None:
            if future.done():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the awaiting task's
                future.set_exception(error)
                return
            self.call_later(took_s / 4, _settle, future, result)

        self.call_later(took_s, work)
        return future

    def _run_once(self) -> None:
        """One step: the next thing that is due, in the order in which things became due."""
        ready = self._ready
        if not ready:
            self._jump()
        handle = ready.popleft()
        if handle._cancelled:
            return
        host = handle._context.get(HOST)  # type: ignore[attr-defined]
        if host is not None and host.paused:
            host.hold(handle)
            return
        self.steps += 1
        if self.steps > self._most_steps:
            raise OutOfSteps(f"more than {self._most_steps} steps")
        handle._run()
        self.on_step()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; what is due at the same moment happens in the order in which it was asked for."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _jump(self) -> None:
        timers = self._timers
        while timers:
            when_s, _, timer = heapq.heappop(timers)
            if timer._cancelled:
                continue
            self._now_s = max(self._now_s, when_s)
            self._ready.append(timer)
            while timers and timers[0][0] <= self._now_s:
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    self._ready.append(timer)
            return
        raise OutOfEvents("nothing is left to happen")
