"""Heartbeats of workers: a sign of life and what a worker holds in, its leases out.

A worker with lanes in a hundred jobs states all of them about once a second, and is told all of them again, which hardly ever
differ from the last time. So what each was told last is kept while what it was made of stays: who states just that has no news.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import structlog

from headrace.coordinator.board import Board
from headrace.coordinator.holdings import Leases
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.requests import adopt_of, worker_of
from headrace.core.errors import HeadraceError, StoreConflict, StoreUnavailable
from headrace.core.events import Adopt, JobState
from headrace.core.lease import BEATS_A_TTL, heartbeat_patience_s
from headrace.core.records import JobRecord, SessionRecord, WorkerRecord
from headrace.telemetry.seldom import Seldom
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb

log = structlog.get_logger()

Held = Mapping[str, tuple[JobState, Leases]]  # by job

# A heartbeat waits so long for the look that it causes, of the three quarters of a second that its worker waits for it.
_LOOK_S = 0.3
_LEAST_ROOM = 1000
_FEWER = 1.5


@dataclass(frozen=True, slots=True)
class HeartbeatRules:
    """What workers are told."""

    interval_s: float
    ttl_s: float


class _Told(NamedTuple):
    """What a worker is told of a job, and what that was made of."""

    job: JobRecord
    session: SessionRecord
    leases: Leases
    message: pb.SessionLeases


class Heartbeats:
    """See the module. One event loop."""

    def __init__(self, ledger: Ledger, board: Board, rules: HeartbeatRules) -> None:
        self._ledger = ledger
        self._board = board
        self._rules = rules
        self._told: dict[str, dict[str, _Told]] = {}
        self._room = _LEAST_ROOM
        self._seldom = Seldom()

    async def answer(self, request: pb.HeartbeatRequest, left_s: float | None = None) -> pb.HeartbeatResponse:
        """Record it, take over what this replica did not know, and tell the worker what it holds. Raises HeadraceError.

        left_s: how long the worker goes on waiting, if that is known.
        """
        ttl_us = int(self._rules.ttl_s * 1e6)
        waited_s = 0.0 if left_s is None else max(0.0, heartbeat_patience_s(self._rules.ttl_s) - left_s)
        with self._board.sight.hearing(waited_s):
            before, record = await self._ledger.fleet.heartbeat(worker_of(request), ttl_us)
        if before is None or _standing(before) != _standing(record):
            log.info(
                "worker_draining" if record.draining else "worker_seen",
                worker=record.endpoint.worker, grpc=record.endpoint.grpc, fingerprint=record.fingerprint,
            )  # fmt: skip
            # Or each worker that was not heard would make all the others wait still longer.
            if not self._board.sight.deaf or not self._board.loaded:
                await self._look_soon()
        elif not self._board.loaded:
            await self._board.refresh()
        worker, held = record.endpoint.worker, self._held(record)
        # All of them before any look: a worker's patience ends before looks at many jobs, and what is not told again moves.
        if news := await self._take(request, held):
            await asyncio.gather(*(self._board.refresh(job) for job in dict.fromkeys(news)))
            held = self._held(record)
        answer = pb.HeartbeatResponse(leases=self._tell(worker, held))
        answer.ttl.FromMicroseconds(ttl_us)
        # Where there are more than can be heard in time, a third fewer may be.
        fewer_s = min(_FEWER * self._rules.interval_s, self._rules.ttl_s / BEATS_A_TTL)
        answer.interval.FromMicroseconds(int(1e6 * (fewer_s if self._board.sight.strained else self._rules.interval_s)))
        return answer

    async def _look_soon(self) -> None:
        """A pass over all, of which a worker waits for a part of its patience: over a large fleet it may take longer.

        But a replica that has read nothing yet would take from it what it holds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S if self._board.loaded else None):
                await self._board.refresh()

    def _held(self, record: WorkerRecord) -> Held:
        held = self._board.held_by(record.endpoint.worker, record.endpoint.incarnation)
        return {state.name: (state, leases) for state, leases in held}

    async def _take(self, request: pb.HeartbeatRequest, held: Held) -> list[str]:
        """Take over what is news of what a worker holds; returns its jobs."""
        told, news = self._told.get(request.endpoint.worker, {}), list[str]()
        for stated in request.held:
            last, now = told.get(stated.job), held.get(stated.job)
            if last is not None and now is not None and _stands(last, *now) and last.message == stated:
                continue
            event = adopt_of(request, stated)
            try:
                if await self._adopt(stated.job, event):
                    news.append(stated.job)
            except (StoreUnavailable, StoreConflict):
                raise
            except HeadraceError as error:
                # What is wrong with one job must not keep a worker from its leases of all the others.
                if (more := self._seldom.due((error.code, stated.job))) is not None:
                    worker = request.endpoint.worker
                    log.warning(
                        "leases_not_taken", worker=worker, error=error.message, code=error.code, job=stated.job, more=more
                    )
        return news

    async def _adopt(self, job: str, event: Adopt) -> bool:
        """False where a worker holds nothing that is news here."""
        state = self._board.job(job)
        if state is not None and state.session is not None and state.session.attempt >= event.attempt:
            lanes = state.lanes  # thousands, of which a worker holds some: not gone through with every heartbeat
            if state.session.formed and all(token <= (lanes[n].token if n in lanes else 0) for n, token in event.tokens):
                return False
            if state.session.attempt > event.attempt:
                event = replace(event, known=None)
        await self._ledger.update(job, event)
        return True

    def _tell(self, worker: str, held: Held) -> list[pb.SessionLeases]:
        """What a worker holds of all jobs. Not to be written to."""
        known, told = self._told.get(worker, {}), dict[str, _Told]()
        for name, (state, leases) in held.items():
            last = known.get(name)
            told[name] = last if last is not None and _stands(last, state, leases) else _made(state, leases)
        if worker not in self._told and len(self._told) >= self._room:
            self._forget()
        self._told[worker] = told
        return [of.message for of in told.values()]

    def _forget(self) -> None:
        """Workers come and go, each with a name of its own."""
        there = {record.endpoint.worker for record in self._board.live_workers()}
        self._told = {worker: told for worker, told in self._told.items() if worker in there}
        self._room = max(_LEAST_ROOM, 2 * len(self._told))


def _stands(told: _Told, state: JobState, leases: Leases) -> bool:
    """Equal records are the same one where they were read more than once; where not, the message is made anew."""
    return told.leases is leases and told.session is state.session and told.job is state.job


def _made(state: JobState, leases: Leases) -> _Told:
    assert state.job is not None
    assert state.session is not None
    session = _session_message(state.job, state.session)
    message = pb.SessionLeases(job=state.name, attempt=state.session.attempt, session=session)
    message.lanes.extend(number for number, _ in leases)
    message.tokens.extend(token for _, token in leases)
    return _Told(state.job, state.session, leases, message)


@lru_cache(maxsize=1024)
def _session_message(job: JobRecord, session: SessionRecord) -> pb.Session:
    """Many workers are told of the same session. Not to be written to."""
    return convert.session_to_proto(session.session(job))


def _standing(record: WorkerRecord) -> object:
    """What of a worker makes lanes move at once."""
    return record.endpoint, record.fingerprint, record.ops, record.draining, record.unable
