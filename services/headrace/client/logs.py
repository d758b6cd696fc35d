"""Where the client's log lines go in a trainer's process."""

from __future__ import annotations

import sys

import structlog


def keep_off_stdout() -> None:
    """Send log lines to standard error, unless the process has set up structlog itself, now or later.

    structlog's own default is standard output, which belongs to the trainer.
    """
    if not structlog.is_configured():
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
