"""`--engine auto`: what is looked at, what is made, and what is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import ConfigInvalid, EngineUnsupported
from headrace.core.placement import GPU_ENGINES, Gpu, Machine
from headrace.worker import app
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine
from headrace.worker.placement import is_installed, look_around, make_engine
from headrace.worker.settings import WorkerSettings
from tests.fake_nvml.driver import FakeDriver, FakeGpu, compiled

GPU = Gpu(0, "GPU-1", "H100", 2**36, 2**36, jpeg=True, capability=(9, 0))
WITH_GPU = Machine(cores=4, gpus=(GPU,), driver="570", cuda=(12, 8))
LOOK = """
import json
from dataclasses import asdict
from headrace.worker.placement import look_around
print(json.dumps(asdict(look_around(3))))
"""


class Maker:
    """Makes `null` in place of each engine but those that are broken."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.asked: list[str] = []

    def __call__(self, name: str, threads: int) -> Engine:
        self.asked.append(name)
        if name in self.broken:
            raise EngineUnsupported(f"{name} does not load", engine=name)
        return registry.create("null", threads)


def test_a_named_engine_is_made_without_a_look() -> None:
    def look(threads: int) -> Machine:
        raise AssertionError("looked")

    with capture_logs() as logs:
        assert make_engine("null", 1, look=look).name == "null"
    assert logs == []


def test_the_setting_offers_auto_and_every_engine() -> None:
    assert set(get_args(WorkerSettings.model_fields["engine"].annotation)) == {"auto", *registry.NAMES}


def test_auto_says_in_one_line_what_it_took_and_why() -> None:
    maker = Maker()
    with capture_logs() as logs:
        make_engine("auto", 4, maker, lambda threads: WITH_GPU)
    assert maker.asked == ["cvcuda"]
    (line,) = logs
    assert line["event"] == "engine_chosen"
    assert (line["engine"], line["gpu"]) == ("cvcuda", "GPU-1")
    assert "hardware JPEG" in line["why"]


@pytest.mark.parametrize(
    ("broken", "asked"), [(("cvcuda",), ["cvcuda", "dali-gpu"]), (("cvcuda", "dali-gpu"), ["cvcuda", "dali-gpu", "cpu"])]
)
def test_an_engine_that_cannot_be_made_is_told_and_the_next_one_made(broken: tuple[str, ...], asked: list[str]) -> None:
    maker = Maker(*broken)
    with capture_logs() as logs:
        make_engine("auto", 4, maker, lambda threads: WITH_GPU)
    assert maker.asked == asked
    assert [line["event"] for line in logs] == ["engine_failed"] * len(broken) + ["engine_chosen"]
    if asked[-1] == "cpu":
        assert "cvcuda does not load" in logs[-1]["why"]


def test_where_even_the_cpu_engine_cannot_be_made_the_error_is_told() -> None:
    with pytest.raises(EngineUnsupported, match="cpu does not load"):
        make_engine("auto", 4, Maker("cvcuda", "dali-gpu", "cpu"), lambda threads: WITH_GPU)


def test_this_machine_has_a_choice() -> None:
    engine = make_engine("auto", 1)
    try:
        assert engine.name in registry.NAMES
    finally:
        engine.close()


def test_a_machine_without_a_driver_says_so() -> None:
    machine = look_around(1)
    assert bool(machine.gpus) != bool(machine.no_gpus)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return compiled(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize(
    ("setting", "uuids", "words"),
    [
        (None, ["GPU-a", "GPU-b"], ""),
        ("1", ["GPU-b"], ""),
        ("7", [], "CUDA_VISIBLE_DEVICES='7' shows none of the 2 GPUs"),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(driver: FakeDriver, setting: str | None, uuids: list[str], words: str) -> None:
    driver.tells(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"))
    given = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    result = driver.run([sys.executable, "-c", LOOK], **given)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert [gpu["uuid"] for gpu in told["gpus"]] == uuids
    assert (told["cores"], told["driver"], told["cuda"]) == (3, "570.1", [12, 8])
    assert told["no_gpus"] == words


def test_a_driver_without_gpus_is_no_machine_with_gpus(driver: FakeDriver) -> None:
    driver.tells()
    told = json.loads(driver.run([sys.executable, "-c", LOOK]).stdout)
    assert "shows no GPU to this process" in told["no_gpus"]


def test_modules_are_looked_for_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "would_break_hr.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_installed("would_break_hr")
    assert not is_installed("no_such_module_hr")
    assert not is_installed("no_such_module_hr.inner")


@pytest.mark.parametrize("name", sorted(GPU_ENGINES))
def test_a_gpu_engine_hands_over_on_the_gpu_that_it_works_on(name: str) -> None:
    """It writes to the first GPU that the process sees: a slot on another one would fail every batch."""

    class Named:
        pass

    engine: Any = Named()
    engine.name = name
    for gpu in (-1, 0):
        app._device_share(WorkerSettings(gpu=gpu), engine)
    with pytest.raises(ConfigInvalid, match="CUDA_VISIBLE_DEVICES=1"):
        app._device_share(WorkerSettings(gpu=1), engine)
    engine.name = "cpu"
    app._device_share(WorkerSettings(gpu=1), engine)
