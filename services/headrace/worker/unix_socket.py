"""Binds a Unix SOCK_SEQPACKET socket to a path that only one live process may own."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
from pathlib import Path

import structlog

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, PortInUse

log = structlog.get_logger()

_MAX_PATH_BYTES = limits.SOCKET_PATH_BYTES


class BoundSocket:
    """A listening, non-blocking socket at `path`, with a lock file beside it that is held while it lives.

    The lock tells a live owner from a stale file without a race: the kernel drops it with its process. Raises PortInUse
    if the path is owned by a live process or is not a socket, ConfigInvalid if the path cannot be used. mode: permissions of
    the socket file; who can open it may connect.
    """

    def __init__(self, path: Path, *, mode: int = 0o600, backlog: int = 128) -> None:
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ConfigInvalid(f"socket path {path} is longer than {_MAX_PATH_BYTES} bytes: choose a shorter one")
        self.path = path
        self._lock = _take_lock(path)
        try:
            _check_free(path)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except BaseException:
            os.close(self._lock)
            raise
        self._file: tuple[int, int] | None = None
        try:
            self._file = _listen(self.socket, path, mode, backlog)
        except OSError as error:
            self.close()
            raise _bind_error(path, error) from error

    def close(self) -> None:
        """Remove the file, if it is still ours, and stop listening; may be called again."""
        if self._lock < 0:
            return
        try:
            found = self.path.lstat()
            if self._file == (found.st_dev, found.st_ino):
                self.path.unlink()
        except OSError as error:
            if error.errno != errno.ENOENT:
                log.warning("socket_file_left", path=str(self.path), error=str(error))
        finally:
            self.socket.close()
            os.close(self._lock)
            self._lock = -1


def _take_lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _bind_error(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise _in_use(path) from error
    return lock


def _listen(bound: socket.socket, path: Path, mode: int, backlog: int) -> tuple[int, int]:
    """Listen beside the path, then take its place at once; returns the file's device and inode.

    A stale file stays until then: who finds none believes that this node has no such worker, and a rank that insists on shared
    memory ends on it. Bound by way of its directory's descriptor, the other name needs no room in a socket address.
    """
    beside = path.with_name(f".{hashlib.blake2b(os.fsencode(path.name), digest_size=8).hexdigest()}")
    beside.unlink(missing_ok=True)  # of a process that died right here; the lock is ours
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        bound.bind(f"/proc/self/fd/{directory}/{beside.name}")
        beside.chmod(mode)
        bound.listen(backlog)
        made = beside.lstat()
        beside.replace(path)
        return made.st_dev, made.st_ino
    finally:
        os.close(directory)
        beside.unlink(missing_ok=True)


def _check_free(path: Path) -> None:
    """Raise PortInUse unless there is nothing, or a socket file that nobody listens to."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _bind_error(path, error) from error
    if not stat.S_ISSOCK(mode):
        raise PortInUse(f"{path} exists and is not a socket: remove it or choose another path", path=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(os.fspath(path))
    if code != errno.ECONNREFUSED:  # also EPROTOTYPE: a live socket of another type; EAGAIN: a full backlog
        raise _in_use(path)


def _in_use(path: Path) -> PortInUse:
    return PortInUse(f"another live process serves {path}: stop it or choose another path", path=str(path))


def _bind_error(path: Path, error: OSError) -> PortInUse | ConfigInvalid:
    if error.errno == errno.EADDRINUSE:
        return _in_use(path)
    return ConfigInvalid(f"cannot listen at {path}: {error.strerror or error}", path=str(path))
