"""Open files: a process that has too few says so by name; its listeners neither spin nor fill the log."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import OutOfDescriptors
from headrace.telemetry import descriptors
from headrace.telemetry.descriptors import free_descriptors, need_descriptors, pause_without_descriptors, tell_refused_accepts
from tests.unit.open_files import only


def test_too_few_are_told_with_the_limit_and_what_to_do() -> None:
    error = None
    with only(10):
        try:
            need_descriptors(64, "the worker")
        except OutOfDescriptors as caught:
            error = caught
    assert error is not None and error.retriable
    assert "the worker needs 64 open files" in str(error) and "ulimit -n" in str(error)
    need_descriptors(10, "this test")


def test_counting_needs_no_descriptor() -> None:
    with only(0):
        free = free_descriptors()
    assert free == 0
    assert free_descriptors() > 10


def test_no_limit_is_no_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    need_descriptors(1 << 20, "anybody")


async def test_a_server_that_cannot_accept_says_so_once_and_serves_later() -> None:
    loop = asyncio.get_running_loop()
    tell_refused_accepts(loop)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=8)
    client = socket.socket()
    client.setblocking(False)
    with capture_logs() as logs:
        with only(0):
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await asyncio.sleep(2.5)  # asyncio tries again each second
        await loop.sock_sendall(client, b"x")
        async with asyncio.timeout(20):
            assert await loop.sock_recv(client, 1) == b"x"
    client.close()
    server.close()
    told = [line for line in logs if line["event"] == "accept_failed"]
    assert len(told) == 1 and told[0]["error"] == os.strerror(errno.EMFILE)


async def test_other_errors_of_a_loop_are_told_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    tell_refused_accepts(loop)
    loop.call_exception_handler({"message": "a bug", "exception": ValueError("of ours")})
    loop.call_exception_handler({"message": "no socket", "exception": OSError(errno.EMFILE, "elsewhere")})
    assert [record.message.splitlines()[0] for record in caplog.records] == ["a bug", "no socket"]


@pytest.mark.parametrize(("code", "pauses"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.ECONNABORTED, 0), (errno.EINVAL, 0)])
def test_an_accept_pauses_only_for_want_of_descriptors(monkeypatch: pytest.MonkeyPatch, code: int, pauses: int) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    pause_without_descriptors(OSError(code, os.strerror(code)))
    assert len(slept) == pauses
