"""Health, metrics, a read-only view of jobs and workers over HTTP, and the status page. OpenAPI at /openapi.json."""

from __future__ import annotations

from importlib import metadata

from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST

from headrace.coordinator import status_page
from headrace.coordinator.access import AdminAccess
from headrace.coordinator.admin_views import (
    Health,
    JobSummary,
    JobView,
    QuarantineView,
    ScalingView,
    WorkerView,
    job_summary,
    job_view,
    quarantine_view,
    scaling_views,
    worker_views,
)
from headrace.coordinator.board import Board
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.coordinator.replica_view import Replica, ReplicaView
from headrace.core.errors import HeadraceError
from headrace.core.events import JobState
from headrace.core.records import JobRecord
from headrace.wire.secret import Secret


def build(board: Board, ledger: Ledger, instruments: Instruments, manifests: Manifests, token: Secret | None = None) -> FastAPI:
    """The application; all handlers run on the coordinator's event loop. token: what the views ask for; health, metrics and the
    page's empty frame don't."""
    # No pages at /docs and /redoc: they would have the browser load scripts from elsewhere.
    app = FastAPI(title="Headrace coordinator", version=metadata.version("headrace"), docs_url=None, redoc_url=None)
    if token is not None:
        app.add_middleware(AdminAccess, token=token, turned_away=instruments.turned_away)

    status_page.add_to(app)

    @app.get("/api", include_in_schema=False)
    async def contents() -> dict[str, str]:
        """What is here, for whoever opens the address."""
        paths = app.openapi()["paths"].items()
        return {path: str(calls["get"]["description"]) for path, calls in paths} | {"/openapi.json": "All of it, described."}

    _add_health(app, board, ledger, instruments)
    _add_views(app, board, ledger, manifests, Replica(board, instruments))
    return app


def _add_health(app: FastAPI, board: Board, ledger: Ledger, instruments: Instruments) -> None:
    @app.get("/healthz")
    async def healthz() -> Health:
        """The process is alive."""
        return Health(status="ok")

    @app.get("/readyz", responses={503: {"model": Health}})
    async def readyz(response: Response) -> Health:
        """The store answers, and all jobs were read once."""
        try:
            await ledger.store.ping()
        except HeadraceError as error:
            response.status_code = 503
            return Health(status="unavailable", reason=error.message)
        if not board.loaded:
            response.status_code = 503
            return Health(status="unavailable", reason="jobs are still being read from the store")
        return Health(status="ok")

    @app.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Prometheus' text format."""
        return Response(instruments.exposition(), media_type=CONTENT_TYPE_LATEST)


def _open_job(board: Board, name: str) -> tuple[JobState, JobRecord]:
    state = board.job(name)
    if state is None or state.job is None:
        raise HTTPException(404, f"no job {name} is open; GET /api/jobs lists those that are")
    return state, state.job


def _add_views(app: FastAPI, board: Board, ledger: Ledger, manifests: Manifests, replica: Replica) -> None:
    @app.get("/api/jobs")
    async def list_jobs() -> list[JobSummary]:
        """All open jobs."""
        return [job_summary(board, state) for state in board.jobs() if state.job is not None]

    @app.get("/api/jobs/{job}", responses={404: {"description": "No such job is open."}, 503: {"description": "No store."}})
    async def show_job(job: str) -> JobView:
        """One job: session, ranks, lanes, bad samples."""
        state, _ = _open_job(board, job)
        try:
            return await job_view(board, ledger, state)
        except HeadraceError as error:
            raise HTTPException(503, error.message) from error

    @app.get("/api/jobs/{job}/quarantine", responses={404: {"description": "No such job."}, 503: {"description": "No store."}})
    async def quarantine(job: str) -> QuarantineView:
        """All bad samples of one job, with their shards; `headrace quarantine` shows it."""
        _, record = _open_job(board, job)
        try:
            found = await ledger.quarantine.of(job)
        except HeadraceError as error:
            raise HTTPException(503, error.message) from error
        return await quarantine_view(manifests, record.spec, found)

    @app.get("/api/workers")
    async def list_workers() -> list[WorkerView]:
        """All workers that live or died a short time ago."""
        return worker_views(board)

    @app.get("/api/replica")
    async def show_replica() -> ReplicaView:
        """The replica that answers: its store and certificate, and what it saw happen lately."""
        return replica.view()

    @app.get("/api/scaling")
    async def list_scaling() -> list[ScalingView]:
        """How many workers each pool should have, and why."""
        return scaling_views(board)
