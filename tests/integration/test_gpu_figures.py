"""A worker as a process on a machine whose driver is a stand-in: it looks around, says what it chose, and exports its GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from headrace.testing.processes import free_address
from headrace.testing.prometheus import wait_for
from tests.fake_nvml.driver import FakeGpu, compiled


def scraped(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def test_a_worker_chooses_its_engine_and_exports_its_gpu(tmp_path: Path) -> None:
    driver = compiled(tmp_path)
    driver.tells(FakeGpu(total=2**30, used=2**29))  # too little for any engine, so that `cpu` is right on any machine
    metrics, log = free_address(), tmp_path / "log"
    command = [sys.executable, "-m", "headrace", "worker", "--engine", "auto", "--metrics-address", metrics, "--threads", "1"]
    command += ["--coordinator", free_address(), "--grpc-address", "127.0.0.1:0", "--socket-dir", "", "--log-format", "json"]
    with log.open("w") as output:
        worker = subprocess.Popen(command, env={**os.environ, **driver.environment}, stdout=output, stderr=output)
    try:
        wait_for(lambda: "headrace_gpu_info" in scraped(metrics) or worker.poll() is not None, "the GPU's figures", 60.0)
        text, said = scraped(metrics), log.read_text()
        assert 'headrace_worker_engine_info{device="cpu",engine="cpu"} 1.0' in text, said
        assert 'headrace_gpu_memory_used_bytes{gpu="0"} 5.36870912e+08' in text
        (line,) = [line for line in said.splitlines() if "engine_chosen" in line]
        assert '"engine": "cpu"' in line or '"engine":"cpu"' in line
        assert "no GPU engine, since" in line
        driver.tells(FakeGpu(total=2**30, used=2**28))
        assert 'headrace_gpu_memory_used_bytes{gpu="0"} 2.68435456e+08' in scraped(metrics)
    finally:
        worker.terminate()
        worker.wait(30)
