"""The command line `headrace`: finds a command by name and loads only that one.

Each command lives in a file of its own and may need an extra of the package; so nothing is imported until it is run, `--help`
is quick, and a missing extra is told in a sentence.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import click

from headrace.core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class _Command:
    """Where a command is. attribute: the click command in `headrace.cli.<module>`. extra: what to install for it."""

    help: str
    module: str
    attribute: str
    extra: str


COMMANDS = {
    "demo": _Command("Run all on this machine, kill a worker, show that nothing is lost.", "demo", "demo", "demo"),
    "status": _Command("Show who waits for input, why, and what to do.", "status", "status", "cli"),
    "doctor": _Command("Say what this machine can do, what is missing, and what to do.", "doctor", "doctor", "cli"),
    "diagnose": _Command("Measure whether input holds a training up, and say what to do.", "diagnose", "diagnose", "cli"),
    "plan": _Command("Say what a step would take with other workers or a GPU engine.", "plan", "plan", "cli"),
    "index": _Command("Index a data set: make the manifest that a job names.", "index", "index", "cli,datasets"),
    "quarantine": _Command(
        "Show a job's bad samples, or write them for `index --exclude`.", "quarantine", "quarantine", "cli,datasets"
    ),
    "coordinator": _Command("Run a coordinator replica.", "coordinator", "coordinator", "coordinator"),
    "worker": _Command("Run a worker.", "worker", "worker", "worker"),
    "store": _Command("Run the store that comes with Headrace, for one machine.", "store", "store", "demo"),
}


class _Told(click.ClickException):
    """A HeadraceError as one line on standard error, exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        one_line = "; ".join(line.strip() for line in self.message.splitlines() if line.strip())
        click.echo(f"headrace: {one_line}", err=True, file=file)


class LazyGroup(click.Group):
    """A group whose commands are in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order that a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is none of that name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"headrace.cli.{entry.module}")
        command: click.Command = getattr(module, entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong name is answered with the nearest right one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else "see: headrace --help"
            raise click.UsageError(f"no command '{args[0]}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors and missing extras become one line."""
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            raise _Told(str(error)) from None
        except ModuleNotFoundError as error:
            _tell_missing(error, ctx.invoked_subcommand or "")


def _tell_missing(error: ModuleNotFoundError, command: str) -> NoReturn:
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "headrace") or command not in COMMANDS:
        raise error
    extra = COMMANDS[command].extra
    raise _Told(
        f"`headrace {command}` needs the package {missing}, which is not installed; run: pip install 'headrace[{extra}]'"
    ) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace", prog_name="headrace")
def cli() -> None:
    """Headrace: a preprocessing fleet for training on images."""


def main() -> None:
    """Entry point of the program."""
    cli(prog_name="headrace")
