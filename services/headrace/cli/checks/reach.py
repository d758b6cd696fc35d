"""Whether a coordinator and a store can be reached from here, and with these secrets.

The coordinator is sent one call of a worker that has no name and one of a trainer whose job nobody opened: both are refused, by
other words where TLS or tokens are wrong. It counts them among the calls that it refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.cli.checks.finding import Finding, Role
from headrace.core.errors import (
    ConfigInvalid,
    CoordinatorUnavailable,
    HeadraceError,
    JobUnknown,
    ProtocolMismatch,
    Unauthenticated,
)

if TYPE_CHECKING:
    from headrace.wire.calls import Calls
    from headrace.worker.settings import WorkerSettings

_SUBJECT = "reach"
_DEADLINE_S = 5.0
_NO_JOB = "headrace-doctor"


def as_worker(addresses: str, settings: WorkerSettings) -> Finding:
    """A heartbeat without a worker's name: refused for that once TLS and the fleet's token are right."""
    from headrace.wire import service_security
    from headrace.wire.calls import Calls
    from headrace.wire.gen import coordinator_service_pb2 as pb
    from headrace.wire.messages import PROTOCOL
    from headrace.wire.secret import secret

    def calls() -> Calls:
        token = secret("fleet_token", settings.fleet_token.get_secret_value(), settings.fleet_token_file)
        made = Calls(service_security.client_tls(settings), token, allow_plaintext=settings.allow_plaintext_tokens)
        made.check_plaintext(*addresses.split(","))
        return made

    return _asked("coordinator, as a worker", addresses, calls, ("Heartbeat", pb.HeartbeatRequest(protocol=PROTOCOL)), "worker")


def as_trainer(addresses: str) -> Finding:
    """A rank that would join a job that nobody opened."""
    from headrace.client.security import SecurityOptions
    from headrace.wire.gen import coordinator_service_pb2 as pb
    from headrace.wire.messages import PROTOCOL

    def calls() -> Calls:
        return SecurityOptions().calls(tuple(addresses.split(",")))[0]

    rank = pb.RankId(job=_NO_JOB, attempt=1, rank=0, nonce=_NO_JOB)
    request = pb.JoinSessionRequest(protocol=PROTOCOL, id=rank, world=1)
    return _asked("coordinator, as a trainer", addresses, calls, ("JoinSession", request), "trainer")


def _asked(name: str, addresses: str, calls: Callable[[], Calls], call: tuple[str, Any], role: Role) -> Finding:
    from headrace.client.rpc import CoordinatorRpc

    try:
        rpc = CoordinatorRpc(addresses, calls())
    except ConfigInvalid as error:
        return Finding(_SUBJECT, name, "bad", addresses, error.message, of=role)
    begun = time.monotonic()
    try:
        rpc.call(*call, _DEADLINE_S)
    except Unauthenticated as error:
        return Finding(_SUBJECT, name, "bad", f"{addresses} answers, and knows no such token", error.message, of=role)
    except CoordinatorUnavailable as error:
        return Finding(_SUBJECT, name, "bad", f"{addresses} does not answer", error.message, of=role)
    except (JobUnknown, ProtocolMismatch) as error:
        if isinstance(error, ProtocolMismatch) and "incarnation" not in error.message:
            return Finding(_SUBJECT, name, "bad", f"{addresses} speaks another protocol", error.message, of=role)
    except HeadraceError as error:
        return Finding(_SUBJECT, name, "bad", f"{addresses} answers with an error", error.message, of=role)
    finally:
        rpc.close()
    took_ms = 1e3 * (time.monotonic() - begun)
    return Finding(_SUBJECT, name, "ok", f"{addresses} answers in {took_ms:.0f} ms, and TLS and token are right")


def store(url: str, password_file: str, ca: str) -> Finding:
    """A ping of the store, as a coordinator would reach it."""
    from headrace.core.masking import mask_address

    shown = mask_address(url)
    try:
        from headrace.coordinator import store_address
    except ImportError as error:
        return Finding(
            _SUBJECT, "store", "note", f"{shown} was not tried", f"{error.name} is missing: pip install 'headrace[coordinator]'"
        )

    async def ping() -> tuple[float, tuple[str, ...]]:
        made = store_address.connect(url, password_file=password_file, ca=ca)
        try:
            begun = time.monotonic()
            await made.ping()
            took_ms = 1e3 * (time.monotonic() - begun)
            return took_ms, await made.weaknesses()
        finally:
            await made.close()

    try:
        took_ms, weaknesses = asyncio.run(ping())
    except HeadraceError as error:
        return Finding(_SUBJECT, "store", "bad", f"{shown} does not answer", error.message)
    found = f"{shown} answers in {took_ms:.0f} ms"
    if weaknesses:
        return Finding(_SUBJECT, "store", "note", found, "; ".join(f"It {weakness}" for weakness in weaknesses))
    return Finding(_SUBJECT, "store", "ok", found)
