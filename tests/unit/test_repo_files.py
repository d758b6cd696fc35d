"""The repository stands on its own legs: commands that the README names exist, generated code is current, scripts are sound."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SCRIPTS = [ROOT / ".ci/run", ROOT / "tests/gpu/run.sh", *sorted((ROOT / "tools").glob("*.sh"))]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def code_of(page: Path) -> str:
    """What a page shows as code, in blocks and between single quotes."""
    text = page.read_text()
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_on_a_page_exists(page: Path) -> None:
    assert set(re.findall(r"\bmake ([a-z-]+)", code_of(page))) <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_headrace_command_on_a_page_exists(page: Path) -> None:
    from headrace.cli.main import COMMANDS

    named = set(re.findall(r"^(?:\$ )?headrace ([a-z]+)", code_of(page), re.MULTILINE))
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as its readers' programs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / target if target else page), f"{page.name} links to {target}#{anchor}"


def test_make_alone_explains_every_target() -> None:
    result = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    listed = re.findall(r"^make ([a-z-]+) +\S+", result.stdout, re.MULTILINE)
    assert set(listed) == targets()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_parse_and_can_be_run(script: Path) -> None:
    shell = "bash" if script.name == "run" else "sh"
    subprocess.run([shell, "-n", str(script)], timeout=60, check=True)
    if script.name != "common.sh":
        assert script.stat().st_mode & 0o111


def test_every_dependency_says_why_it_is_there() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    for line in lines:
        if re.match(r'\s+"[a-z][\w.-]*(\[[\w,]+\])?[<>=]=?', line):
            assert "#" in line, line.strip()


def test_a_trainer_installs_neither_torch_nor_a_service() -> None:
    names = {re.split(r"[\[<>=]", dependency)[0] for dependency in PYPROJECT["project"]["dependencies"]}
    assert names <= {"numpy", "grpcio", "protobuf", "structlog", "click", "xxhash"}
    for extra in ("demo", "coordinator", "worker", "datasets", "cli"):
        assert not [d for d in PYPROJECT["project"]["optional-dependencies"][extra] if re.match(r"(torch|jax)\b", d)]


def test_generated_code_is_what_the_protocol_files_make(tmp_path: Path) -> None:
    for folder in ("proto", "services/headrace/wire/gen"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    kept = tmp_path / "services/headrace/wire/gen"
    for path in kept.glob("*_pb2*"):
        path.unlink()
    subprocess.run([sys.executable, "-m", "headrace.wire.generate"], cwd=tmp_path, timeout=120, check=True)
    made = {path.name: path.read_text() for path in kept.iterdir()}
    current = {path.name: path.read_text() for path in (ROOT / "services/headrace/wire/gen").glob("*.py*")}
    assert made.keys() == current.keys()
    assert not [name for name in made if made[name] != current[name]], "run: make proto"


def test_the_licence_is_there() -> None:
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
