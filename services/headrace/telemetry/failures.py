"""What a peer is told of an error that nobody expected, and what is logged of it."""

from __future__ import annotations

import errno
import os

import structlog

from headrace.core.errors import HeadraceError, OutOfDescriptors

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


log = structlog.get_logger()


def unexpected(event: str, what: str, error: Exception, **ids: str | int) -> HeadraceError:
    """The error to tell at an edge, where whatever was raised ends; call it from the `except` block.

    A lack of open files, even as the cause of another error, is named (OutOfDescriptors) and logged in a line: it passes, and
    no code is wrong. All else is a bug of ours or of a library, told as it is or as the base class and logged with its trace.
    event: for the log. what: begins the message, such as "the worker failed to admit the rank".
    """
    lack = out_of_descriptors(error, what, **ids)
    if lack is None:
        log.exception(event, **ids)
        return error if isinstance(error, HeadraceError) else HeadraceError(f"{what}: {error!r}", **ids)
    log.error(event, error=lack.message, **ids)
    return lack


def no_descriptor(what: str, reason: str = os.strerror(errno.EMFILE), **ids: str | int) -> OutOfDescriptors:
    """The error to tell of what this process, or the machine, has no open file left for."""
    return OutOfDescriptors(f"{what}: {reason}; raise the limit of open files (ulimit -n)", **ids)


def out_of_descriptors(error: BaseException | None, what: str, **ids: str | int) -> OutOfDescriptors | None:
    """The error to tell if `error` was raised for a lack of open files, by itself or by what caused it; otherwise None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OutOfDescriptors):
            return error
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
            return no_descriptor(what, os.strerror(error.errno), **ids)
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
