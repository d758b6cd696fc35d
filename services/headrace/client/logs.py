"""Where the client's log lines go in a trainer's process, and which."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

import structlog

from headrace.core.errors import ConfigInvalid

LEVELS = ("debug", "info", "warning", "error")
VARIABLE = "HEADRACE_LOG_LEVEL"
NAME = "headrace.client"  # of the logger, where a trainer routes structlog into `logging`


def keep_out_of_the_way() -> None:
    """Send warnings to standard error, unless the process has set up structlog itself, now or later.

    structlog's own default is every line on standard output, which belongs to the trainer. HEADRACE_LOG_LEVEL=info tells
    also which worker was connected how. Raises ConfigInvalid for an unknown level.
    """
    level = log_level()
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
            logger_factory=_to_standard_error,
        )


def _to_standard_error(*_names: Any) -> Any:
    """Looked up for each line: notebooks, test runners and `redirect_stderr` exchange it and close the one before."""
    return structlog.ReturnLogger() if sys.stderr is None else structlog.PrintLogger(sys.stderr)


class Log:
    """Logs by structlog as it is set up at that moment. A line that cannot be written is lost, and nothing else.

    Standard error may be a closed file or a pipe that nobody reads any more, and a processor of the trainer's own set-up may
    fail at our lines. Neither may end the thread that was about to tell something, and with it the training.
    """

    def debug(self, event: str, **fields: Any) -> None:
        """For who looks for a fault."""
        _write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """What happens."""
        _write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """What somebody should know."""
        _write("warning", event, fields)


def _write(level: str, event: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):
        getattr(structlog.get_logger(NAME), level)(event, **fields)


log = Log()


def log_level() -> str:
    """The least severe lines that a trainer's processes log. Raises ConfigInvalid."""
    level = os.environ.get(VARIABLE, "").strip().lower() or "warning"
    if level not in LEVELS:
        raise ConfigInvalid(f"{VARIABLE} must be one of {', '.join(LEVELS)}, not {level!r}", setting=VARIABLE)
    return level
