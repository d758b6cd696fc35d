"""Connections of the admin HTTP server under short limits: who asks is answered to the end, who only holds on is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Response

from headrace.coordinator.serve import AdminServer
from headrace.core import limits

# Far more than the kernel's buffers of both ends hold.
BODY = b"x" * (32 << 20)
DEADLINE_S = 30.0


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminServer]:
    """A real server whose limits are short; /large has a large answer, /slow one that takes longer than a request may."""
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.4)
    monkeypatch.setattr(limits, "HTTP_RESPONSE_S", DEADLINE_S)
    app = FastAPI()

    @app.get("/large")
    async def large() -> Response:
        return Response(BODY)

    @app.get("/slow")
    async def slow() -> Response:
        await asyncio.sleep(1.2)
        return Response(b"done")

    made = AdminServer(app, "127.0.0.1:0")
    await made.start()
    yield made
    await made.close()


async def ask(server: AdminServer, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return reader, writer


async def body_of(reader: asyncio.StreamReader, pause_s: float = 0.0) -> int:
    """Bytes of the body that came; a pause in the middle, as of one whose line is slow."""
    async with asyncio.timeout(DEADLINE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        found = len(await reader.read(65_536))
        await asyncio.sleep(pause_s)
        while found < length and (data := await reader.read(1 << 20)):
            found += len(data)
    return found


async def test_a_large_answer_is_sent_to_one_who_reads_slowly(server: AdminServer) -> None:
    reader, writer = await ask(server, "/large")
    assert await body_of(reader, pause_s=1.2) == len(BODY), "longer than a request may take"
    writer.close()


async def test_an_answer_that_takes_long_to_make_is_given_and_the_next_request_has_its_own_time(server: AdminServer) -> None:
    reader, writer = await ask(server, "/slow")
    assert await body_of(reader) == 4
    writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await body_of(reader) == 4
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b"", "and then, silent, it is ended"
    writer.close()


@pytest.mark.parametrize("what", [b"", b"GET /slow HTTP/1.1\r\n"], ids=["nothing", "half"])
async def test_one_who_asks_nothing_is_ended(server: AdminServer, what: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(what)
    with_error = await asyncio.wait_for(asyncio.gather(reader.read(), return_exceptions=True), DEADLINE_S)
    assert with_error[0] == b"" or isinstance(with_error[0], ConnectionError)
    writer.close()


async def test_an_answer_that_nobody_takes_is_given_up(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_RESPONSE_S", 1.0)
    reader, writer = await ask(server, "/large")
    (protocol,) = await known(server, 1)
    async with asyncio.timeout(DEADLINE_S):
        while protocol in type(protocol).open_connections:  # type: ignore[attr-defined]  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(len(BODY)), DEADLINE_S)
    writer.close()


async def known(server: AdminServer, count: int) -> list[object]:
    """The connections that the server has, once they are so many."""
    async with asyncio.timeout(DEADLINE_S):
        while len(found := list(server._server.server_state.connections)) != count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return found
