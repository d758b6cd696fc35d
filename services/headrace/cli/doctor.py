"""`headrace doctor`: what this machine can do for Headrace, what is missing, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.checks.finding import Finding, Role, for_role
from headrace.core import defaults

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.worker.settings import WorkerSettings

_COLORS = {"ok": "green", "note": "yellow", "bad": "bold red"}
_VERDICTS = {True: "A job can run here.", False: "No job can run here: mend what is bad."}


@click.command()
@click.option(
    "--for",
    "role",
    default="all",
    show_default=True,
    type=click.Choice(["all", "worker", "trainer"]),
    help="Who is to run here; what is bad for the other alone becomes a note.",
)
@click.option(
    "--engine",
    envvar="HEADRACE_WORKER_ENGINE",
    show_envvar=True,
    default=defaults.ENGINE,
    show_default=True,
    help="As the worker's.",
)
@click.option("--socket-dir", help="As the worker's, whose variables are read: HEADRACE_WORKER_SOCKET_DIR.")
@click.option(
    "--coordinator", help="HOST:PORT to try, several with commas between; else HEADRACE_WORKER_COORDINATOR if it is set."
)
@click.option(
    "--store",
    envvar="HEADRACE_COORDINATOR_STORE",
    show_envvar=True,
    help="The store's address to try, as a coordinator has it.",
)
@click.option(
    "--store-password-file",
    envvar="HEADRACE_COORDINATOR_STORE_PASSWORD_FILE",
    show_envvar=True,
    default="",
    help="As the coordinator's.",
)
@click.option(
    "--store-tls-ca", envvar="HEADRACE_COORDINATOR_STORE_TLS_CA", show_envvar=True, default="", help="As the coordinator's."
)
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(1), help="Of the job, for its memory.")
@click.option("--image", default="224x224", show_default=True, help="HEIGHTxWIDTH of its images.")
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(1), help="Ranks that a worker here serves.")
@click.option("--slots", default=4, show_default=True, type=click.IntRange(1), help="Ready batches a rank.")
@click.option("--json", "as_json", is_flag=True, help="For a program.")
def doctor(role: Role, *, as_json: bool, **options: str | int | None) -> None:
    """Say what this machine can do for Headrace, what is missing, and what to do about it, in a sentence each.

    Exit code 0 if a job can run here, 1 if not. It needs no coordinator, changes nothing, and reads the variables of a worker,
    so that in its pod it judges what the worker would do.
    """
    findings = for_role(examine(role, options), role)
    can_run = not any(finding.state == "bad" for finding in findings)
    if as_json:
        told = {"can_run": can_run, "for": role, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(told, indent=2))
    else:
        _tell(findings, can_run)
    sys.exit(0 if can_run else 1)


def examine(role: Role, options: dict[str, str | int | None]) -> list[Finding]:
    """All findings, unjudged. options: as the command has them."""
    from headrace.cli.checks import program, sharing

    settings, told = program.settings()
    directory = str(options["socket_dir"]) if options["socket_dir"] is not None else _setting(settings, "socket_dir")
    found = [*program.check(), *told]
    found += _engines(settings, str(options["engine"]))
    found += sharing.memory() + sharing.sockets(directory, _setting(settings, "socket_group"))
    found += _limits(settings, options)
    return found + list(_reach(role, settings, options))


def _setting(settings: WorkerSettings | None, name: str) -> str:
    without = {"socket_dir": defaults.SOCKET_DIR, "socket_group": ""}
    return without[name] if settings is None else str(getattr(settings, name))


def _engines(settings: WorkerSettings | None, engine: str) -> list[Finding]:
    from headrace.cli.checks import engines, gpus
    from headrace.worker.placement import look_around

    machine = look_around(len(os.sched_getaffinity(0)) if settings is None else settings.cores)
    return engines.check(machine, engine) + gpus.check(machine)


def _limits(settings: WorkerSettings | None, options: dict[str, str | int | None]) -> list[Finding]:
    from headrace.cli.checks import limits

    height, _, width = str(options["image"]).partition("x")
    if not (height.isdecimal() and width.isdecimal() and 0 < int(height) < 1 << 16 and 0 < int(width) < 1 << 16):
        raise click.BadParameter(f"{options['image']!r} is not HEIGHTxWIDTH, such as 224x224", param_hint="--image")
    load = limits.Load(
        batch_size=int(options["batch_size"] or 0),
        height=int(height),
        width=int(width),
        ranks=int(options["ranks"] or 0),
        slots=int(options["slots"] or 0),
        **({} if settings is None else {"read_ahead_bytes": settings.read_ahead_bytes}),
    )
    return limits.check(load)


def _reach(role: Role, settings: WorkerSettings | None, options: dict[str, str | int | None]) -> Iterator[Finding]:
    from headrace.cli.checks import reach

    given = options["coordinator"]
    if given is None and settings is not None and "coordinator" in settings.model_fields_set:
        given = settings.coordinator
    if given:
        if role != "trainer" and settings is not None:
            yield reach.as_worker(str(given), settings)
        if role != "worker":
            yield reach.as_trainer(str(given))
    else:
        yield Finding("reach", "coordinator", "ok", "not tried: give --coordinator HOST:PORT")
    if options["store"]:
        yield reach.store(str(options["store"]), str(options["store_password_file"]), str(options["store_tls_ca"]))
    else:
        yield Finding("reach", "store", "ok", "not tried: give --store ADDRESS")


def _tell(findings: Sequence[Finding], can_run: bool) -> None:
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # a trainer's image has no extra of the package, and is where sockets are asked about
        for finding in findings:
            advice = f" -- {finding.advice}" if finding.advice else ""
            click.echo(f"{finding.state:<5} {finding.subject}: {finding.name}: {finding.found}{advice}")
        click.echo(_VERDICTS[can_run])
        return
    console = Console(highlight=False, soft_wrap=False)
    console.print(_table(findings))
    console.print(_VERDICTS[can_run], style=_COLORS["ok" if can_run else "bad"])


def _table(findings: Sequence[Finding]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("", "what", "", "found, and what to do"):
        table.add_column(title, overflow="fold")
    subject = ""
    for finding in findings:
        words = Text(finding.found)
        if finding.advice:
            words.append(f"\n{finding.advice}", _COLORS[finding.state] if finding.state != "ok" else "")
        first = "" if finding.subject == subject else finding.subject
        table.add_row(Text(first, "bold"), Text(finding.name), Text(finding.state, _COLORS[finding.state]), words)
        subject = finding.subject
    return table
