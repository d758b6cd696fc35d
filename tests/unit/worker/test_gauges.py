"""What a worker exports of its GPUs, against a stand-in for the driver."""

from __future__ import annotations

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry.metrics import CATALOGUE
from headrace.telemetry.nvml import THROTTLE_REASONS
from tests.fake_nvml.driver import GIB, FakeDriver, FakeGpu, compiled

EXPORT = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from headrace.worker.gauges import export_gpus
registry = CollectorRegistry()
end = export_gpus(registry, needed=True)
for _ in sys.argv[1:]:
    text = generate_latest(registry).decode()
end()
print("#")
print(text)
"""

Series = dict[tuple[str | None, ...], float]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return compiled(tmp_path_factory.mktemp("driver"))


def exported(driver: FakeDriver, scrapes: int = 1, **environment: str) -> tuple[Series, str]:
    """(series by name and label values, log)."""
    result = driver.run([sys.executable, "-c", EXPORT, *"x" * scrapes], **environment)
    assert result.returncode == 0, result.stderr
    log, _, text = result.stdout.partition("#\n")
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, *map(each.labels.get, CATALOGUE[each.name].labels)): each.value for each in samples}, log


def test_all_figures_of_all_gpus(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(reasons=0x4), FakeGpu(uuid="GPU-b", name="Tesla T4", jpeg=-1, busy=100, milliwatts=70_500))
    series, log = exported(driver)
    assert log == ""
    assert series["headrace_gpu_info", "0", "GPU-aaaa", "NVIDIA H100", "570.1"] == 1
    assert series["headrace_gpu_info", "1", "GPU-b", "Tesla T4", "570.1"] == 1
    figures = ("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "decoder_utilization_ratio")
    assert [series[f"headrace_gpu_{name}", "0"] for name in figures] == [0.4, 8 * GIB, 80 * GIB, 0]
    assert series["headrace_gpu_jpeg_utilization_ratio", "0"] == 0.25
    assert ("headrace_gpu_jpeg_utilization_ratio", "1") not in series  # it has none
    assert (series["headrace_gpu_power_watts", "1"], series["headrace_gpu_temperature_celsius", "1"]) == (70.5, 61)
    throttled = {reason: series["headrace_gpu_throttled", "0", reason] for reason in THROTTLE_REASONS}
    assert throttled == {reason: float(reason == "power_cap") for reason in THROTTLE_REASONS}


def test_only_gpus_that_cuda_shows_to_the_worker(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    series, _ = exported(driver, CUDA_VISIBLE_DEVICES="GPU-b")
    assert {labels[1] for labels in series} == {"1"}


def test_slices_have_series_of_their_own(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(slices=2))
    series, _ = exported(driver)
    used = {labels[1]: value for labels, value in series.items() if labels[0] == "headrace_gpu_memory_used_bytes"}
    assert used == {"0/MIG-1-GPU-aa": 8 * GIB // 7, "0/MIG-2-GPU-aa": 8 * GIB // 7}
    assert not any(labels[0] == "headrace_gpu_throttled" for labels in series)


def test_a_gpu_that_is_lost_meanwhile_is_told_once_and_costs_the_others_nothing(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    code = EXPORT.replace("for _ in", "import os; p = os.environ['FAKE_NVML']; os.replace(p + '.lost', p)\nfor _ in")
    (driver.directory / "gpus.lost").write_text(
        "\n".join(["0 570.1 12080", FakeGpu(uuid="GPU-a", broken=15).line(), FakeGpu(uuid="GPU-b").line()])
    )
    result = driver.run([sys.executable, "-c", code, "x", "x", "x"])
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("gpu_figures_failed") == 1
    assert "GPU is lost" in result.stdout
    assert 'headrace_gpu_utilization_ratio{gpu="1"} 0.4' in result.stdout
    assert '{gpu="0"' not in result.stdout


def test_without_a_driver_nothing_is_exported_and_a_gpu_engine_is_told_so(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(), init=9)
    series, log = exported(driver)
    assert series == {}
    assert "no_gpu_figures" in log
    assert "not loaded" in log
