"""Who may stand behind a Unix socket: its directory must not be one that another user could have planted, nor its peer be one.

A rank tells its token to whoever listens, and reads that process's memory. So the directory belongs to root or to us and is
nobody else's to write, and the process that listens runs as root or as us. Other users are trusted by name alone:
HEADRACE_SOCKET_OWNERS has their numeric ids, with commas between.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

from headrace.core.errors import ConfigInvalid

VARIABLE = "HEADRACE_SOCKET_OWNERS"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def trusted_owners() -> frozenset[int]:
    """Ids of users whose sockets are used. Raises ConfigInvalid for a malformed variable."""
    named = [part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in named):
        raise ConfigInvalid(f"{VARIABLE} must be numeric user ids with commas between", setting=VARIABLE)
    return frozenset({0, os.geteuid(), *(int(part) for part in named)})


def distrusted(directory: str, owners: frozenset[int]) -> str:
    """Why a socket in this directory is not used; empty where it may be. Raises OSError if it cannot be looked at."""
    found = os.lstat(directory or ".")
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is {'a symbolic link' if stat.S_ISLNK(found.st_mode) else 'not a directory'}"
    if found.st_uid not in owners:
        return f"{directory} belongs to user {found.st_uid}, who is neither root nor us nor named in {VARIABLE}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return f"others may write to {directory} (mode {stat.S_IMODE(found.st_mode):o}): chmod go-w"
    return ""


def check_peer(connected: socket.socket, owners: frozenset[int]) -> None:
    """Raise PermissionError unless the process behind a connected socket runs as one of these users."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    if user not in owners:
        text = f"its process runs as user {user}, who is neither root nor us nor named in {VARIABLE}"
        raise PermissionError(errno.EACCES, text)


def explained(path: str, error: OSError) -> OSError:
    """The same error in words that say what to change, for a socket that could not be looked at or connected to."""
    if error.errno == errno.ENOENT:
        missing = next((part for part in _parts(path) if not os.path.lexists(part)), Path(path))
        text = f"{missing} is not there: a container must mount the worker's directory of sockets under the worker's own path"
    elif error.errno == errno.EACCES:
        text = _denied(path)
    else:
        return error
    return type(error)(error.errno, text)


def _parts(path: str) -> list[Path]:
    """From the root down to the path itself."""
    return [*reversed(Path(path).parents), Path(path)]


def _denied(path: str) -> str:
    """Which directory, or the socket itself, lets this process no further."""
    last, found = Path("/"), os.lstat("/")
    for part in _parts(path):
        try:
            found = os.lstat(part)
        except OSError:
            break
        last = part
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    return (
        f"user {os.geteuid()} with groups {groups} may not {'connect to' if str(last) == path else 'enter'} {last} (user "
        f"{found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o}): run as that user, or in that group "
        f"(supplementalGroups: [{found.st_gid}] in Kubernetes), with --socket-group {found.st_gid} on the worker"
    )
