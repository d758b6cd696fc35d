"""Opening a job and joining its session: calls that are repeated until the answer is there. Runs on the trainer's thread."""

from __future__ import annotations

import gc
import time
from contextlib import suppress

from headrace.client.link import Identity
from headrace.client.logs import log
from headrace.client.options import StreamOptions
from headrace.client.rpc import CALL_DEADLINE_S, CoordinatorRpc, until
from headrace.core.errors import HeadraceError, JobUnknown, RankClaimed, SessionSuperseded, StateMismatch, WaitTimeout
from headrace.core.job import JobSpec, Session, StreamState
from headrace.core.session_plan import SessionPlan
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL

# A rank's holder may have died a moment ago, and a session that was being formed may have been given up. Where the
# coordinator numbers the attempts, asking again is right until the deadline.
_MAY_PASS = (RankClaimed, SessionSuperseded)
# Other ranks import their libraries at about the same time; who takes longer is told.
SLOW_JOIN_S = 10.0


def open_job(rpc: CoordinatorRpc, spec: JobSpec, world: int, deadline_s: float, keep_s: int = 0) -> JobSpec:
    """Open a job; returns it as recorded. Raises JobMismatch, ManifestMissing, NoSteps, ..., CoordinatorUnavailable."""
    request = _open_request(spec, world, keep_s)
    answer = until(deadline_s, lambda: rpc.call("OpenJob", request))
    assert answer is not None
    return convert.job_from_proto(answer.job)


def _open_request(spec: JobSpec, world: int, keep_s: int = 0) -> pb.OpenJobRequest:
    return pb.OpenJobRequest(protocol=PROTOCOL, job=convert.job_to_proto(spec), world=world, keep_s=keep_s)


class Joining:
    """One rank's claim, repeated until all ranks have come."""

    def __init__(self, rpc: CoordinatorRpc, job: JobSpec, options: StreamOptions, identity: Identity) -> None:
        self._rpc = rpc
        self._job = job
        self._options = options
        self._automatic = options.fixed_attempt == 0
        self._awaited: tuple[int, ...] = ()
        self._swept = False
        self._tell_from_s = float("inf")
        self._request = pb.JoinSessionRequest(
            protocol=PROTOCOL,
            id=pb.RankId(job=job.name, attempt=options.fixed_attempt, rank=identity.rank, nonce=identity.nonce),
            world=options.world,
            plan_hash=job.plan_hash,
            epochs=options.epochs,
            node=identity.node,
        )

    def join(self, state: StreamState | None) -> Session:
        """Block until the session is formed. Raises WaitTimeout naming who did not come; a failure gives the claim back."""
        if state is not None:
            self._request.state.CopyFrom(convert.state_to_proto(state))
        begun_s = time.monotonic()
        self._tell_from_s = begun_s + SLOW_JOIN_S
        try:
            session = until(self._options.join_deadline_s, self._poll, _MAY_PASS if self._automatic else ())
            if session is None:
                raise self._timed_out(time.monotonic() - begun_s)
            self._tell_beginning(session, state)
            return session
        except StateMismatch:
            # The claim stays until it lapses, so that the other ranks are told the same and don't wait for this one.
            raise
        except BaseException:
            self.give_back()
            raise

    def _poll(self) -> Session | None:
        try:
            answer = self._rpc.call("JoinSession", self._request)
        except JobUnknown:
            # It was opened a moment ago, so the store has lost it.
            self._rpc.call("OpenJob", _open_request(self._job, self._options.world))
            return None
        except _MAY_PASS as error:
            if self._automatic:
                self._request.id.attempt = 0
            if isinstance(error, RankClaimed) and not self._swept:
                # A stream of this process that nobody can use any more holds its rank until the garbage collector comes by,
                # and one that is part of a cycle, as a caught exception makes them, can wait for that for very long.
                self._swept = True
                gc.collect()
            raise
        self._request.id.attempt = answer.attempt
        self._awaited = tuple(answer.awaited)
        if time.monotonic() >= self._tell_from_s:
            self._tell_from_s = float("inf")
            log.warning("ranks_awaited", ranks=", ".join(map(str, self._awaited)), world=self._options.world, **self._ids())
        return convert.session_from_proto(answer.session) if answer.HasField("session") else None

    def _tell_beginning(self, session: Session, state: StreamState | None) -> None:
        """A job that was trained before does not begin anew: whoever runs a script twice shall not wonder."""
        if self._options.rank != 0:
            return
        if SessionPlan(session).length == 0:
            note = "all epochs are done; raise epochs, or give the job another name to train from the start"
            log.warning("nothing_left", epochs=self._options.epochs, note=note, **self._ids())
        elif state is None and (session.epoch or session.first):
            note = "no state was given, so it goes on after the last commit; another job name trains from the start"
            log.warning("resumed", epoch=session.epoch, batch=session.first, note=note, **self._ids())

    def _ids(self) -> dict[str, str | int]:
        return {"job": self._request.id.job, "attempt": self._request.id.attempt, "rank": self._options.rank}

    def _timed_out(self, waited_s: float) -> WaitTimeout:
        ranks = ", ".join(map(str, self._awaited)) or "unknown"
        return WaitTimeout(
            f"after {waited_s:.0f} s rank(s) {ranks} of {self._options.world} had not joined: start all ranks with the same "
            "job, world size and attempt, or raise join_deadline_s",
            job=self._request.id.job,
            attempt=self._request.id.attempt,
            rank=self._options.rank,
            awaited=ranks,
        )

    def give_back(self) -> None:
        """The claim would otherwise stand in the way of a retry until it lapses; the failure itself is what is raised."""
        if self._request.id.attempt:
            with suppress(HeadraceError):
                self._rpc.call("LeaveSession", pb.LeaveSessionRequest(id=self._request.id), CALL_DEADLINE_S)
