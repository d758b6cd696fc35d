"""The directory of a worker's sockets: its owner's alone, or one that the members of a group may enter.

In Kubernetes a worker and a trainer often run as different users of one node. Then the directory has a group that both are in
(mode 2750: the group enters and connects, and cannot plant anything), and trainers name the worker's user, see
headrace.telemetry.socket_trust.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.core.errors import ConfigInvalid
from headrace.telemetry.socket_trust import distrusted, trusted_owners

OWNER_ONLY, SHARED = 0o600, 0o660  # modes of sockets: to connect is to write
_SHARED_DIR = 0o2750  # setgid: sockets get the directory's group


def prepare(directory: Path, group: int | None) -> int:
    """Make the directory if it is not there, and open it to the group if there is one. Returns the mode of sockets in it.

    One that another user made is taken as it is, if its group is the right one. Raises ConfigInvalid.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(
            f"socket_dir {directory} cannot be made: {error.strerror}; give another, or '' for no shared memory"
        ) from error
    if group is not None:
        _share(directory, group)
    if reason := distrusted(str(directory), trusted_owners()):
        raise ConfigInvalid(f"socket_dir cannot be used: {reason}; or give another, or '' for no shared memory")
    return OWNER_ONLY if group is None else SHARED


def _share(directory: Path, group: int) -> None:
    found = directory.lstat()
    try:
        if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode):
            os.chown(directory, -1, group, follow_symlinks=False)
            directory.chmod(_SHARED_DIR)
            found = directory.lstat()
    except OSError as error:
        raise ConfigInvalid(
            f"socket_dir {directory} cannot be given to group {group}: {error.strerror}; the worker must be in that group "
            f"(supplementalGroups in Kubernetes; its groups are {_groups()})"
        ) from error
    entered = stat.S_IRGRP | stat.S_IXGRP | stat.S_ISGID
    if found.st_gid != group or found.st_mode & entered != entered:
        raise ConfigInvalid(
            f"socket_dir {directory} has group {found.st_gid} and mode {stat.S_IMODE(found.st_mode):o}, and trainers of group "
            f"{group} are to enter it: as its owner run chgrp {group} and chmod 2750, or name a directory below it"
        )


def _groups() -> str:
    return ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
