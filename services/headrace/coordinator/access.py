"""Who may call: the tokens of jobs, of the fleet's workers and of the admin API, as a call carries them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.coordinator import refusals, status_page
from headrace.core.errors import Unauthenticated
from headrace.core.job_token import hashes
from headrace.wire.secret import HEADER, MAX_CHARS, MIN_CHARS, Secret, shown, well_formed

# Probes have no token, and say nothing of jobs; metrics have names and numbers of jobs, for Prometheus; the status page's
# files are the same for everybody, and ask for the token before they show anything.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"}) | status_page.PATHS


@dataclass(frozen=True, slots=True)
class Access:
    """What is demanded. fleet: of workers, None admits all. require_job_token: of whoever speaks for a job."""

    fleet: Secret | None = None
    require_job_token: bool = False

    def job_tokens(self, context: Any, job: str) -> tuple[str, ...]:
        """Hashes of the tokens that a rank's call carries. Raises Unauthenticated where it must carry one and does not.

        It sets the token of a job that is new, so that it must be as long here as in a client's settings.
        """
        given = shown(context.invocation_metadata())
        if not all(map(well_formed, given)):
            raise Unauthenticated(f"a job's token has {MIN_CHARS} to {MAX_CHARS} visible ASCII characters", job=job)
        if self.require_job_token and not given:
            raise Unauthenticated(
                "this coordinator serves no job without a token of its own; set token or token_file (HEADRACE_TOKEN_FILE), the "
                "same for all ranks of a job",
                job=job,
            )
        return hashes(job, given)

    def check_worker(self, context: Any, worker: str) -> None:
        """Raise Unauthenticated unless the call carries the fleet's token."""
        if self.fleet is not None:
            remedy = "set fleet_token_file (HEADRACE_WORKER_FLEET_TOKEN_FILE) to the token that the coordinators have"
            self.fleet.demand(shown(context.invocation_metadata()), f"worker {worker[:100]}", remedy)


class AdminAccess:
    """ASGI middleware: everything but OPEN_PATHS asks for the admin token. turned_away: told (code, text) of who lacks it."""

    def __init__(
        self,
        app: ASGIApp,
        token: Secret,
        turned_away: Callable[[str, str], None],
    ) -> None:
        self._app = app
        self._token = token
        self._turned_away = turned_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._token.matches(self._given(scope)):
            await self._app(scope, receive, send)
            return
        shows = "a wrong token" if self._given(scope) else "no token"
        self._turned_away(refusals.ADMIN, f"a request to the admin API from {(scope.get('client') or ['?'])[0]} shows {shows}")
        detail = "the admin API asks for its token as `authorization: Bearer TOKEN`; commands take it from HEADRACE_ADMIN_TOKEN"
        told = {"detail": f"{detail} or HEADRACE_ADMIN_TOKEN_FILE"}
        await JSONResponse(told, 401, {"www-authenticate": "Bearer"})(scope, receive, send)

    @staticmethod
    def _given(scope: Scope) -> tuple[str, ...]:
        pairs = ((key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in scope["headers"])
        return shown((key, value) for key, value in pairs if key == HEADER)
