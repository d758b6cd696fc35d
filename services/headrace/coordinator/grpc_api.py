"""The coordinator's gRPC service: requests in, events applied, answers out. Logic is in the rules, not here.

Every HeadraceError becomes a gRPC status with its ErrorDetail; anything else is logged with its trace and answered as the
base class, so that no client hangs on our bugs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from headrace.coordinator import requests
from headrace.coordinator.access import Access
from headrace.coordinator.board import Board
from headrace.coordinator.heartbeats import HeartbeatRules, Heartbeats
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import ManifestFacts, Manifests
from headrace.coordinator.trouble_log import TroubleLog
from headrace.core.errors import HeadraceError, ManifestInvalid, RankClaimed, WorldMismatch
from headrace.core.events import JobState, Joined, Observe, Open
from headrace.core.job import MAX_WORLD, JobSpec
from headrace.core.join import superseded
from headrace.telemetry.failures import unexpected
from headrace.wire import convert, status
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen import coordinator_service_pb2_grpc as pb_grpc
from headrace.wire.messages import check_protocol

log = structlog.get_logger()

SERVICE = "headrace.v1.CoordinatorService"
# A watcher is woken by what changes; it looks again by itself so often, and so often while its session is not there.
_QUIET_S = 10.0
_LOST_S = 1.0
# A rank takes no token that is a day newer than its table.
_TIME_TOLD_US = 3_600_000_000
T = TypeVar("T")
Context = Any  # grpc.aio.ServicerContext, generic in requests that differ by call


class CoordinatorService(pb_grpc.CoordinatorServiceServicer):
    """See the module. One event loop."""

    def __init__(
        self,
        ledger: Ledger,
        board: Board,
        manifests: Manifests,
        beats: HeartbeatRules,
        instruments: Instruments,
        *,
        access: Access | None = None,
    ) -> None:
        self._ledger = ledger
        self._board = board
        self._manifests = manifests
        self._heartbeats = Heartbeats(ledger, board, beats)
        self._instruments = instruments
        self._access = access or Access()
        self._troubles = TroubleLog(instruments.events)

    # --- the six calls ------------------------------------------------------------------------------------------------

    async def OpenJob(self, request: pb.OpenJobRequest, context: Context) -> pb.OpenJobResponse:
        """See the proto."""
        return await self._answer(context, self._open(request, context))

    async def JoinSession(self, request: pb.JoinSessionRequest, context: Context) -> pb.JoinSessionResponse:
        """See the proto."""
        return await self._answer(context, self._join(request, context))

    async def WatchSession(self, request: pb.WatchSessionRequest, context: Context) -> AsyncIterator[pb.WatchSessionResponse]:
        """See the proto."""
        snapshots = self._watch(request, context)
        while True:
            try:
                message = await anext(snapshots)
            except HeadraceError as error:
                await self._refuse(context, error)
            except Exception as error:  # noqa: BLE001 - the edge: gRPC would answer with its text
                await self._failed(context, error, job=request.id.job)
            yield message

    async def ReportProgress(self, request: pb.ReportProgressRequest, context: Context) -> pb.ReportProgressResponse:
        """See the proto."""
        return await self._answer(context, self._report(request, context))

    async def LeaveSession(self, request: pb.LeaveSessionRequest, context: Context) -> pb.LeaveSessionResponse:
        """See the proto."""
        return await self._answer(context, self._leave(request, context))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        """See the proto."""
        return await self._answer(context, self._heartbeat(request, context))

    # --- how they are answered ----------------------------------------------------------------------------------------

    async def _open(self, request: pb.OpenJobRequest, context: Context) -> pb.OpenJobResponse:
        check_protocol(request.protocol, "the trainer")
        asked = convert.job_from_proto(request.job)
        if not 1 <= request.world <= MAX_WORLD:
            raise WorldMismatch(
                f"world size must be from 1 to {MAX_WORLD}, not {request.world}", job=asked.name, world=request.world
            )
        tokens = self._access.job_tokens(context, asked.name)
        spec = _filled_in(asked, await self._manifests.get(asked.dataset, new=self._board.job(asked.name) is None))
        outcome = await self._ledger.update(spec.name, Open(spec, request.world, tokens, request.keep_s))
        assert outcome.state.job is not None
        recorded = outcome.state.job.spec
        return pb.OpenJobResponse(job=convert.job_to_proto(recorded), plan_hash=recorded.plan_hash)

    async def _join(self, request: pb.JoinSessionRequest, context: Context) -> pb.JoinSessionResponse:
        event = replace(requests.join_of(request), tokens=self._access.job_tokens(context, request.id.job))
        name = request.id.job
        joined = await self._ledger.claim(name, event, self._board.job(name))
        if joined is None:
            effects = (await self._ledger.update(name, event)).effects
            joined = next(effect for effect in effects if isinstance(effect, Joined))
        session = convert.session_to_proto(replace(joined.session, token_hashes=())) if joined.session else None
        return pb.JoinSessionResponse(attempt=joined.attempt, session=session, awaited=joined.awaited)

    async def _watch(self, request: pb.WatchSessionRequest, context: Context) -> AsyncIterator[pb.WatchSessionResponse]:
        event = replace(requests.observe_of(request), tokens=self._access.job_tokens(context, request.id.job))
        name = request.id.job
        sent: pb.WatchSessionResponse | None = None
        recorded = (await self._ledger.update(name, event, rank=event.rank)).state
        if not _is_of(self._board.job(name), recorded, event.rank):  # else it is as new as what other watchers were told
            await self._board.refresh(name)
        while True:
            change = self._board.next_change(name)
            quiet_s = _QUIET_S
            state = self._board.job(name)
            if state is None or not _formed(state, event.attempt):
                # The store lost the session: put it back from what the rank knows.
                await self._ledger.update(name, event, rank=event.rank)
                await self._board.refresh(name)
                quiet_s = _LOST_S
            else:
                _check_watcher(state, event)
                message = self._board.lane_table(state)
                if sent is not None and message.window < sent.window:
                    smaller, message = message, pb.WatchSessionResponse()
                    message.CopyFrom(smaller)
                    message.window = sent.window
                if sent is None or not _same_table(sent, message):
                    sent = message
                    yield message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(quiet_s):
                    await change.wait()

    async def _report(self, request: pb.ReportProgressRequest, context: Context) -> pb.ReportProgressResponse:
        event = replace(requests.progress_of(request), tokens=self._access.job_tokens(context, request.id.job))
        await self._ledger.update(request.id.job, event, rank=event.rank)
        self._troubles.tell(request)
        return pb.ReportProgressResponse()

    async def _leave(self, request: pb.LeaveSessionRequest, context: Context) -> pb.LeaveSessionResponse:
        tokens = self._access.job_tokens(context, request.id.job)
        event = requests.leave_of(request)
        event = replace(event, tokens=tokens, last=event.last and replace(event.last, tokens=tokens))
        await self._ledger.update(request.id.job, event, rank=event.rank)
        return pb.LeaveSessionResponse()

    async def _heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        self._access.check_worker(context, request.endpoint.worker)
        return await self._heartbeats.answer(request, context.time_remaining())

    # --- errors -------------------------------------------------------------------------------------------------------

    async def _answer(self, context: Context, call: Awaitable[T]) -> T:
        try:
            return await call
        except HeadraceError as error:
            await self._refuse(context, error)
        except Exception as error:  # noqa: BLE001 - the edge, too
            await self._failed(context, error)
        raise AssertionError("an aborted call went on")

    async def _refuse(self, context: Context, error: HeadraceError) -> None:
        self._instruments.call_refused(error, context.peer())
        await status.abort(context, error)

    async def _failed(self, context: Context, error: Exception, **ids: str) -> None:
        found = unexpected("call_failed", "the coordinator failed on this call", error, **ids)
        if type(found) is HeadraceError:  # what a bug says of our insides is for the log
            found = HeadraceError("the coordinator failed on this call; its log has the trace")
        self._instruments.refused(found.code)
        await status.abort(context, found)


def _filled_in(asked: JobSpec, manifest: ManifestFacts) -> JobSpec:
    if asked.manifest_hash and asked.manifest_hash != manifest.hash:
        raise ManifestInvalid(
            f"job {asked.name} demands manifest {asked.manifest_hash}, but {manifest.hash} is at its address; "
            "restore the data set that was indexed, or open another job on the new one",
            job=asked.name, demanded=asked.manifest_hash, found=manifest.hash,
        )  # fmt: skip
    return replace(
        asked,
        manifest_hash=manifest.hash,
        samples=manifest.samples,
        max_key_bytes=manifest.max_key_bytes,
        max_label_bytes=manifest.max_label_bytes,
        label_kind=manifest.label_kind,
        label_width=manifest.label_width,
    )


def _formed(state: JobState | None, attempt: int) -> bool:
    """True where a snapshot has this attempt, or a later one, and it has begun."""
    return state is not None and state.session is not None and state.session.attempt >= attempt and state.session.formed


def _is_of(snapshot: JobState | None, recorded: JobState, rank: int) -> bool:
    """True where a snapshot shows the session and the claim that the store has: not those of before it lost all, say."""
    if snapshot is None or (snapshot.job, snapshot.session) != (recorded.job, recorded.session):
        return False
    seen, claim = snapshot.ranks.get(rank), recorded.ranks.get(rank)
    return claim is None or (seen is not None and (seen.attempt, seen.nonce) == (claim.attempt, claim.nonce))


def _check_watcher(state: JobState, event: Observe) -> None:
    assert state.session is not None
    if state.session.attempt > event.attempt:
        raise superseded(state.name, event.attempt, state.session.attempt, event.rank)
    record = state.ranks.get(event.rank)
    if record is not None and record.attempt == event.attempt and record.nonce != event.nonce:
        raise RankClaimed(
            f"another client holds rank {event.rank} in attempt {event.attempt} of job {state.name}; this one must stop",
            job=state.name, rank=event.rank, attempt=event.attempt,
        )  # fmt: skip


def _same_table(one: pb.WatchSessionResponse, other: pb.WatchSessionResponse) -> bool:
    if one is other:
        return True
    if other.version - one.version > _TIME_TOLD_US:
        return False
    first, second = ((table.window, table.owners, table.tokens, table.endpoints, table.stop_why) for table in (one, other))
    return first == second
