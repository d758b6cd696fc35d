"""Open files: how many this process may still open, and what its listeners do when it may open no more."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from typing import Any

from headrace.core.errors import OutOfDescriptors

# Before it has a single peer a service takes some 40: gRPC, threads' pipes, listeners, the store.
SERVICE_NEEDS = 64
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TELL_EVERY_S = 10.0
_PAUSE_S = 0.5


def free_descriptors() -> int:
    """How many more files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    try:
        return max(0, soft - len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - no descriptor more than needed
    except OSError as error:
        if error.errno in _OUT_OF:
            return 0
        raise


def need_descriptors(count: int, who: str) -> None:
    """Raise OutOfDescriptors if fewer are free: below that, libraries end the process instead of raising an error."""
    free = free_descriptors()
    if free < count:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise OutOfDescriptors(
            f"{who} needs {count} open files to begin with, and {free} of {soft} are free: raise the limit (ulimit -n)",
            limit=soft,
        )


def tell_refused_accepts(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop's servers that can accept no connection say so now and then: asyncio logs a trace for each try."""
    told_s = -_TELL_EVERY_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF and "socket" in context):
            loop.default_exception_handler(context)
        elif loop.time() >= told_s + _TELL_EVERY_S:
            told_s = loop.time()
            import structlog  # not loaded by a trainer that only counts its descriptors

            note = "connections wait; raise the limit of open files"
            structlog.get_logger().warning("accept_failed", error=error.strerror, note=note)

    loop.set_exception_handler(handle)


def pause_without_descriptors(error: OSError) -> None:
    """Wait for a moment if that is what `accept` failed for: the connection stays, and so would be tried for at once."""
    if error.errno in _OUT_OF:
        time.sleep(_PAUSE_S)
