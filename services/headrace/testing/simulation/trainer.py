"""One rank's trainer in the simulation: the real stream, hand-over, intake, links and session link, without their threads.

What the threads `headrace-intake`, `headrace-control` and `headrace-watch` do in their loops is done here by tasks that call
the same methods; where the trainer would sleep in a real call, the call is made again when there is something new.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from headrace.client.join import _MAY_PASS, Joining, _open_request
from headrace.client.link import Identity
from headrace.client.options import StreamOptions
from headrace.client.progress import Progress
from headrace.client.rpc import _ELSEWHERE, CALL_DEADLINE_S, FIRST_PAUSE_S, LEAST_SHARE_S, LONGEST_PAUSE_S
from headrace.client.session_link import LEAVE_DEADLINE_S, REPORT_INTERVAL_S, WATCH_DEADLINE_S, WATCH_PAUSE_S, SessionLink
from headrace.client.stream import Stream
from headrace.client.transports.intake import _REST_S, ThreadIntake
from headrace.core.errors import CoordinatorUnavailable, HeadraceError, StoreUnavailable, WaitTimeout
from headrace.core.job import JobSpec, Session, StreamState
from headrace.testing.simulation.coordinator import Replica
from headrace.testing.simulation.loop import Host
from headrace.testing.simulation.network import Network
from headrace.testing.simulation.seams import HostTime, WouldBlock
from headrace.testing.simulation.trace import Trace
from headrace.testing.simulation.worker import NODE
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.status import error_from_rpc


class Asked(BaseException):
    """A real function made a call whose answer is not known yet: it is made, and the function called again."""

    def __init__(self, method: str, request: Any, deadline_s: float) -> None:
        super().__init__(method)
        self.method, self.request, self.deadline_s = method, request, deadline_s


class Calls:
    """Stands in for client.rpc.CoordinatorRpc: the same order of replicas, over the simulated network."""

    def __init__(self, host: Host, network: Network, replicas: dict[str, Replica]) -> None:
        self.addresses = tuple(sorted(replicas))
        self._host = host
        self._network = network
        self._replicas = replicas
        self._current = 0
        self._answers: list[Any] = []
        self._next = 0

    def current(self) -> tuple[int, Replica]:
        """The replica that calls go to."""
        return self._current, self._replicas[self.addresses[self._current]]

    def failed(self, number: int) -> None:
        """It did not answer."""
        if number == self._current:
            self._current = (number + 1) % len(self.addresses)

    async def ask(self, method: str, request: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
        """One call, tried at each replica once, as CoordinatorRpc.call does."""
        last: HeadraceError | None = None
        share_s = max(LEAST_SHARE_S, deadline_s / len(self.addresses))
        end_s = self._host.loop.time() + deadline_s
        for _ in self.addresses:
            number, replica = self.current()
            left_s = end_s - self._host.loop.time()
            if left_s <= 0:
                break
            try:
                work = replica.unary(method, request)
                return await self._network.call(self._host, replica.host, work, min(left_s, share_s))
            except grpc.RpcError as failure:
                error = error_from_rpc(failure)
                if not isinstance(error, _ELSEWHERE):
                    raise error from None
                last = error
                self.failed(number)
        if isinstance(last, StoreUnavailable):
            raise last
        raise CoordinatorUnavailable(f"no simulated coordinator answered {method}")

    def call(self, method: str, request: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
        """For real functions under `run`: the answer, once it is known."""
        if self._next < len(self._answers):
            answer = self._answers[self._next]
            self._next += 1
            if isinstance(answer, HeadraceError):
                raise answer
            return answer
        copy = type(request)()
        copy.CopyFrom(request)
        raise Asked(method, copy, deadline_s)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a real function that makes calls; it is called again after each, and must be able to bear that."""
        self._answers = []
        while True:
            self._next = 0
            try:
                return function()
            except Asked as asked:
                try:
                    self._answers.append(await self.ask(asked.method, asked.request, asked.deadline_s))
                except HeadraceError as error:
                    self._answers.append(error)

    def close(self) -> None:
        """Nothing to free."""


