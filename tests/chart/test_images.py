"""The Dockerfiles: linted, and true to the repository and the chart. They cannot be built here: there is no registry."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from headrace.core.placement import GPU_ENGINES
from headrace.worker.engines.registry import EXTRAS
from tests.chart.helm import CHART, ROOT, containers, pods, rendered

FILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))
every_file = pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)


def instructions(file: Path) -> list[str]:
    """Without comments, one a line."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


@every_file
def test_hadolint_finds_nothing(file: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@every_file
def test_what_is_copied_is_there_and_not_ignored(file: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [
        word for line in instructions(file) if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source in kept


@every_file
def test_all_that_the_install_reads_is_copied(file: Path) -> None:
    """The build hook and its sources: without them an image would lack the native core."""
    copied = {word for line in instructions(file) if line.startswith("COPY") for word in line.split()}
    assert {"pyproject.toml", "hatch_build.py", "native", "services", "README.md", "LICENSE"} <= copied
    assert "ENV HEADRACE_NATIVE=require" in instructions(file)


@every_file
def test_extras_exist(file: Path) -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = re.findall(r'"\.\[([a-z,]+)\]"|EXTRAS=([a-z,]+)', file.read_text())
    assert named
    assert {extra for pair in named for extra in "".join(pair).split(",")} <= extras


def test_the_gpu_image_has_what_every_gpu_engine_imports() -> None:
    (default,) = re.findall(r"ARG EXTRAS=([a-z,]+)", (ROOT / "deploy/docker/gpu.Dockerfile").read_text())
    assert {"worker", *(EXTRAS[engine] for engine in GPU_ENGINES), "gpu"} <= set(default.split(","))


@every_file
def test_the_user_is_the_charts(file: Path) -> None:
    security = yaml.safe_load((CHART / "values.yaml").read_text())["podSecurity"]
    assert f"USER {security['user']}:{security['group']}" in instructions(file)
    assert 'ENTRYPOINT ["headrace"]' in instructions(file), "as a list, so that SIGTERM reaches the program"


def test_the_chart_asks_images_for_nothing_but_what_they_have() -> None:
    """Arguments for the entry point, python of its environment, a shell and coreutils, which Debian and Ubuntu cannot lack."""
    for _, _, spec in pods(rendered("gpu-daemonset")):
        for container in containers(spec):
            assert container.get("command", ["headrace"])[0] in {"headrace", "python", "sh"}
            for hook in container.get("lifecycle", {}).values():
                assert hook["exec"]["command"][0] == "sleep"
