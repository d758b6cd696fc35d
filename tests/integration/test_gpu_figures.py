"""A worker as a process on a machine whose driver is a stand-in: it looks around, says what it chose, and exports its GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import WaitTimeout
from headrace.telemetry.panels_gpus import GPUS
from headrace.testing.panel_page import filled
from headrace.testing.processes import free_address
from headrace.testing.prometheus import Prometheus, wait_for
from tests.fake_nvml.driver import FakeDriver, FakeGpu, compiled


def scraped(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


# Too little memory for any engine, so that `cpu` is right on any machine.
SMALL = FakeGpu(total=2**30, used=2**29)


@contextlib.contextmanager
def worker(driver: FakeDriver, log: Path) -> Iterator[str]:
    """A worker that sees that driver, without a coordinator; its metrics address."""
    metrics = free_address()
    command = [sys.executable, "-m", "headrace", "worker", "--engine", "auto", "--metrics-address", metrics, "--threads", "1"]
    command += ["--coordinator", free_address(), "--grpc-address", "127.0.0.1:0", "--socket-dir", "", "--log-format", "json"]
    with log.open("w") as output:
        process = subprocess.Popen(command, env={**os.environ, **driver.environment}, stdout=output, stderr=output)
    try:
        wait_for(lambda: "headrace_gpu_info" in scraped(metrics) or process.poll() is not None, "the GPU's figures", 60.0)
        yield metrics
    finally:
        process.terminate()
        process.wait(30)


def test_a_worker_chooses_its_engine_and_exports_its_gpu(tmp_path: Path) -> None:
    driver, log = compiled(tmp_path), tmp_path / "log"
    driver.tells(SMALL)
    with worker(driver, log) as metrics:
        text, said = scraped(metrics), log.read_text()
        assert 'headrace_worker_engine_info{device="cpu",engine="cpu"} 1.0' in text, said
        assert 'headrace_gpu_memory_used_bytes{gpu="0"} 5.36870912e+08' in text
        (line,) = [line for line in said.splitlines() if "engine_chosen" in line]
        assert '"engine": "cpu"' in line or '"engine":"cpu"' in line
        assert "no GPU engine, since" in line
        driver.tells(replace(SMALL, used=2**28))
        assert 'headrace_gpu_memory_used_bytes{gpu="0"} 2.68435456e+08' in scraped(metrics)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed; tools/prometheus.sh installs it")
def test_every_panel_on_gpus_finds_its_figures_in_a_real_prometheus(tmp_path: Path) -> None:
    driver = compiled(tmp_path)
    driver.tells(replace(SMALL, reasons=0x4))
    with worker(driver, tmp_path / "log") as metrics:
        targets = {"headrace-worker": [metrics]}
        with Prometheus(tmp_path, targets=targets, namespace="local", rules=[]) as prometheus:
            empty: list[str] = []

            def all_found() -> bool:
                empty[:] = [
                    f"{panel.title}: {query.expr}"
                    for panel in GPUS.panels
                    for query in panel.queries
                    if not prometheus.query(filled(query.expr))
                ]
                return not empty

            with contextlib.suppress(WaitTimeout):  # the assertion says more
                wait_for(all_found, "figures in every panel", 60.0)
            assert empty == []
            (found,) = prometheus.query("max by (reason) (headrace_gpu_throttled) == 1")
            assert found["metric"] == {"reason": "power_cap"}
