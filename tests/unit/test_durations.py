"""Times of a command line."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from headrace.cli.durations import DURATION
from headrace.cli.main import cli


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120ms", 0.12), ("0.12s", 0.12), ("0.12", 0.12), ("90us", 9e-5), ("20s", 20.0), ("0", 0.0), (" 5 ms ", 0.005)],
)
def test_times_with_a_unit_or_below_a_second(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "1", "120", "1.5"])
def test_a_bare_number_of_seconds_and_more_was_mostly_meant_otherwise(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"write {text}ms or {text}s"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize("text", ["", "-5ms", "5 minutes", "nan", "1e3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time"):
        DURATION.convert(text, None, None)


def float_options(command: click.Command, path: str = "") -> list[tuple[str, str]]:
    """(command, option) of every option that takes a number with a fraction."""
    if isinstance(command, click.Group):
        context = click.Context(command)  # its commands are loaded when asked for
        subs = {name: command.get_command(context, name) for name in command.list_commands(context)}
        return [found for name, sub in subs.items() if sub for found in float_options(sub, f"{path} {name}".strip())]
    wanted = click.FloatRange | click.types.FloatParamType
    return [(path, option.opts[0]) for option in command.params if isinstance(option.type, wanted)]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("command", "option"), float_options(cli))
def test_no_command_takes_what_is_no_number(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), option, value])
    assert result.exit_code == 2 and option in result.output, result.output


def test_there_are_such_options() -> None:
    assert len(float_options(cli)) >= 2
