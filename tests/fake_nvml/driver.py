"""A stand-in for the NVIDIA driver's library (nvml.c), compiled when a test needs it: all above it runs for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

GIB = 2**30
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """As in nvml.c; a figure below 0 is not supported by that GPU. busy, jpeg, decoder: percent. slices: -1 is no MIG."""

    uuid: str = "GPU-aaaa"
    name: str = "NVIDIA H100"
    total: int = 80 * GIB
    used: int = 8 * GIB
    busy: int = 40
    jpeg: int = 25
    decoder: int = 0
    milliwatts: int = 350_000
    celsius: int = 61
    reasons: int = 0
    capability: tuple[int, int] = (9, 0)
    slices: int = -1
    broken: int = 0

    def line(self) -> str:
        """One line of the file that nvml.c reads."""
        figures = (self.total, self.used, self.busy, self.jpeg, self.decoder, self.milliwatts, self.celsius, self.reasons)
        return " ".join(
            map(str, (self.uuid, self.name.replace(" ", "_"), *figures, *self.capability, self.slices, self.broken))
        )


@dataclass(frozen=True, slots=True)
class FakeDriver:
    """A driver in a directory of its own. environment: what a process needs to see it."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.directory), "FAKE_NVML": str(self.directory / "gpus")}

    def tells(self, *gpus: FakeGpu, init: int = 0, driver: str = "570.1", cuda: int = 12080) -> None:
        """Have it tell of these from now on; processes that run see it at their next call."""
        text = "\n".join([f"{init} {driver} {cuda}", *(gpu.line() for gpu in gpus)]) + "\n"
        fresh = self.directory / "gpus.new"
        fresh.write_text(text)
        fresh.replace(self.directory / "gpus")  # never half a file

    def run(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command that sees it."""
        env = {**os.environ, **self.environment, **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def compiled(directory: Path) -> FakeDriver:
    """Compile it there; skips the test, saying why, where there is no compiler or nvidia-ml-py."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'headrace[test]'")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for the NVIDIA driver cannot be made")
    source = Path(__file__).with_name("nvml.c")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o", str(directory / LIBRARY), str(source)]
    subprocess.run(command, check=True, timeout=60)
    driver = FakeDriver(directory)
    driver.tells(FakeGpu())
    return driver
