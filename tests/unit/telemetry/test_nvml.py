"""What the driver is asked, against a stand-in for its library: the wrapper itself and nvidia-ml-py run for real."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headrace.telemetry.nvml import THROTTLE_REASONS, Figures
from tests.fake_nvml.driver import GIB, FakeDriver, FakeGpu, compiled

ASK = """
import json, sys
from dataclasses import asdict
from headrace.telemetry.nvml import Nvml, NvmlFailed, NvmlMissing
try:
    nvml = Nvml()
except NvmlMissing as missing:
    print(json.dumps({"missing": str(missing)}))
    sys.exit()
try:
    gpus = nvml.gpus()
    figures = [asdict(nvml.figures(gpu)) for gpu in gpus]
    for each in figures:
        each["throttled"] = None if each["throttled"] is None else sorted(each["throttled"])
    told = {"driver": nvml.driver, "cuda": nvml.cuda, "gpus": [asdict(gpu) for gpu in gpus], "figures": figures}
except NvmlFailed as failed:
    told = {"failed": str(failed)}
nvml.close()
nvml.close()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return compiled(tmp_path_factory.mktemp("driver"))


def asked(driver: FakeDriver, **environment: str) -> Any:
    result = driver.run([sys.executable, "-c", ASK], **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_gpu_tells_all(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(reasons=0x4 | 0x20 | 0x1))
    told = asked(driver)
    assert (told["driver"], told["cuda"]) == ("570.1", [12, 8])
    (gpu,) = told["gpus"]
    assert gpu == {
        "index": 0, "uuid": "GPU-aaaa", "name": "NVIDIA H100", "total_bytes": 80 * GIB, "free_bytes": 72 * GIB, "jpeg": True,
        "capability": [9, 0], "mig": False,
    }  # fmt: skip
    assert told["figures"] == [
        {
            "utilization": 0.4, "memory_used_bytes": 8 * GIB, "memory_total_bytes": 80 * GIB, "jpeg_utilization": 0.25,
            "decoder_utilization": 0.0, "power_watts": 350.0, "temperature_celsius": 61,
            "throttled": ["power_cap", "sw_thermal"],
        }
    ]  # fmt: skip


def test_every_reason_to_throttle_is_told_and_idle_clocks_are_none(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(reasons=0xFC), FakeGpu(uuid="GPU-b", reasons=0x103))
    assert [figures["throttled"] for figures in asked(driver)["figures"]] == [sorted(THROTTLE_REASONS), []]


def test_what_a_gpu_does_not_tell_is_none(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(busy=-1, jpeg=-1, decoder=-1, milliwatts=-1, celsius=-1, reasons=-1))
    told = asked(driver)
    assert told["gpus"][0]["jpeg"] is False
    known = {"memory_used_bytes": 8 * GIB, "memory_total_bytes": 80 * GIB}
    assert told["figures"] == [{**asdict(Figures()), **known}]


def test_slices_stand_in_place_of_the_gpu_that_they_are_cut_from(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(), FakeGpu(uuid="GPU-b", slices=2), FakeGpu(uuid="GPU-c", slices=0))
    told = asked(driver)
    assert [(gpu["index"], gpu["uuid"], gpu["mig"], gpu["jpeg"]) for gpu in told["gpus"]] == [
        (0, "GPU-aaaa", False, True), (1, "MIG-1-GPU-b", True, None), (1, "MIG-2-GPU-b", True, None),
    ]  # fmt: skip
    assert told["figures"][1]["memory_total_bytes"] == 80 * GIB // 7


def test_no_gpu(driver: FakeDriver) -> None:
    driver.tells()
    assert asked(driver)["gpus"] == []


def test_a_gpu_that_is_lost_is_told(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(broken=15))
    assert asked(driver) == {"failed": "NVML does not answer: GPU is lost"}


@pytest.mark.parametrize(
    ("init", "words"),
    [(9, "installed and not loaded: `nvidia-smi`"), (4, "may not ask"), (18, "compare the library's version")],
)
def test_a_driver_that_does_not_answer_is_explained(driver: FakeDriver, init: int, words: str) -> None:
    driver.tells(FakeGpu(), init=init)
    assert words in asked(driver)["missing"]


def test_a_machine_without_a_driver_is_told_what_to_do(driver: FakeDriver, tmp_path: Path) -> None:
    if "libnvidia-ml" in Path("/etc/ld.so.cache").read_text(errors="replace"):
        pytest.skip("this machine has an NVIDIA driver")
    missing = asked(driver, LD_LIBRARY_PATH=str(tmp_path))["missing"]
    assert "there is no NVIDIA driver" in missing
    assert "nvidia.com/gpu" in missing


def test_without_the_package_it_is_named(driver: FakeDriver, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError('no such module', name='pynvml')\n")
    assert "pip install 'headrace[gpu]'" in asked(driver, PYTHONPATH=str(tmp_path))["missing"]
