"""Where this process runs, as Endpoint.node."""

from __future__ import annotations

import socket
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_id() -> str:
    """Equal for processes on one kernel, in whatever containers: its boot id; the host's name where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()
