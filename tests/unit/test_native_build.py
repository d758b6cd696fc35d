"""The build hook: a wheel with the native core where it can be built, else one without, or an error where it must be there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = "headrace/worker/engines/libheadrace_native.so.1"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "native", tmp_path / "native")
    engines = tmp_path / "services/headrace/worker/engines"
    engines.mkdir(parents=True)
    (tmp_path / "services/headrace/__init__.py").touch()
    # As an earlier build would have left it.
    (engines / "libheadrace_native.so.1").write_bytes(b"of other sources")
    return tmp_path


def build(tree: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done, sorted(tree.glob("out/*.whl"))


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def can_compile() -> bool:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return False
    source = "#include <stdio.h>\n#include <jpeglib.h>\n"
    return (
        subprocess.run([compiler, "-E", "-"], input=source, text=True, capture_output=True, timeout=60, check=False).returncode
        == 0
    )


def test_a_wheel_with_the_core_serves_every_python_on_this_platform(tree: Path) -> None:
    if not can_compile():
        pytest.skip("no C compiler, or no libjpeg headers")
    done, wheels = build(tree, HEADRACE_NATIVE="require")
    assert done.returncode == 0, done.stderr
    assert "py3-none-" in wheels[0].name
    assert not wheels[0].name.endswith("-any.whl")
    assert LIBRARY in names(wheels[0])
    assert zipfile.ZipFile(wheels[0]).read(LIBRARY)[:4] != b"of o"


@pytest.mark.parametrize("trouble", [{"CC": "no-such-compiler"}, {"CC": "false"}, {"HEADRACE_NATIVE": "off"}], ids=str)
def test_where_it_cannot_be_built_the_wheel_is_pure_and_the_build_says_why(tree: Path, trouble: dict[str, str]) -> None:
    done, wheels = build(tree, **trouble)
    assert done.returncode == 0, done.stderr
    assert wheels[0].name.endswith("-py3-none-any.whl")
    assert LIBRARY not in names(wheels[0])
    assert "no native core, the cpu engine will use libraries" in done.stdout + done.stderr
    assert not (tree / "services" / LIBRARY).exists(), "an old library would be taken for a new one"


def test_where_it_is_required_and_cannot_be_built_the_build_fails(tree: Path) -> None:
    done, wheels = build(tree, CC="false", HEADRACE_NATIVE="require")
    assert done.returncode != 0
    assert "the native core could not be built" in done.stderr
    assert not wheels