class Rank:
    """One trainer process of one rank; `run` is its script."""

    def __init__(self, host: Host, network: Network, replicas: dict[str, Replica], trace: Trace, nonce: str) -> None:
        self.host = host
        self._clock_s = HostTime(host.loop).monotonic
        self.calls = Calls(host, network, replicas)
        self._trace = trace
        self.nonce = nonce
        self.progress: Progress | None = None
        self.link: SessionLink | None = None
        self.intake: ThreadIntake | None = None
        self.stream: Stream | None = None
        self.session: Session | None = None
        self.waiting_since_s: float | None = None
        self._ready = asyncio.Event()
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._report_now = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        self.on_recorded: Callable[[int], None] = lambda _: None
        self.on_table: Callable[[pb.WatchSessionResponse], None] = lambda _: None
        host.on_death.append(self.end)

    # --- join -----------------------------------------------------------------------------------------------------------

    async def join(self, spec: JobSpec, options: StreamOptions, state: StreamState | None) -> Session:
        """Open the job and join, as client.connect does; the stream is there afterwards."""
        answer = await self._until(
            options.join_deadline_s, lambda: self.calls.ask("OpenJob", _open_request(spec, options.world)), ()
        )
        spec = convert.job_from_proto(answer.job)
        identity = Identity(options.rank, self.nonce, NODE)
        joining = Joining(self.calls, spec, options, identity)  # type: ignore[arg-type]
        if state is not None:
            joining._request.state.CopyFrom(convert.state_to_proto(state))
        may_pass = _MAY_PASS if joining._automatic else ()
        try:
            session: Session = await self._until(options.join_deadline_s, lambda: self.calls.run(joining._poll), may_pass)
        except HeadraceError:
            with contextlib.suppress(HeadraceError):
                await self.calls.run(joining.give_back)
            raise
        self.session = session
        self._connect(spec, options, identity, state)
        return session

    async def _until(self, deadline_s: float, call: Callable[[], Any], may_pass: tuple[type[HeadraceError], ...]) -> Any:
        """As client.rpc.until."""
        loop = self.host.loop
        end_s, pause_s = loop.time() + deadline_s, FIRST_PAUSE_S
        while True:
            last: HeadraceError | None = None
            try:
                result = await call()
                if result is not None:
                    return result
            except HeadraceError as error:
                if not error.retriable and not isinstance(error, may_pass):
                    raise
                last = error
            if loop.time() + pause_s >= end_s:
                raise last or WaitTimeout("the other ranks did not join")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _connect(self, spec: JobSpec, options: StreamOptions, identity: Identity, state: StreamState | None) -> None:
        assert self.session is not None
        self.intake = ThreadIntake(self.session, options.rank, self.nonce, NODE, transport="shm", start_index=0)
        intake: Any = self.intake
        intake._changed.told = self._changed.set
        intake._selector.told = self._ready.set
        intake._wake_fd.told = self._wake

        def connect(_: StreamState | None, progress: Progress) -> SessionLink:
            assert self.session is not None
            assert self.intake is not None
            self.progress = progress
            self.link = SessionLink(self.calls, self.session, identity, self.intake, progress)  # type: ignore[arg-type]
            return self.link

        self.stream = Stream(spec, options, connect)
        self.stream._state = state
        self.stream.join()
        self.host.start(self._turns(), "intake")
        self._reporting = self.host.start(self._reports(), "control")
        self._watching = self.host.start(self._watches(), "watch")

    def _wake(self) -> None:
        self._woken.set()
        self._ready.set()

    # --- the threads ----------------------------------------------------------------------------------------------------

    async def _turns(self) -> None:
        """headrace-intake."""
        intake: Any = self.intake
        due_s: float | None = 0.0
        while due_s is not None:
            for_s = _REST_S if intake._resting else max(0.0, due_s - self._now_s())
            event = self._woken if intake._resting else self._ready
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(for_s):
                    await event.wait()
            self._ready.clear()
            self._woken.clear()
            due_s = intake.turn(intake._selector.select())

    async def _reports(self) -> None:
        """headrace-control."""
        link: Any = self.link
        while not link._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._report_now.wait()
            if link._ended is not None or link._stop.is_set():
                continue
            try:
                snapshot = link._progress.snapshot()
                await self.calls.ask("ReportProgress", link._report_message(snapshot))
                link._note_recorded(snapshot)
                self.on_recorded(link._recorded_commit)
                link._found()
            except HeadraceError as error:
                link._go_on_after(error)
            if self._watching is not None and link._watched_replica != self.calls.current()[0]:
                self._watching.cancel()

    async def _watches(self) -> None:
        """headrace-watch."""
        link: Any = self.link
        while not link._stop.is_set():
            self._watching = self.host.start(self._watch(link, link._watch_request()), "watching")
            await asyncio.wait([self._watching])
            if link._ended is not None:
                return
            await asyncio.sleep(WATCH_PAUSE_S)

    async def _watch(self, link: Any, request: pb.WatchSessionRequest) -> None:
        number, replica = self.calls.current()
        link._watched_replica = number
        try:
            async with contextlib.aclosing(replica.watch(self.host, request, WATCH_DEADLINE_S)) as tables:  # type: ignore[type-var]
                async for message in tables:
                    self.on_table(message)
                    link._take_table(convert.lane_table_from_proto(message))
        except grpc.RpcError as failure:
            error = error_from_rpc(failure)
            if isinstance(error, CoordinatorUnavailable):
                self.calls.failed(number)
            if not isinstance(error, WaitTimeout):
                link._go_on_after(error)
        except HeadraceError as error:
            link._go_on_after(error)

    # --- the script -----------------------------------------------------------------------------------------------------

    async def next(self, deadline_s: float) -> Any:
        """The next batch, or None at the end of the epoch; as next() on the stream does. Raises what that raises."""
        stream, intake = self.stream, self.intake
        assert stream is not None
        assert intake is not None
        private: Any = intake
        begun_s = self.host.loop.time()
        self.waiting_since_s = begun_s
        try:
            while True:
                self._changed.clear()
                index = stream._hand.next_index if stream._hand else 0
                try:
                    return next(iter(stream), None)
                except WouldBlock:
                    # As while it sleeps in the real call.
                    private._waiting = (index, self._now_s())
                    if private._resting:
                        private._wake()
                left_s = begun_s + deadline_s - self.host.loop.time()
                if left_s <= 0:
                    raise WaitTimeout(f"waited {deadline_s} s: {private._describe(index, self._now_s())}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, 60.0)):
                        await self._changed.wait()
                private._waiting = None
        finally:
            self.waiting_since_s = None

    async def leave(self) -> None:
        """close() of the stream: the last report, then everything ends."""
        link: Any = self.link
        assert self.stream is not None
        self.stream._expire()
        link._stop.set()
        self._report_now.set()
        if self._reporting is not None:
            await asyncio.wait([self._reporting], timeout=CALL_DEADLINE_S + 1)  # as close() joins the thread
        if link._ended is None:
            snapshot = link._progress.snapshot()
            request = pb.LeaveSessionRequest(id=link._id, last=link._report_message(snapshot))
            try:
                await self.calls.ask("LeaveSession", request, LEAVE_DEADLINE_S)
                link._note_recorded(snapshot)
                self.on_recorded(link._recorded_commit)
            except HeadraceError as error:
                self._trace.note("leave_not_recorded", error=error.code)
        self.end()

    def end(self) -> None:
        """Let go of sockets and memory."""
        private: Any = self.stream
        if private is not None and private._abandoned is not None:
            private._abandoned.detach()  # it would keep the whole run: here what it calls leads back to the stream
        if self.intake is not None:
            intake: Any = self.intake
            intake.close()
            intake._links.close()
            self.intake = None

    def _now_s(self) -> float:
        return self._clock_s()
