"""Keeps the admin HTTP server free for those who ask something: connections that only hold on to it are ended.

uvicorn itself waits for ever for a request that does not come, or comes byte by byte.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.core import limits


class GuardedProtocol(H11Protocol):
    """One connection. `open_connections` is of one server: see `guarded`.

    A connection that brings no whole request within HTTP_REQUEST_S is closed, and one that has not taken its answer within
    HTTP_RESPONSE_S; of more than HTTP_CONNECTIONS the one goes that has been silent for longest, so that whoever comes new gets
    his answer.
    """

    open_connections: OrderedDict[GuardedProtocol, None]
    _answer_by_s = 0.0  # on the loop's clock

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self.open_connections[self] = None
        self._overdue = self.loop.call_later(limits.HTTP_REQUEST_S, self._late)
        if len(self.open_connections) > limits.HTTP_CONNECTIONS:
            next(iter(self.open_connections))._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.open_connections.pop(self, None)
        self._overdue.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """See uvicorn: bytes came. Only a request that is whole counts as a sign of life."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self in self.open_connections:
            self.open_connections.move_to_end(self)
            self._answer_by_s = self.loop.time() + limits.HTTP_RESPONSE_S
            self._wait(limits.HTTP_RESPONSE_S)

    def on_response_complete(self) -> None:
        """See uvicorn: all of the answer was given to the transport, which may still have to send it."""
        self._wait(limits.HTTP_REQUEST_S)
        super().on_response_complete()

    def _wait(self, seconds: float) -> None:
        self._overdue.cancel()
        if self in self.open_connections:
            self._overdue = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        left_s = self._answer_by_s - self.loop.time()
        if left_s > 0 and self.transport is not None and self.transport.get_write_buffer_size():
            self._wait(min(left_s, limits.HTTP_REQUEST_S))
        else:
            self._end()

    def _end(self) -> None:
        self.open_connections.pop(self, None)
        if self.transport is not None:
            self.transport.abort()


def guarded() -> type[asyncio.Protocol]:
    """A protocol class for one server, with its own count of connections."""
    return type("Guarded", (GuardedProtocol,), {"open_connections": OrderedDict()})


class RequestLimits:
    """ASGI middleware: refuses long queries and bodies. The admin API takes neither."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"])
        length = given.get(b"content-length", b"0")
        body_fits = length.isdigit() and len(length) <= 9 and int(length) <= limits.HTTP_BODY_BYTES
        query = len(scope["query_string"]) + len(scope["raw_path"])
        if query > limits.HTTP_QUERY_BYTES:
            refusal = _refusal(414, f"path and query have {query} bytes; at most {limits.HTTP_QUERY_BYTES} are read")
            await refusal(scope, receive, send)
        elif not body_fits or b"transfer-encoding" in given:
            refusal = _refusal(413, f"bodies have at most {limits.HTTP_BODY_BYTES} bytes, and say how many")
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refusal(status: int, text: str) -> JSONResponse:
    return JSONResponse({"detail": text}, status, {"connection": "close"})
