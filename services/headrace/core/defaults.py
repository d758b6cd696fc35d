"""Defaults of the worker's settings that commands reckon with, too: `headrace plan` and `headrace doctor`."""

from __future__ import annotations

from typing import Final

ENGINE: Final = "cpu"
# Batches that are read or decoded at a time.
BATCHES_IN_FLIGHT = 3
READ_AHEAD_BYTES = 1 << 30
SOCKET_DIR = "/tmp/headrace"  # noqa: S108
