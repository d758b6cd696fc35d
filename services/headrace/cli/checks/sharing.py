"""How batches could reach trainers of this node: sealed memory, and the directory of the workers' sockets."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import stat
from pathlib import Path

from headrace.cli.checks.finding import Finding
from headrace.core.errors import ConfigInvalid, HeadraceError
from headrace.telemetry.socket_trust import VARIABLE, check_peer, distrusted, explained, trusted_owners

_SUBJECT = "sharing"
_SHM = "/dev/shm"  # noqa: S108 - nothing is opened there
_CONNECT_S = 2.0
_EACCES = "permission denied (EACCES)"


def memory() -> list[Finding]:
    """Whether the kernel seals memory, without which nothing can be served."""
    shm = Finding(_SUBJECT, _SHM, "ok", "not needed, whatever its size: slots lie in a memfd")
    try:
        from headrace.worker.slab import Slab

        Slab(1, mmap.PAGESIZE).close()
    except ImportError:  # pragma: no cover - the slab needs no extra
        return [shm]
    except HeadraceError as error:
        return [Finding(_SUBJECT, "sealed memory", "bad", "none", _capital(error.message), of="worker"), shm]
    return [Finding(_SUBJECT, "sealed memory", "ok", "memfd, sealed against shrinking, growing and writing by others"), shm]


def sockets(directory: str, group: str) -> list[Finding]:
    """The directory of sockets, as a worker and as a trainer see it. group: --socket-group. Makes nothing, changes nothing."""
    name = "socket directory"
    if not directory:
        advice = "Set socket_dir (HEADRACE_WORKER_SOCKET_DIR) for trainers on the same node; until then all goes by grpc"
        return [Finding(_SUBJECT, name, "note", "none is set", advice)]
    try:
        owners = trusted_owners()
    except ConfigInvalid as error:
        return [Finding(_SUBJECT, VARIABLE, "bad", "not a list of user ids", error.message)]
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return [_missing(directory, name)]
    except OSError as error:
        return [Finding(_SUBJECT, name, "bad", _EACCES, _explained(directory, error), of="worker")]
    described = f"{directory} (user {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o})"
    reason = distrusted(directory, owners)
    worker = _as_worker(directory, name, described, found, reason or _unshared(found, group))
    if not os.access(directory, os.R_OK | os.X_OK):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        advice = f"{_explained(f'{directory}/worker.sock', denied)}; until then batches come by grpc"
        return [worker, Finding(_SUBJECT, "workers' sockets", "note", _EACCES, advice)]
    return [worker, *(_as_trainer(path, reason, owners) for path in sorted(Path(directory).glob("*.sock")))]


def _missing(directory: str, name: str) -> Finding:
    parent = next(part for part in Path(directory).absolute().parents if part.exists())
    if os.access(parent, os.W_OK | os.X_OK):
        return Finding(_SUBJECT, name, "ok", f"{directory} is not there; a worker of {_who()} makes it, in a pod it is mounted")
    owner = parent.stat()
    return Finding(
        _SUBJECT, name, "bad", f"{directory} is not there",
        f"{_who()} may not make it in {parent} (user {owner.st_uid}, group {owner.st_gid}, mode "
        f"{stat.S_IMODE(owner.st_mode):o}): mount a directory there (a hostPath that workers and trainers of the node share), "
        f"or give another by --socket-dir",
        of="worker",
    )  # fmt: skip


def _unshared(found: os.stat_result, group: str) -> str:
    """Why the members of the group cannot come in."""
    if not group or (found.st_gid == int(group) and found.st_mode & 0o2050 == 0o2050):
        return ""
    return f"it is to be shared with group {group}: as its owner run chgrp {group} and chmod 2750"


def _as_worker(directory: str, name: str, described: str, found: os.stat_result, reason: str) -> Finding:
    if not reason and not os.access(directory, os.W_OK | os.X_OK):
        reason = (
            f"{_who()} may make no socket there: run the worker as user {found.st_uid} (runAsUser in the pod's "
            "securityContext), or have the directory made by the worker's user"
        )
    if reason:
        return Finding(_SUBJECT, name, "bad", described, f"{_capital(reason)}; or give another by --socket-dir", of="worker")
    return Finding(_SUBJECT, name, "ok", described)


def _as_trainer(path: Path, reason: str, owners: frozenset[int]) -> Finding:
    """Connects as a trainer would, and leaves again without a word. What keeps one from it is a note: there is grpc."""
    name = path.name
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(_CONNECT_S)
        try:
            asking.connect(str(path))
            check_peer(asking, owners)
        except ConnectionRefusedError:
            advice = "A worker that was killed left it: nothing to do, the next worker of that name replaces it"
            return Finding(_SUBJECT, name, "ok", "nobody listens", advice)
        except PermissionError as error:
            # A peer of another user says so itself; a socket that one may not connect to has only its number.
            told = error.strerror or ""
            reason = _explained(str(path), error) if told in ("", os.strerror(errno.EACCES)) else told
        except OSError as error:
            reason = _explained(str(path), error)
    if reason:
        advice = f"{_capital(reason)}; until then batches come by grpc"
        return Finding(_SUBJECT, name, "note", "a trainer cannot use it", advice)
    return Finding(_SUBJECT, name, "ok", "a worker listens, and a trainer of this user may connect")


def _explained(path: str, error: OSError) -> str:
    return _capital(explained(path, error).strerror or str(error))


def _who() -> str:
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    return f"user {os.geteuid()} with groups {groups}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
