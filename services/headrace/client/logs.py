"""Where the client's log lines go in a trainer's process, and which."""

from __future__ import annotations

import logging
import os
import sys

import structlog

from headrace.core.errors import ConfigInvalid

LEVELS = ("debug", "info", "warning", "error")
VARIABLE = "HEADRACE_LOG_LEVEL"


def keep_out_of_the_way() -> None:
    """Send warnings to standard error, unless the process has set up structlog itself, now or later.

    structlog's own default is every line on standard output, which belongs to the trainer. HEADRACE_LOG_LEVEL=info tells
    also which worker was connected how. Raises ConfigInvalid for an unknown level.
    """
    level = log_level()
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def log_level() -> str:
    """The least severe lines that a trainer's processes log. Raises ConfigInvalid."""
    level = os.environ.get(VARIABLE, "").strip().lower() or "warning"
    if level not in LEVELS:
        raise ConfigInvalid(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}", setting=VARIABLE)
    return level
