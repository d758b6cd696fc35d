"""`headrace quarantine`: shows a job's bad samples, and writes them as a file for `headrace index --exclude`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from shlex import quote
from typing import Any

import click

from headrace.cli.admin import ADMIN, VARIABLES, get_job
from headrace.cli.text import printable
from headrace.core.errors import ConfigInvalid

KEPT = ("shard", "key", "reason", "count")


@click.command(epilog=VARIABLES)
@click.argument("job")
@ADMIN
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write all of them to a file, for --exclude.")
@click.option("--json", "as_json", is_flag=True, help="Print what the admin API says, as JSON.")
@click.option("--show", default=50, show_default=True, type=click.IntRange(0), help="Samples that the table shows.")
def quarantine(job: str, *, admin: str, write: Path | None, as_json: bool, show: int) -> None:
    """Show the samples that JOB could not use: where each is, why, and in how many epochs it was met.

    They were replaced by good ones of their batch. To train without them, write them to a file and index again:

    \b
      headrace quarantine train --write bad.jsonl
      headrace index /data/train --exclude bad.jsonl

    A running job goes on with the data set that it was opened with; a job on the new one needs a name of its own.
    """
    found = get_job(admin, job, "quarantine")
    if write is not None:
        _write(write, found["samples"])
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    _print(found, show)
    if write is not None:
        # The data set's own address is not known here: a job names its manifest, which may lie elsewhere.
        click.echo(
            f"{len(found['samples'])} samples written; to leave them out: headrace index ADDRESS --exclude {quote(str(write))}"
        )


def _write(path: Path, samples: list[dict[str, Any]]) -> None:
    from headrace.datasets.exclude import format_exclusions

    lines = format_exclusions({name: sample[name] for name in KEPT if sample[name]} for sample in samples)
    try:
        path.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be written: {error.strerror}; choose another file", path=str(path)) from error


def _print(found: dict[str, Any], show: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    samples = found["samples"]
    if not samples and not found["unlisted"]:
        click.echo(f"job {found['job']}: no bad sample was met")
        return
    reasons = Counter(sample["reason"] for sample in samples)
    named = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    click.echo(f"job {found['job']}: {len(samples)} bad samples ({named}), met {found['total']} times")
    table = Table(box=None, pad_edge=False)
    for name, justify in (("shard", "left"), ("key", "left"), ("reason", "left"), ("epochs", "right"), ("last", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for sample in samples[:show]:
        names = (Text(printable(sample["shard"] or "?")), Text(printable(sample["key"])))
        table.add_row(*names, sample["reason"], str(sample["count"]), str(sample["last_epoch"]))
    if show:
        Console().print(table)
    if len(samples) > show:
        click.echo(f"and {len(samples) - show} more: --show {len(samples)} or --json shows all")
    if found["unlisted"]:
        click.echo(f"the list is full: {found['unlisted']} more times a bad sample was met that is not on it")
    if found["note"]:
        click.echo(f"note: {found['note']}")
