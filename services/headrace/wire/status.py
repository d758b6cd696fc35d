"""HeadraceError <-> gRPC status, the one place where the two are translated.

A server answers the error's `grpc_status`, its text as details, and a `headrace.v1.ErrorDetail` in the trailing
metadata, from which a client rebuilds the class that was raised. Works for grpc and grpc.aio alike; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.core import limits
from headrace.core.errors import (
    AccessDenied,
    CoordinatorUnavailable,
    HeadraceError,
    Ids,
    PeerGone,
    ProtocolMismatch,
    Unauthenticated,
    WaitTimeout,
    from_code,
)
from headrace.wire.gen import batch_pb2

METADATA_KEY = "headrace-error-bin"


# What a status without a detail means: the answer came from gRPC itself or from a proxy, not from a Headrace service.
_BARE: dict[grpc.StatusCode, type[HeadraceError]] = {
    grpc.StatusCode.UNAVAILABLE: CoordinatorUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: WaitTimeout,
    grpc.StatusCode.CANCELLED: PeerGone,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolMismatch,
}


def status_of(error: HeadraceError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return grpc.StatusCode[type(error).grpc_status]


def detail_of(error: HeadraceError) -> bytes:
    """The serialised ErrorDetail of an error, at most about 6 KiB."""
    detail = batch_pb2.ErrorDetail(code=type(error).code, message=_text(error.message, limits.STATUS_MESSAGE_CHARS))
    for key, value in sorted(error.ids.items())[: limits.STATUS_IDS]:
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            detail.number_ids[key] = value
        else:
            detail.text_ids[key] = _text(str(value), limits.STATUS_ID_CHARS)
    return detail.SerializeToString()


def details_of(error: HeadraceError) -> str:
    """The status message of an error, for clients that read no ErrorDetail."""
    return _text(str(error), limits.STATUS_DETAILS_CHARS)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HeadraceError) -> NoReturn:
    """End an aio call with an error. Never returns."""
    await context.abort(status_of(error), details_of(error), ((METADATA_KEY, detail_of(error)),))
    raise AssertionError("abort returned")


def error_from_rpc(error: grpc.RpcError) -> HeadraceError:
    """The error that a failed call stands for.

    With an ErrorDetail it is what the server raised; without one it is judged by the status: UNAVAILABLE is
    CoordinatorUnavailable, DEADLINE_EXCEEDED is WaitTimeout, anything unexpected is the base class.
    """
    detail = _detail(error)
    if detail is not None:
        ids: Ids = {**detail.text_ids, **detail.number_ids}
        return from_code(detail.code, detail.message, ids)
    code = error.code() if callable(getattr(error, "code", None)) else None
    text = error.details() if callable(getattr(error, "details", None)) else str(error)
    if not isinstance(code, grpc.StatusCode):
        return HeadraceError(f"a gRPC call failed without a status: {error!r}")
    cls = _BARE.get(code, HeadraceError)
    return cls(f"{_LEADS.get(code, 'the call failed')}: {text or 'no details'}", grpc_status=code.name)


_LEADS = {
    grpc.StatusCode.UNAVAILABLE: "the service cannot be reached; check its address and that it runs",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the call was not answered in time",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
    grpc.StatusCode.PERMISSION_DENIED: "the service or a proxy before it refused this call; check what the caller may do",
    grpc.StatusCode.UNAUTHENTICATED: "the service refused the caller's credentials",
    grpc.StatusCode.UNIMPLEMENTED: "the server has no such call; it is another version or another service",
}


def _detail(error: grpc.RpcError) -> batch_pb2.ErrorDetail | None:
    read = getattr(error, "trailing_metadata", None)
    pairs: Iterable[tuple[str, str | bytes]] = (read() if callable(read) else None) or ()
    for key, value in pairs:
        if key == METADATA_KEY and isinstance(value, bytes):
            try:
                return batch_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None


def _text(value: str, limit: int) -> str:
    clean = value.encode("utf-8", "replace").decode()
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."
