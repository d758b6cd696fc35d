"""tools/lowest.py: what the test with the oldest admitted libraries installs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_library_of_the_product_is_taken_in_its_oldest_version(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "tools/lowest.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    oldest = dict(
        line.split("==") for line in lines if not line.startswith(("pytest", "nvidia", "hypothesis")) and "==" in line
    )
    for name in ("numpy", "grpcio", "protobuf", "click", "structlog", "redis", "fastapi", "pillow", "obstore", "rich"):
        assert f'"{name}>={oldest[name]}' in (ROOT / "pyproject.toml").read_text(), name
    assert not [line for line in lines if line.startswith(("torch", "jax", "nvidia-dali"))], "gigabytes"
