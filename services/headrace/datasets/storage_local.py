"""Local files: read by `pread` in threads, written by rename, symbolic links not followed.

Measured (256 reads of 110 kB from the page cache, 2 cores): four chunks of `pread` in threads 10 ms, one thread hop a read 20
ms, obstore's local store 28 ms one by one. Hence plain system calls here, and chunks in the source.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from headrace.core import limits
from headrace.core.errors import AccessDenied, ConfigInvalid, DiskFull, HeadraceError, SourceUnavailable
from headrace.datasets.storage import ObjectInfo, ObjectMissing, check_path, check_size

T = TypeVar("T")

READ_THREADS = 8  # reads in flight on a disk; more than the cores, since they wait
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# What may pass (no descriptor free, a file server that restarts) is tried again for some eight seconds, as with object stores.
RETRY_DELAYS_S = (0.25, 0.5, 1.0, 2.0, 4.0)


def translate(error: OSError, path: Path) -> HeadraceError:
    """The Headrace error for a failed system call."""
    reason = error.strerror or str(error)
    if error.errno in _MISSING:
        return ObjectMissing(f"{path} is not there", path=str(path))
    if error.errno in _FULL:
        return DiskFull(f"no space left to write {path}: free some, or choose another --out", path=str(path))
    if error.errno == errno.ELOOP:
        return ConfigInvalid(f"{path} is a symbolic link; links are not followed: name its target", path=str(path))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AccessDenied(f"{path}: {reason}; check its owner, its mode and how it is mounted", path=str(path))
    return SourceUnavailable(f"{path}: {reason}", path=str(path))


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all of it or the old one; a partial file is removed.

    Raises DiskFull, AccessDenied, or ConfigInvalid for a path that no file can have.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        if error.errno in _NO_PLACE:
            raise ConfigInvalid(f"{path} cannot be written: {error.strerror}; choose another place", path=str(path)) from error
        raise translate(error, path) from error


def pread_all(fd: int, length: int, offset: int) -> bytes:
    """Read exactly `length` bytes, fewer only at the end of the file."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


class LocalStorage:
    """A directory. Its own address may be a link; what lies below may not lead out of it."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.address = str(root)
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="headrace-read")
        self._stays_inside = lru_cache(maxsize=65536)(self._check_directory)

    def _check_directory(self, directory: str) -> bool:
        real = os.path.realpath(self.root / directory)
        return real == str(self.root) or real.startswith(str(self.root).rstrip("/") + "/")

    def resolve(self, path: str) -> Path:
        """Absolute path of a relative one. Raises ConfigInvalid if it would leave the root."""
        directory = os.path.dirname(check_path(path))  # noqa: PTH120 - a hot path, and a Path costs ten times as much
        if directory and not self._stays_inside(directory):
            raise ConfigInvalid(f"{path!r} leads out of {self.address} through a symbolic link", path=path)
        return self.root / path

    def open_fd(self, path: str) -> int:
        """Open a file for reading; the caller closes it. Blocking: for threads."""
        full = self.resolve(path)
        try:
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise translate(error, full) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ConfigInvalid(f"{full} is not a regular file", path=path)
        return fd

    def read_sync(self, path: str, start: int, length: int, most_bytes: int = limits.IMAGE_BYTES) -> bytes:
        """A range of a file; length -1 is all of it. Blocking: for threads."""
        fd = self.open_fd(path)
        try:
            if length < 0:
                length = os.fstat(fd).st_size - start
                check_size(path, length, most_bytes, self.address)
            return pread_all(fd, length, start)
        except OSError as error:
            raise translate(error, self.root / path) from error
        finally:
            os.close(fd)

    async def get(self, path: str, most_bytes: int = limits.IMAGE_BYTES) -> bytes:
        """The whole file."""
        return await self._in_thread(self.read_sync, path, 0, -1, most_bytes)

    async def get_range(self, path: str, start: int, length: int, tag: str = "") -> memoryview:
        """Bytes [start, start + length) of a file."""
        return memoryview(await self._in_thread(self.read_sync, path, start, length))

    async def put(self, path: str, data: bytes) -> None:
        """Write a file by rename."""
        await self._in_thread(write_atomic, self.resolve(path), data)

    async def head(self, path: str) -> ObjectInfo:
        """Size of a regular file."""
        return await self._in_thread(self._head, path)

    def _head(self, path: str) -> ObjectInfo:
        fd = self.open_fd(path)
        try:
            return ObjectInfo(path, os.fstat(fd).st_size, "")
        finally:
            os.close(fd)

    async def list(self) -> list[ObjectInfo]:
        """All regular files below the root, sorted by path."""
        return await self._in_thread(lambda: sorted(_walk(self.root, ""), key=lambda info: info.path))

    async def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False)

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        call, loop = partial(function, *args), asyncio.get_running_loop()
        for delay_s in RETRY_DELAYS_S:
            try:
                return await loop.run_in_executor(self._threads, call)
            except SourceUnavailable:
                await asyncio.sleep(delay_s)
        return await loop.run_in_executor(self._threads, call)

    async def run(self, function: Callable[[], T]) -> T:
        """Run blocking work of a reader on this storage's threads; again if it raises SourceUnavailable."""
        return await self._in_thread(function)


def _walk(directory: Path, prefix: str) -> Iterator[ObjectInfo]:
    """Regular files; a symbolic link is neither a file nor a directory here."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield ObjectInfo(prefix + entry.name, entry.stat(follow_symlinks=False).st_size, "")
    except OSError as error:
        raise translate(error, directory) from error
