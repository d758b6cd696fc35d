"""Log lines as a machine reads them."""

from __future__ import annotations

import json
import logging as standard_logging
from collections.abc import Iterator

import pytest
import structlog

from headrace.core.errors import ShardMissing
from headrace.telemetry import logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = standard_logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_time_level_event_and_all_ids(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker", "json", worker="w1")
    with logging.bound(job="imagenet", rank=3):
        structlog.get_logger().info("batch_published", index=7)
    structlog.get_logger().info("outside")
    inside, outside = _lines(capsys)
    assert list(inside)[:3] == ["timestamp", "level", "event"]
    assert str(inside.pop("timestamp")).endswith("Z")
    expected = {"service": "worker", "worker": "w1", "job": "imagenet", "rank": 3, "index": 7, "event": "batch_published"}
    assert inside == {**expected, "level": "info"}
    assert "job" not in outside


def test_auto_is_json_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker")
    structlog.get_logger().info("started")
    assert _lines(capsys)[0]["event"] == "started"


def test_console_is_one_readable_line(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker", "console")
    structlog.get_logger().warning("lane_lost", lane=5)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "lane_lost" in text
    assert "lane" in text


def test_a_logger_made_before_configure_obeys_it(capsys: pytest.CaptureFixture[str]) -> None:
    early = structlog.get_logger()
    logging.configure("first", "json")
    early.info("one")
    logging.configure("second", "json")
    early.info("two")
    assert [line["service"] for line in _lines(capsys)] == ["first", "second"]


def test_the_standard_librarys_logging_comes_out_alike(capsys: pytest.CaptureFixture[str]) -> None:
    uvicorn = standard_logging.getLogger("uvicorn.error")
    uvicorn.addHandler(standard_logging.StreamHandler())
    logging.configure("coordinator", "json")
    uvicorn.warning("port %d", 7300)
    standard_logging.getLogger("uvicorn.access").info("GET /metrics")
    (line,) = _lines(capsys)
    assert line["event"] == "port 7300"
    assert line["level"] == "warning"
    assert line["service"] == "coordinator"


def test_an_error_reads_as_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker", "json")
    structlog.get_logger().error("read_failed", error=ShardMissing("shard 4 is gone", shard=4))
    assert _lines(capsys)[0]["error"] == "shard 4 is gone [shard_missing shard=4]"


def test_a_traceback_stays_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker", "json")
    try:
        raise ShardMissing("gone")
    except ShardMissing:
        structlog.get_logger().exception("crashed")
    (line,) = _lines(capsys)
    assert "ShardMissing" in str(line["exception"])


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logging.configure("worker", "json", level="warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in _lines(capsys)] == ["loud"]
    with pytest.raises(ValueError, match="choose one of"):
        logging.configure("worker", level="loud")
