"""The client's log lines go to whatever standard error is at that moment, and never end what was about to tell something."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog

import headrace
from headrace.client.logs import keep_out_of_the_way, log


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def closed_file() -> TextIO:
    file = io.StringIO()
    file.close()
    return file


def pipe_without_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering=1)


@pytest.mark.parametrize("broken", [closed_file, pipe_without_reader, lambda: None])
def test_a_line_that_cannot_be_written_is_lost_and_the_next_goes_to_the_new_standard_error(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = broken()
    monkeypatch.setattr(sys, "stderr", file)
    keep_out_of_the_way()
    log.warning("lost")
    monkeypatch.setattr(sys, "stderr", now := io.StringIO())
    log.warning("told", rank=3)
    assert "lost" not in now.getvalue()
    assert "told" in now.getvalue() and "rank" in now.getvalue()
    with contextlib.suppress(BrokenPipeError, AttributeError):
        file.close()


def test_a_set_up_of_the_trainers_own_that_fails_at_our_lines_costs_the_line_alone() -> None:
    def demanding(_logger: Any, _level: str, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "id": event["request_id"]}

    lines: list[str] = []
    structlog.configure(processors=[demanding, lambda _logger, _level, event: str(lines.append(event["id"]))])
    log.debug("ours")
    log.info("ours")
    log.warning("ours")
    log.warning("ours", request_id="known")
    assert lines == ["known"]


def test_all_of_the_client_logs_that_way() -> None:
    client = Path(headrace.__file__).parent / "client"
    others = {
        str(path.relative_to(client))
        for path in client.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and "get_logger" in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
    }
    assert others == {"logs.py"}


def test_a_trainer_that_routes_structlog_into_logging_finds_all_lines_under_one_name(caplog: pytest.LogCaptureFixture) -> None:
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    log.warning("told", rank=3)
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("headrace.client", "told")]
