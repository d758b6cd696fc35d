"""A rank's tie to its session through the coordinator: two threads, and the way out.

`headrace-control` reports progress every second or two, which is also the rank's sign of life. `headrace-watch` reads the
lane tables and passes them to the intake. Both carry the session's descriptor, so that a store that lost it is healed. A
coordinator that is down is tolerated: batches go on flowing from the workers, and the loss and the return are logged once.
What ends the session (superseded, rank claimed) is passed to the intake, whose `take` raises it to the trainer.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

import grpc

from headrace.client.link import Identity
from headrace.client.logs import log
from headrace.client.origin import Origin
from headrace.client.progress import Progress, Snapshot
from headrace.client.rpc import CALL_DEADLINE_S, CoordinatorRpc
from headrace.client.transports.protocol import Intake, LaneTrouble
from headrace.core.errors import (
    CoordinatorUnavailable,
    HeadraceError,
    JobMismatch,
    ProtocolMismatch,
    RankClaimed,
    SessionSuperseded,
    SpecInvalid,
    StateMismatch,
    TooManyBadSamples,
    Unauthenticated,
    WaitTimeout,
    WorldMismatch,
)
from headrace.core.job import Endpoint, LaneTable, Session, Stop
from headrace.core.session_plan import SessionPlan
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.status import error_from_rpc

REPORT_INTERVAL_S = 1.0
# A watch is opened anew after this long, with the descriptor, so that a half-dead replica is noticed and a store healed.
WATCH_DEADLINE_S = 30.0
WATCH_PAUSE_S = 0.25
LEAVE_DEADLINE_S = 3.0
SLOW_WAIT_S = 10.0
_FINAL = (
    SessionSuperseded,
    RankClaimed,
    WorldMismatch,
    StateMismatch,
    JobMismatch,
    ProtocolMismatch,
    SpecInvalid,
    Unauthenticated,
)


class SessionLink:
    """See the module; implements client.link.Link. Owns `rpc` and `intake` and closes them."""

    def __init__(self, rpc: CoordinatorRpc, session: Session, identity: Identity, intake: Intake, progress: Progress) -> None:
        self.session = session
        self.intake = intake
        self.stop: Stop | None = None
        self._origin = Origin()
        self._rpc = rpc
        self._node = identity.node
        self._progress = progress
        self._id = pb.RankId(job=session.job.name, attempt=session.attempt, rank=identity.rank, nonce=identity.nonce)
        self._descriptor = convert.session_to_proto(session)
        self._engine_told = False
        self._ids: dict[str, str | int] = {"job": session.job.name, "attempt": session.attempt, "rank": identity.rank}
        self._endpoints: dict[str, Endpoint] = {}
        self._newest: dict[str, Endpoint] = {}
        self._stop = threading.Event()
        self._report_now = threading.Event()
        self._recorded = threading.Condition()
        self._recorded_commit = 0
        self._left_out = False
        self._ended: HeadraceError | None = None
        self._lost_since_s: float | None = None
        self._told_wait_s: float | None = None
        self._watch: Any = None
        self._watched_replica = 0
        self._tables = 0
        self._close_lock = threading.Lock()
        self._closed = False
        self._abandoned = False
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._report_until_stop,), name="headrace-control", daemon=True),
            threading.Thread(target=self._guarded, args=(self._watch_until_stop,), name="headrace-watch", daemon=True),
        ]

    def start(self) -> None:
        """Begin to report and to watch. A stream that nobody closes is closed when the interpreter exits."""
        atexit.register(self.close)
        for thread in self._threads:
            thread.start()

    def clock_of(self, worker: str) -> str:
        """See Link: its node by the newest two lane tables; one that they do not name has a clock of its own."""
        endpoint = self._endpoints.get(worker)
        return f"worker {worker}" if endpoint is None else "" if endpoint.node == self._node else endpoint.node

    def wait_recorded(self, committed: int, deadline_s: float) -> None:
        """Block until a report with this commit count was answered. Raises WaitTimeout, or what ended the session."""
        self._report_now.set()
        with self._recorded:
            self._recorded.wait_for(
                lambda: self._recorded_commit >= committed or self._ended is not None or self._stop.is_set(), deadline_s
            )
            if self._recorded_commit >= committed:
                return
            if self._ended is not None:
                raise self._ended
        raise WaitTimeout(
            f"the coordinator at {', '.join(self._rpc.addresses)} did not record the commit of {committed} batches within "
            f"{deadline_s:g} s; it is reported again until it does, or the stream is closed",
            **self._ids,
        )

    def close(self) -> None:
        """Leave with the last cursors, then end threads, intake and channels; idempotent. Nothing in a forked child."""
        if not self._origin.here:  # also no lock: a thread that is not here may have held it
            return
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._stop.set()
        self._report_now.set()
        with self._recorded:
            self._recorded.notify_all()
        watch = self._watch
        if watch is not None:
            watch.cancel()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(CALL_DEADLINE_S + 1)
        with contextlib.ExitStack() as last:
            last.callback(self._rpc.close)
            last.callback(self.intake.close)
            self._leave()

    def abandon(self) -> None:
        """See Link. No more than a note for `headrace-control`: the garbage collector may call it, under any lock."""
        self._abandoned = True

    # --- headrace-control --------------------------------------------------------------------------------------------

    def _report_until_stop(self) -> None:
        while not self._stop.is_set():
            self._report_now.wait(REPORT_INTERVAL_S)
            self._report_now.clear()
            if self._stop.is_set():
                return
            if self._abandoned:
                log.warning("stream_not_closed", **self._ids)
                self.close()
            elif self._ended is None:
                self._tell_slow_wait()
                if self._due():
                    self._report_once()

    def _due(self) -> bool:
        """Every other report is left out while all is well and only counts have grown: a wake-up costs more than its work."""
        calm = self._lost_since_s is None and not self._progress.pressing(self._recorded_commit)
        self._left_out = calm and not self._left_out
        return not self._left_out

    def _report_once(self) -> None:
        try:
            self._report(self._progress.snapshot())
            self._found()
        except HeadraceError as error:
            self._go_on_after(error)
        watch = self._watch
        if watch is not None and self._watched_replica != self._rpc.current()[0]:
            watch.cancel()  # that replica did not answer a report; its watch would be silent until its deadline

    def _report(self, snapshot: Snapshot) -> None:
        self._rpc.call("ReportProgress", self._report_message(snapshot), CALL_DEADLINE_S)
        self._note_recorded(snapshot)

    def _note_recorded(self, snapshot: Snapshot) -> None:
        self._progress.answered(snapshot)
        with self._recorded:
            self._recorded_commit = max(self._recorded_commit, snapshot.committed)
            self._recorded.notify_all()

    def _report_message(self, snapshot: Snapshot) -> pb.ReportProgressRequest:
        status = self.intake.status()
        return pb.ReportProgressRequest(
            id=self._id,
            session=self._known(),
            consumed=snapshot.consumed,
            committed=snapshot.committed,
            wait_s=snapshot.wait_s,
            wait_by_cause=[pb.WaitByCause(cause=cause, seconds=seconds) for cause, seconds in snapshot.wait_by_cause.items()],
            elapsed_s=snapshot.elapsed_s,
            transport=snapshot.transport,
            bad_samples=[
                pb.BadSample(epoch=bad.epoch, sample=bad.sample, key=bad.key, reason=bad.reason) for bad in snapshot.bad
            ],
            batches_remade=status.remade,
            batches_fenced=status.refused,
            node=self._node,
            waiting_s=snapshot.waiting_s,
            samples=snapshot.images,
            bad_counts=[pb.BadCount(reason=reason, count=count) for reason, count in snapshot.bad_counts.items()],
            troubles=[_trouble_to_proto(trouble) for trouble in status.troubles],
            **self._stop_known(),
        )

    def _stop_known(self) -> dict[str, Any]:
        stop = self.stop
        return {} if stop is None else {"stop_index": stop.index, "stop_why": stop.why}

    def _watch_request(self) -> pb.WatchSessionRequest:
        return pb.WatchSessionRequest(id=self._id, session=self._known(), **self._stop_known())

    def _known(self) -> pb.Session:
        """The session, from which a store that lost it is healed; with the engine of its batches once that is known."""
        fingerprint = self._progress.fingerprint
        if fingerprint and not self._engine_told:
            bound = replace(self.session, job=self.session.job.with_fingerprint(fingerprint))
            self._descriptor, self._engine_told = convert.session_to_proto(bound), True
        return self._descriptor

    def _leave(self) -> None:
        """One last report each 1000 bad samples, then the rank is given back. Failing that, the claim lapses by itself."""
        snapshot = self._progress.snapshot()
        if isinstance(self._ended, SessionSuperseded | RankClaimed):
            self._tell_unconfirmed(snapshot.committed)
            return
        try:
            while snapshot.bad_left:
                self._report(snapshot)
                snapshot = self._progress.snapshot()
            request = pb.LeaveSessionRequest(id=self._id, last=self._report_message(snapshot))
            self._rpc.call("LeaveSession", request, LEAVE_DEADLINE_S)
            self._note_recorded(snapshot)
        except HeadraceError as error:
            log.warning("leave_not_recorded", error=str(error), **self._ids)
            self._tell_unconfirmed(snapshot.committed)

    def _tell_unconfirmed(self, committed: int) -> None:
        """Nobody reports it any more: whoever trains on must know that the next attempt may begin before it."""
        place = SessionPlan(self.session).locate(self._id.rank, committed - 1) if committed > self._recorded_commit else None
        if place is not None:
            note = (
                "no coordinator has confirmed that the commit of this step, the last one, is recorded: another attempt without "
                "a state may begin at an earlier step; give it the state of your checkpoint"
            )
            log.warning("commit_not_confirmed", epoch=place.epoch, step=place.step, note=note, **self._ids)

    def _tell_slow_wait(self) -> None:
        since_s = self._progress.waiting_since_s
        if since_s is None or since_s == self._told_wait_s or time.monotonic() - since_s < SLOW_WAIT_S:
            return
        self._told_wait_s = since_s
        log.warning(
            "batch_awaited", awaited=self.intake.status().awaited, waited_s=round(time.monotonic() - since_s, 1), **self._ids
        )

    # --- headrace-watch ----------------------------------------------------------------------------------------------

    def _watch_until_stop(self) -> None:
        while not self._stop.is_set():
            request = self._watch_request()
            number, stub = self._rpc.current()
            try:
                self._watched_replica = number
                self._watch = stub.WatchSession(request, timeout=WATCH_DEADLINE_S, **self._rpc.tokens())
                if self._stop.is_set():
                    self._watch.cancel()
                for message in self._watch:
                    self._take_table(convert.lane_table_from_proto(message))
            except grpc.RpcError as failure:
                error = error_from_rpc(failure)
                if isinstance(error, CoordinatorUnavailable):
                    self._rpc.failed(number)
                # A watch whose deadline has passed is nothing but old; everything else is judged.
                if not self._stop.is_set() and not isinstance(error, WaitTimeout) and not self._go_on_after(error):
                    return
            except HeadraceError as error:
                if not self._go_on_after(error):
                    return
            self._stop.wait(WATCH_PAUSE_S)

    def _take_table(self, table: LaneTable) -> None:
        # The table before, too: batches of a worker that just left may still be handed over.
        self._endpoints = {**self._newest, **table.endpoints}
        self._newest = table.endpoints
        self._tables += 1
        self.intake.update(table)
        if table.stop is not None and (self.stop is None or table.stop.index < self.stop.index):
            self.stop = table.stop  # before the look at what was consumed: the trainer counts first and looks then
            log.warning("session_stops", index=table.stop.index, why=table.stop.why, **self._ids)
            if self._progress.consumed >= table.stop.index:  # it may be waiting for a batch that is not to be had any more
                self.intake.fail(TooManyBadSamples(table.stop.why, **self._ids))

    # --- both --------------------------------------------------------------------------------------------------------

    def _guarded(self, body: Any) -> None:
        """A defect in a thread reaches the trainer instead of leaving it to wait."""
        try:
            body()
        except Exception as error:  # noqa: BLE001
            self._end(HeadraceError(f"the client's control thread failed, please report it: {error!r}", **self._ids))

    def _go_on_after(self, error: HeadraceError) -> bool:
        """Judge an error of the coordinator: False if it ends the session (the intake then raises it); else tell once."""
        if isinstance(error, _FINAL):
            self._end(error)
            return False
        if self._lost_since_s is None:
            self._lost_since_s = time.monotonic()
            log.warning("coordinator_lost", error=str(error), **self._ids)
        return True

    def _end(self, error: HeadraceError) -> None:
        with self._recorded:
            self._ended = self._ended or error
            self._recorded.notify_all()
        self.intake.fail(error)

    def _found(self) -> None:
        if self._lost_since_s is not None:
            log.warning("coordinator_back", after_s=round(time.monotonic() - self._lost_since_s, 1), **self._ids)
            self._lost_since_s = None


def _trouble_to_proto(trouble: LaneTrouble) -> pb.LaneTrouble:
    message = pb.LaneTrouble(
        lane=trouble.lane, worker=trouble.worker, token=trouble.token, connected=trouble.connected, reason=trouble.reason
    )
    message.waited.FromMilliseconds(int(1000 * trouble.waited_s))
    return message
