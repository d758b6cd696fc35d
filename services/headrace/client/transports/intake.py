"""Where a rank's batches arrive: the thread `headrace-intake` with all data sockets, and the calls of other threads.

```
trainer ── take/release ──┐            ┌── Unix sockets of local workers
control ── update/fail ───┤ lock+event ├── socket pair to the fetcher process (remote workers)
                          └─ headrace-intake: selector ─┘
```
All state is under one lock, and so are the sockets. A thread that wakes up for each message costs more than all else that
a batch costs here, so while batches come by local sockets alone and the trainer does not wait, the thread rests and lets
messages lie: the trainer sees by the mark in its slot that a batch is here, reads messages itself only where there is none
or many are unread, and sends NEXT itself when it releases. Whatever else there is to do wakes the thread through an eventfd.
"""

from __future__ import annotations

import os
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from headrace.client.gpu import Gpu
from headrace.client.logs import log
from headrace.client.origin import Origin
from headrace.client.transports import waiting
from headrace.client.transports.connections import Connections
from headrace.client.transports.links import Identity, Links
from headrace.client.transports.protocol import IntakeStatus, TakenSlot, TransportChoice
from headrace.client.transports.troubles import Lack, troubles
from headrace.core.arrivals import Arrival, Arrivals, Failure
from headrace.core.errors import HeadraceError, ProtocolMismatch, StateInvalid, WaitTimeout, from_code
from headrace.core.job import LaneTable, Session
from headrace.core.session_plan import SessionPlan
from headrace.telemetry.failures import unexpected
from headrace.wire.batch_meta import decode_meta
from headrace.wire.calls import Calls
from headrace.wire.meta_head import KnownStamps, read_head
from headrace.wire.slot_format import read_slot

_JOIN_S = 10.0
# So often may one index's slot hold something else than announced before the trainer is told.
_MOST_REJECTS = 3
_MOST_WORKERS_NAMED = 1000  # in the status; the oldest go first
# So long may messages lie unread while nobody waits for a batch: a worker's end is then noticed that much later. All that is
# there is read before the thread rests anew.
_REST_S = 0.5
_HUNGRY_S = 0.05  # after a wait the next is likely


def _lanes_of(plan: SessionPlan, rank: int) -> Callable[[int], int | None]:
    """Index -> lane of a rank, None past the session's end; each message of a batch asks for it."""

    @lru_cache(maxsize=1024)
    def lane_of(index: int) -> int | None:
        position = plan.locate(rank, index)
        return None if position is None else position.lane

    return lane_of


