"""Logs of the services: one line an event, JSON for machines, short and coloured for a person at a terminal.

Called once at the start of each service process. A trainer's process is never configured: its logs are its owner's.
Every line has `timestamp` (ISO 8601, UTC), `level`, `event`, `service` and the ids bound to it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.core.masking import mask_address

Format = Literal["auto", "json", "console"]
LEVELS = ("debug", "info", "warning", "error")

# Libraries that speak through the standard library's logging and would repeat what our own events say.
_QUIET = {"uvicorn.access": logging.WARNING, "asyncio": logging.WARNING, "grpc": logging.WARNING}


def configure(service: str, format: Format = "auto", level: str = "info", **ids: str | int) -> None:
    """Send all logs of this process to stderr, with `service` and `ids` (worker=..., replica=...) on every line.

    format: `json`, one object a line; `console`, text for people; `auto`, text where stderr is a terminal. Calling it again
    replaces the set-up. Raises ValueError for an unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: choose one of {', '.join(LEVELS)}")
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_ids({"service": service, **ids}),
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
        _errors_as_text,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a module's logger made before this call must obey it too
    )
    render: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    render += [structlog.processors.format_exc_info, _masked]
    if console:
        # Plain: a pretty one would print local variables, and with them whatever secret they hold.
        plain = structlog.dev.plain_traceback
        render.append(structlog.dev.ConsoleRenderer(colors=True, pad_event_to=24, exception_formatter=plain))
    else:
        render += [_readable_order, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_without_peers_garbage)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))
    _route_standard_library(handler, level)


@contextmanager
def bound(**ids: str | int) -> Iterator[None]:
    """Put ids (job=..., rank=..., lane=...) on every line logged inside, by this thread or asyncio task."""
    with structlog.contextvars.bound_contextvars(**ids):
        yield


def _route_standard_library(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)  # uvicorn puts handlers of its own there
        logger.handlers = []
        logger.propagate = True
    for name, at_least in _QUIET.items():
        logging.getLogger(name).setLevel(max(at_least, root.level))


def _without_peers_garbage(record: logging.LogRecord) -> bool:
    """gRPC logs a trace for each message that is none: a line says as much, and a peer must not be able to fill a disk."""
    if record.name.startswith("grpc") and record.exc_info and type(record.exc_info[1]).__name__ == "DecodeError":
        record.exc_info = None
    return True


def _with_ids(ids: dict[str, str | int]) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**ids, **event}

    return add


def _masked(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Credentials in addresses, wherever in a line they stand."""
    return {key: _mask(value) for key, value in event.items()}


def _mask(value: Any) -> Any:
    if isinstance(value, str):
        return mask_address(value)
    if isinstance(value, list | tuple):
        return [_mask(item) for item in value]
    return {key: _mask(item) for key, item in value.items()} if isinstance(value, dict) else value


def _readable_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """What a person looks for comes first, also in JSON."""
    first = {key: event[key] for key in ("timestamp", "level", "event") if key in event}
    return {**first, **event}


def _errors_as_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """`error=exc` reads as its message, not as a repr."""
    return {
        key: str(value) or type(value).__name__ if isinstance(value, Exception) and key != "exc_info" else value
        for key, value in event.items()
    }
