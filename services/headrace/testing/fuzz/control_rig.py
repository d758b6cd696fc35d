"""A coordinator without its servers, over a store in memory, with two jobs: one to be attacked, one to stay well."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry, generate_latest

from headrace.coordinator import admin_api
from headrace.coordinator.access import Access
from headrace.coordinator.board import Board
from headrace.coordinator.grpc_api import CoordinatorService
from headrace.coordinator.heartbeats import HeartbeatRules
from headrace.coordinator.instruments import BoardCollector, Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import HeadraceError, ManifestMissing
from headrace.core.events import Rules
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import OPS_BY_NAME
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL

BAD, GOOD = "attacked", "honest"
_RULES = Rules()
_CALL_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Facts:
    hash: str = "aa" * 16
    samples: int = 4000
    max_key_bytes: int = 16
    max_label_bytes: int = 16
    label_kind: str = "int"
    label_width: int = 1

    def shard_of(self, sample: int) -> str:
        return "a.tar"


class _Context:
    """A call's context whose abort raises: HeadraceError for an answer, the cause where something broke."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "fuzz"

    def time_remaining(self) -> None:
        return None

    async def abort(self, code: Any, details: str, metadata: Any) -> NoReturn:
        cause = sys.exc_info()[1]
        if cause is not None and not isinstance(cause, HeadraceError):
            raise cause
        raise HeadraceError(details)


def spec(name: str) -> JobSpec:
    """A job's parameters."""
    return JobSpec(name, "/data", 64)


def rank_id(job: str, rank: int = 0, attempt: int = 1) -> pb.RankId:
    """A rank of one of the jobs."""
    return pb.RankId(job=job, attempt=attempt, rank=rank, nonce=f"nonce-{rank}")


def heartbeat(worker: str = "w1") -> pb.HeartbeatRequest:
    """What an honest worker says."""
    endpoint = pb.Endpoint(worker=worker, incarnation=f"{worker}-1", node="n", grpc=f"{worker}:1", socket="/run/x.sock")
    return pb.HeartbeatRequest(protocol=PROTOCOL, endpoint=endpoint, fingerprint="fp", ops=sorted(OPS_BY_NAME), threads=2)


class _Now:
    """Stands for what the rig has under a name at that moment."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig = rig
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(self._rig, self._name), attribute)


class Rig:
    """See the module. `reset` brings it back to where two sessions of two ranks each are formed and served by two workers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.store = MemoryStore()
        self.build()
        # Made once, since that takes longer than all the rest.
        parts: list[Any] = [_Now(self, name) for name in ("board", "ledger", "instruments", "manifests")]
        self.admin = admin_api.build(*parts)
        self.run(self._prepare())
        self._snapshot = self.store.snapshot()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run until it is done, at most _CALL_DEADLINE_S."""

        async def within() -> Any:
            async with asyncio.timeout(_CALL_DEADLINE_S):
                return await work

        return self._loop.run_until_complete(within())

    def build(self) -> None:
        """All but the store anew, as after a restart."""
        self.instruments = Instruments(CollectorRegistry())
        self.ledger = Ledger(self.store, _RULES, self.instruments)
        self.board = Board(self.ledger, 0.5)
        self.instruments.registry.register(BoardCollector(self.board, self.instruments.moves))
        self.manifests = Manifests(_facts, 1e9)
        beats = HeartbeatRules(0.5, 3.0)
        self.service = CoordinatorService(
            self.ledger, self.board, self.manifests, beats, self.instruments, access=Access(None, False)
        )

    def reset(self) -> None:
        """Back to the beginning."""
        self.store.restore(self._snapshot)
        self.build()

    async def _prepare(self) -> None:
        for worker in ("w1", "w2"):
            await self.call("Heartbeat", heartbeat(worker))
        for job in (BAD, GOOD):
            await self.call("OpenJob", pb.OpenJobRequest(protocol=PROTOCOL, job=convert.job_to_proto(spec(job)), world=2))
            for rank in range(2):
                await self.call("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(job, rank), world=2))
        await self.board.refresh()
        await self.call("ReportProgress", pb.ReportProgressRequest(id=rank_id(BAD), consumed=3, committed=1, elapsed_s=4.0))

    async def call(self, method: str, request: Any) -> Any:
        """One call. Raises HeadraceError for a refusal, and whatever broke the service."""
        answer = getattr(self.service, method)(request, _Context())
        return await (anext(answer) if method == "WatchSession" else answer)

    async def look(self) -> None:
        """A pass over all jobs, and all that people and Prometheus see. The honest job must be there and served."""
        await self.board.refresh()
        generate_latest(self.instruments.registry)
        for path in ("/api/jobs", f"/api/jobs/{BAD}", f"/api/jobs/{BAD}/quarantine", "/api/workers"):
            assert await get(self.admin, path) in (200, 404, 503), path
        state = self.board.job(GOOD)
        assert state is not None, "the honest job is gone"
        assert state.session is not None, "the honest job has no session"
        assert any(lane.owner for lane in state.lanes.values()), "nobody serves the honest job"


async def get(app: Any, path: str) -> int:
    """The status of a GET, without a server. Raises what the application raises."""
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [], "root_path": "", "server": ("h", 80), "client": ("c", 1),
    }  # fmt: skip
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        status.append(message.get("status", 0))

    await app(scope, receive, send)
    return status[0]


async def _facts(address: str) -> _Facts:
    if address.startswith("/"):
        return _Facts()
    raise ManifestMissing(f"no manifest at {address}", manifest=address)