class ThreadIntake:
    """See client.transports.protocol.Intake.

    node: this host's node identity (Endpoint.node of workers here is equal). transport: see TransportChoice. start_index: first
    index wanted. calls: TLS and token of this rank. gpu: on which it takes batches. Starts its thread at once.
    """

    def __init__(
        self,
        session: Session,
        rank: int,
        nonce: str,
        node: str,
        *,
        transport: TransportChoice = "auto",
        start_index: int = 0,
        calls: Calls | None = None,
        gpu: Gpu | None = None,
    ) -> None:
        self._origin = Origin()
        self._session = session
        self._rank = rank
        self._plan = SessionPlan(session)
        self._lane_of = _lanes_of(self._plan, rank)
        self._arrivals = Arrivals(self._lane_of, session.lanes, session.window, start_index)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._commands: deque[Callable[[float], None]] = deque()
        self._taken: dict[int, TakenSlot] = {}
        self._stamps = KnownStamps()
        self._rejects: dict[int, int] = {}
        self._released_s: dict[int, float] = {}
        self._transports: dict[str, tuple[str, str]] = {}
        self._failure: HeadraceError | None = None
        self._waiting: tuple[int, float] | None = None
        self._lack: Lack | None = None
        self._table_known = False
        self._closing = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        self._rest = select.poll()
        self._rest.register(self._wake_fd, select.POLLIN)
        self._resting = False
        self._waited_s = time.monotonic()
        identity = Identity(session, rank, nonce, node, calls or Calls(), gpu or Gpu())
        self._links = Links(identity, transport, self._arrivals, self._selector, self._set_failure)
        self._connections = Connections(
            self._links, self._arrivals, self._changed.notify_all, self._set_failure, lambda: self._lack
        )
        self._thread = threading.Thread(target=self._run, name="headrace-intake", daemon=True)
        self._thread.start()

    # --- calls of other threads --------------------------------------------------------------------------------------

    def update(self, table: LaneTable) -> None:
        """See Intake."""
        if len(table.owners) != self._session.lanes or len(table.tokens) != self._session.lanes:
            raise ProtocolMismatch(f"a lane table of {len(table.owners)} lanes came for {self._session.lanes}")
        with self._lock:
            now_s = time.monotonic()
            grew = self._arrivals.table(table.owners, table.tokens, table.window, now_s, table.version)
            self._table_known = True
            self._command(lambda now_s: self._links.table(table, now_s))
            if grew:
                self._command(self._connections.window_grew)

    def take(self, index: int, deadline_s: float) -> TakenSlot:
        """See Intake. deadline_s: longest wait in seconds; 0 asks only. An index may be taken again until it is released."""
        start_s = time.monotonic()
        with self._lock:
            noted = index in self._taken or self._connections.look(index, start_s)
            taken = self._find(index, told=deadline_s > 0)
            if taken is None and not noted:
                self._connections.read_local(start_s)
                taken = self._find(index, told=deadline_s > 0)
            if taken is not None:
                self._lack = None
                return taken
            if deadline_s <= 0:
                raise self._timeout(index, deadline_s, start_s)
            try:
                self._waiting = (index, start_s)
                if self._lack is None or self._lack.index != index:
                    self._lack = Lack(index, start_s)
                taken = self._wait(index, start_s, deadline_s)
                self._lack = None
                return taken._replace(waited=True)
            finally:
                self._waiting = None
                self._waited_s = time.monotonic()

    def release(self, next_index: int) -> None:
        """See Intake."""
        with self._lock:
            if next_index <= self._arrivals.next:
                return
            self._note_released(next_index)
            self._arrivals.release(next_index)
            for index in list(self._taken):
                if index < next_index:
                    del self._taken[index]
                    self._rejects.pop(index, None)
            for slab in self._links.slabs.values():
                slab.take_back(next_index)
            if not self._links.send_next():
                self._wake()

    def fail(self, error: HeadraceError) -> None:
        """See Intake. The first error stays."""
        with self._lock:
            self._set_failure(error)

    def status(self) -> IntakeStatus:
        """See Intake."""
        with self._lock:
            awaited = ""
            now_s = time.monotonic()
            if self._waiting is not None:
                index, since_s = self._waiting
                awaited = f"{self._describe(index, now_s)}; waiting since {now_s - since_s:.1f} s"
            self._note_transports()
            peers, lack = list(self._links.peers.values()), self._lack
            return IntakeStatus(
                dict(self._transports),
                self._arrivals.refused,
                self._arrivals.remade,
                awaited,
                waiting.milestones(self._arrivals.awaited(lack.index), peers) if lack else {},
                troubles(self._arrivals, peers, lack, self._links.fetch.works_since_s, now_s),
            )

    def close(self) -> None:
        """See Intake. Nothing in a forked child."""
        if not self._origin.here:
            return
        with self._lock:
            if not self._closing:
                self._closing = True
                text = "the stream is closed: open another with job.stream(...)"
                self._set_failure(StateInvalid(text, job=self._session.job.name, rank=self._rank))
                self._taken.clear()
                self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise HeadraceError(f"the thread headrace-intake did not end in {_JOIN_S:.0f} s", rank=self._rank)
        with self._lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001 - the trainer must hear of it: nobody else watches this thread
            self.fail(unexpected("intake_failed", "intake failed", error, rank=self._rank))
        finally:
            with self._lock:
                self._links.close()
                self._selector.close()

    def _loop(self) -> None:
        due_s: float | None = 0.0
        while due_s is not None:
            if self._resting:
                self._rest.poll(1000 * _REST_S)
            due_s = self.turn(self._selector.select(0.0 if self._resting else max(0.0, due_s - time.monotonic())))

    def turn(self, events: list[tuple[selectors.SelectorKey, int]]) -> float | None:
        """Take in what the selector found, and do what is due; returns when to be called again, None at the end."""
        with self._lock:
            if self._closing:
                return None
            now_s = time.monotonic()
            for key, _ in events:
                if key.data is None:
                    os.eventfd_read(self._wake_fd)
                else:
                    self._connections.readable(key.data, now_s)
            while self._commands:
                self._commands.popleft()(now_s)
            due_s = self._connections.mend(now_s)
            self._note_transports()
            self._resting = self._may_rest(due_s, now_s)
            return due_s

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _may_rest(self, due_s: float, now_s: float) -> bool:
        """True where nobody is served by reading messages at once: a trainer that waits, now or a moment ago, would be."""
        waits = self._waiting is not None or now_s < self._waited_s + _HUNGRY_S
        return not waits and due_s > now_s + _REST_S and self._links.settled()

    def _wait(self, index: int, start_s: float, deadline_s: float) -> TakenSlot:
        if self._resting:
            self._wake()
        while True:
            taken = self._find(index)
            if taken is not None:
                return taken
            now_s = time.monotonic()
            left_s = start_s + deadline_s - now_s
            if left_s <= 0:
                raise self._timeout(index, deadline_s, now_s)
            self._changed.wait(left_s)

    def _command(self, command: Callable[[float], None]) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _set_failure(self, error: HeadraceError) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _find(self, index: int, told: bool = True) -> TakenSlot | None:
        """The batch if it is here, checked. told: the trainer hears of a failure, which so is over; else it only asked."""
        if self._failure is not None:
            raise self._failure
        if index < self._arrivals.next:
            raise HeadraceError(f"batch index {index} was released already", index=index, rank=self._rank)
        if index in self._taken and not self._taken[index].lost:
            return self._taken[index]
        found = self._arrivals.get(index)
        if isinstance(found, Failure):
            if told:
                self._arrivals.try_again()
                self._wake()
            raise from_code(found.code, found.message, {**found.ids, "index": index, "worker": found.worker})
        if found is None:
            return None
        try:
            self._taken[index] = self._open(found)
        except ProtocolMismatch as error:
            self._reject(found, error)
            return None
        return self._taken[index]

    def _open(self, arrival: Arrival) -> TakenSlot:
        slab = self._links.slabs[arrival.place]
        slot = slab.view(arrival.index)
        header, meta = read_slot(slot)
        head = read_head(meta)
        expected = (arrival.index, arrival.token, arrival.total_bytes)
        if (header.index, header.token, header.total_bytes) != expected:
            raise ProtocolMismatch(
                f"slot holds index {header.index} token {header.token} of {header.total_bytes} bytes, "
                f"READY said {arrival.index}, {arrival.token}, {arrival.total_bytes}"
            )
        if (head.attempt, head.rank, head.index, head.token) != (self._session.attempt, self._rank, *expected[:2]):
            raise ProtocolMismatch(f"batch is of attempt {head.attempt} rank {head.rank} index {head.index}")
        if head.stamp not in self._stamps:
            self._learn(head.stamp, decode_meta(meta).job)
        if header.on_device != (slab.device is not None):
            raise ProtocolMismatch("the slot says that its pixels lie elsewhere than agreed")
        device = None if slab.device is None else slab.device.pixels(arrival.index, header)
        peer = self._links.by_number(arrival.link)
        released_s = self._released_s.get(arrival.index - peer.slots + 1) if peer is not None else None
        came = (slab.transport, arrival.worker, arrival.at_s)
        return TakenSlot(
            arrival.index, slot, header, head, meta, *came, released_s=released_s, device=device, pinned=slab.pinned
        )

    def _note_released(self, next_index: int) -> None:
        """Keep since when indexes are released, for as long as batches that use their slots may come."""
        now_s = time.monotonic()
        for index in range(self._arrivals.next + 1, next_index + 1):
            self._released_s[index] = now_s
            self._released_s.pop(index - 2 * self._arrivals.window, None)

    def _learn(self, stamp: bytes, job: str) -> None:
        """A stamp stands for the texts of a batch."""
        if job != self._session.job.name:
            raise ProtocolMismatch(f"batch is of job {job}")
        self._stamps.add(stamp)

    def _reject(self, arrival: Arrival, error: ProtocolMismatch) -> None:
        index = arrival.index
        log.warning("batch_rejected", worker=arrival.worker, index=index, reason=error.message)
        self._arrivals.discard(index)
        self._command(lambda _: self._connections.reject(arrival))
        self._rejects[index] = self._rejects.get(index, 0) + 1
        if self._rejects[index] >= _MOST_REJECTS:
            raise ProtocolMismatch(
                f"worker {arrival.worker} delivered a wrong batch {self._rejects[index]} times: {error.message}; "
                "run the same version on worker and trainer",
                worker=arrival.worker,
                index=index,
                rank=self._rank,
            ) from error

    def _describe(self, index: int, now_s: float) -> str:
        peers = list(self._links.peers.values())
        position = self._plan.locate(self._rank, index)
        fingerprint = self._session.job.fingerprint
        return waiting.describe(
            self._arrivals.awaited(index), position, peers, self._table_known, now_s, fingerprint=fingerprint
        )

    def _timeout(self, index: int, deadline_s: float, now_s: float) -> WaitTimeout:
        text = f"waited {deadline_s:.1f} s: {self._describe(index, now_s)}"
        awaited = self._arrivals.awaited(index)
        job = self._session.job.name
        return WaitTimeout(text, job=job, rank=self._rank, index=index, worker=awaited.worker or "nobody")

    def _note_transports(self) -> None:
        for peer in self._links.peers.values():
            if peer.rung is not None:
                self._transports.pop(peer.worker, None)
                self._transports[peer.worker] = (peer.rung.name, peer.rung.reason)
        while len(self._transports) > _MOST_WORKERS_NAMED:
            del self._transports[next(iter(self._transports))]
