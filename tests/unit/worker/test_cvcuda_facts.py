"""What the cvcuda engine learns of its GPU before its first CUDA call, from a stand-in for the driver."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fake_nvml.driver import FakeDriver, FakeGpu, compiled

ASK = """
import json
from dataclasses import asdict
from headrace.core.errors import EngineUnsupported
from headrace.worker.engines.codec import Device
from headrace.worker.engines.cvcuda import fingerprint, first_gpu
try:
    facts = first_gpu()
    print(json.dumps({**asdict(facts), "fingerprint": fingerprint(facts, Device(0, facts.jpeg_engine), "cpu-2;x")}))
except EngineUnsupported as error:
    print(json.dumps({"refused": error.message, **error.ids}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return compiled(tmp_path_factory.mktemp("driver"))


def ask(driver: FakeDriver, **environment: str) -> dict[str, object]:
    done = driver.run([sys.executable, "-c", ASK], **environment)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_model_driver_and_jpeg_engine_of_the_first_gpu_are_in_the_fingerprint(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(uuid="GPU-a", name="NVIDIA H100", jpeg=0), FakeGpu(uuid="GPU-b", name="NVIDIA L4", jpeg=-1))
    first, second = ask(driver), ask(driver, CUDA_VISIBLE_DEVICES="1")
    assert (first["name"], first["driver"], first["jpeg_engine"]) == ("NVIDIA H100", "570.1", True)
    assert (second["name"], second["jpeg_engine"]) == ("NVIDIA L4", False)
    text = str(first["fingerprint"])
    for part in (
        "cvcuda-1;cvcuda=",
        "nvimgcodec=0.9.0",
        "nvjpeg=",
        "driver=570.1",
        "gpu=NVIDIA_H100",
        "jpeg_engine=1",
        "backend=gpu",
    ):
        assert part in text
    assert text != second["fingerprint"]
    assert " " not in text


def test_no_gpu_to_use_is_told(driver: FakeDriver) -> None:
    driver.tells(FakeGpu())
    assert "CUDA_VISIBLE_DEVICES" in str(ask(driver, CUDA_VISIBLE_DEVICES="9")["refused"])
