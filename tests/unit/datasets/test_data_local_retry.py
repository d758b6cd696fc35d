"""Local reads outlive what may pass: no free descriptor, a disk or file server that fails for a moment. Others fail at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.core.errors import AccessDenied, SourceUnavailable
from headrace.datasets import storage_local
from headrace.datasets.storage_local import LocalStorage

CALLS: dict[str, Callable[[LocalStorage], Awaitable[object]]] = {
    "get": lambda storage: storage.get("a"),
    "get_range": lambda storage: storage.get_range("a", 1, 2),
    "head": lambda storage: storage.head("a"),
    "list": lambda storage: storage.list(),
    "put": lambda storage: storage.put("b", b"new"),
    "run": lambda storage: storage.run(lambda: storage.read_sync("a", 0, -1)),
}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStorage:
    monkeypatch.setattr(storage_local, "RETRY_DELAYS_S", (0.05,) * 20)
    (tmp_path / "a").write_bytes(b"content")
    return LocalStorage(tmp_path)


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """No descriptor is free inside."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_waits_for_a_descriptor(storage: LocalStorage, call: str) -> None:
    with no_descriptors():
        task = asyncio.ensure_future(CALLS[call](storage))
        await asyncio.sleep(0.2)
        done = task.done()
    await task
    assert not done


async def test_what_lasts_is_told(storage: LocalStorage) -> None:
    error = None
    with no_descriptors():
        try:
            await storage.get("a")
        except SourceUnavailable as caught:
            error = caught
    assert "Too many open files" in str(error)
    assert await storage.get("a") == b"content"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EAGAIN])
async def test_a_disk_that_fails_for_a_moment(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    left, pread = [3], os.pread

    def failing(fd: int, length: int, offset: int) -> bytes:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return pread(fd, length, offset)

    monkeypatch.setattr(storage_local.os, "pread", failing)
    assert await storage.get("a") == b"content"
    assert left == [0]


async def test_what_does_not_pass_is_told_at_once(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refused(*_: object) -> int:
        tries.append(1)
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(storage_local.os, "open", refused)
    with pytest.raises(AccessDenied):
        await storage.get("a")
    assert len(tries) == 1
