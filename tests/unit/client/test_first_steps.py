"""What a trainer's owner sees before anything works: few lines, and each says what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import headrace
from headrace.client import rpc
from headrace.client.connect import _absolute
from headrace.client.transports.waiting import describe
from headrace.core import errors
from headrace.core.arrivals import Arrivals
from headrace.core.session_plan import Position
from headrace.telemetry.addresses import split_address
from headrace.wire.gen import coordinator_service_pb2 as pb

LOGS = """
import headrace, structlog
headrace.connect("127.0.0.1:1")
log = structlog.get_logger()
log.info("worker_connected")
log.warning("batch_awaited")
"""


def log_of(level: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HEADRACE_LOG_LEVEL": level}
    return subprocess.run(
        [sys.executable, "-c", LOGS], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def test_a_trainers_terminal_is_its_own() -> None:
    done = log_of("")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "batch_awaited" in done.stderr
    assert "worker_connected" not in done.stderr


def test_the_log_level_is_a_variable() -> None:
    assert "worker_connected" in log_of("info").stderr
    assert "HEADRACE_LOG_LEVEL must be one of debug, info, warning, error, not 'loud'" in log_of("loud").stderr


def test_a_path_means_the_same_to_the_whole_fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert _absolute("data/train/") == _absolute(Path("data/train")) == f"{tmp_path}/data/train"
    assert _absolute("~/train") == str(Path.home() / "train")
    for address in ("s3://bucket/train", "file:///data", "/data/train"):
        assert _absolute(address) == address


def test_a_list_of_operations_is_told_what_a_pipeline_is() -> None:
    with headrace.connect("127.0.0.1:1") as client, pytest.raises(errors.SpecInvalid, match="must be a PipelineSpec"):
        client.job("train", dataset="/data", batch_size=4, pipeline=[headrace.HorizontalFlip()])  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["http://127.0.0.1:7300", "127.0.0.1", "a/b:1"])
def test_an_address_is_host_and_port_alone(address: str) -> None:
    with pytest.raises(errors.ConfigInvalid, match="is not host:port"):
        split_address(address)


def test_a_coordinator_that_is_down_is_told_soon_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "TELL_AFTER_S", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refuses
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            capture_logs() as lines,
            headrace.connect(address, deadline_s=0.5) as client,
            pytest.raises(errors.CoordinatorUnavailable) as caught,
        ):
            client.job("train", dataset="/data", batch_size=4)
    assert [line["event"] for line in lines] == ["still_trying"]
    assert str(caught.value).count("check that") == 1
    assert "Connection refused" in str(caught.value)


def test_an_error_of_the_coordinator_comes_without_the_transports_own() -> None:
    calls = rpc.CoordinatorRpc("127.0.0.1:1")
    with pytest.raises(errors.CoordinatorUnavailable) as caught:
        calls.call("OpenJob", pb.OpenJobRequest())
    calls.close()
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_lane_that_never_had_an_owner_is_not_ownerless_since_the_machine_started() -> None:
    arrivals = Arrivals(lambda index: 0, lanes=1, window=3)
    position = Position(0, 0, 0, 0)
    text = describe(arrivals.awaited(0), position, [], True, now_s=5000.0)
    assert "no worker holds its lane: check that workers run" in text
    assert "since" not in text
    assert "fingerprint" not in text
    arrivals.table([""], [1], 3, now_s=4990.0)
    assert "no worker holds its lane since 10.0 s" in describe(arrivals.awaited(0), position, [], True, now_s=5000.0)


@pytest.mark.parametrize("fingerprint", ["", "any", "nope", "x" * 1000])
def test_a_lane_without_an_owner_says_which_engine_the_job_demands(fingerprint: str) -> None:
    arrivals = Arrivals(lambda index: 0, lanes=1, window=3)
    text = describe(arrivals.awaited(0), Position(0, 0, 0, 0), [], True, 1.0, fingerprint=fingerprint)
    assert ("takes no other (`headrace status --json`" in text) == (fingerprint not in ("", "any"))
    assert fingerprint not in ("nope",) or "has the fingerprint 'nope'" in text
    assert len(text) < 500
