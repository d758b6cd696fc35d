"""Real services whose addresses all have a password: it is in no log line, answer, metric, error or help text."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import subprocess
import sys
import threading
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import headrace
from headrace.coordinator import store_address
from headrace.coordinator.settings import CoordinatorSettings
from headrace.core.errors import HeadraceError
from headrace.datasets.build import build_index
from headrace.telemetry.settings import load
from headrace.testing.cluster import Cluster
from headrace.testing.processes import ServiceProcess, free_address, start_service
from headrace.testing.tars import write_dataset
from headrace.worker.settings import WorkerSettings

CANARY = "c4n4rypw"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """An HTTP server of the folder; it knows no ranges, so that reading of shards fails and is told."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def stopped(process: ServiceProcess) -> None:
    process.stop(10)


async def test_nowhere(tmp_path: Path) -> None:
    write_dataset(tmp_path / "web" / "set", 2, 40)
    await build_index(str(tmp_path / "web" / "set"))
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(serving(tmp_path / "web"))
        store = stack.enter_context(Cluster(tmp_path / "fleet", coordinators=0, workers=0)).store
        with redis.Redis.from_url(f"redis://{store.address}") as client:
            client.config_set("requirepass", CANARY)
        grpc, admin, metrics = free_address(), free_address(), free_address()
        environment = {"HEADRACE_COORDINATOR_STORE": f"redis://:{CANARY}@{store.address}/0"}
        arguments = ["coordinator", "--grpc-address", grpc, "--admin-address", admin]
        log = tmp_path / "coordinator.log"
        coordinator = start_service("coordinator", arguments, log, environment)
        stack.callback(stopped, coordinator)
        wrong = {"HEADRACE_COORDINATOR_STORE": f"redis://:{CANARY}wrong@{store.address}/0"}
        refused = start_service("refused", [*arguments[:1], "--grpc-address", "127.0.0.1:0", "--admin-address", ""], log, wrong)
        stack.callback(stopped, refused)
        arguments = ["worker", "--coordinator", grpc, "--grpc-address", free_address(), "--metrics-address", metrics]
        worker = start_service("worker", [*arguments, "--socket-dir", str(tmp_path / "s")], tmp_path / "worker.log")
        stack.callback(stopped, worker)
        for address in (admin, metrics):
            (coordinator if address == admin else worker).wait_listening(address, 60)
        said += use(grpc, web)
        said += [fetch(f"{admin}{path}") for path in ("/api/jobs", "/api/jobs/j", "/api/jobs/j/quarantine", "/api/workers")]
        assert json.loads(said[-3])["dataset"] == f"http://***@{web}/set", "the job is there, or nothing was shown"
        said += [
            fetch(f"{admin}/metrics"),
            fetch(f"{metrics}/metrics"),
            fetch(f"{admin}/openapi.json"),
            fetch(f"{admin}/readyz"),
        ]
        worker.wait_until(
            lambda: "job_cannot_be_served" in (tmp_path / "worker.log").read_text() or "batch" in log.read_text(), "a fault", 60
        )
    said += [path.read_text() for path in (log, tmp_path / "worker.log", tmp_path / "fleet" / "logs" / "store.log")]
    assert sum(map(len, said)) > 5000
    for text in said:
        assert CANARY not in text


def use(grpc: str, web: str) -> list[str]:
    """A trainer's ways to meet errors about addresses; what they say."""
    said = []
    with headrace.connect(grpc, deadline_s=10) as client:
        for dataset in (
            f"http://user:{CANARY}@{web}/set",
            f"http://user:{CANARY}2@{web}/set",  # another address for the same job
            f"http://user:{CANARY}@{web}/missing",
            f"http://{web}/set?X-Amz-Signature={CANARY}",
            f"ftp://user:{CANARY}@{web}/set",
            f"s3://key:{CANARY}@bucket/x?sig={CANARY}",
        ):
            try:
                job = client.job("j", dataset=dataset, batch_size=4)
                stream = job.stream(rank=0, world=1, wait_deadline_s=5.0)
                try:
                    next(iter(stream))
                finally:
                    stream.close()
            except HeadraceError as error:
                said += [str(error), repr(error), str(error.ids)]
    assert len(said) > 9
    return said


@pytest.mark.parametrize("settings", [CoordinatorSettings, WorkerSettings])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--stoer", f"redis://:{CANARY}@h"],
        ["--tick-s", f"http://u:{CANARY}@h"],
        ["--threads", f"http://u:{CANARY}@h"],
        [f"redis://:{CANARY}@h"],
    ],
)
def test_nor_what_the_command_line_complains_of(
    settings: type[CoordinatorSettings] | type[WorkerSettings],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_COORDINATOR_STORE", f"redis://:{CANARY}@127.0.0.1:1/0")
    said = ""
    try:
        load(settings, arguments, "headrace x")
    except HeadraceError as error:
        said = str(error)
    except SystemExit:
        pass
    captured = capsys.readouterr()
    said += captured.out + captured.err
    assert said
    assert CANARY not in said


@pytest.mark.parametrize(
    "address", [f"redis://:{CANARY}/x@h:port/0", f"foo://:{CANARY}@h", f"redis://[:{CANARY}@h", f"sentinel://:{CANARY}@h/"]
)
def test_nor_what_is_wrong_with_the_stores_address(address: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        store_address.connect(address)
    assert CANARY not in str(caught.value) + repr(caught.value.__cause__)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_one_real_process_complains_without_it(tmp_path: Path) -> None:
    full = [sys.executable, "-m", "headrace", "coordinator", "--stoer", f"redis://:{CANARY}@h"]
    done = subprocess.run(full, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "--stoer" in done.stderr
    assert CANARY not in done.stdout + done.stderr
