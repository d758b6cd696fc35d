"""`python -m headrace.testing.chaos --minutes 10 --seed 7`: chaos for as long as one likes; `make chaos MINUTES=10 SEED=7`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import click

from headrace.core.errors import HeadraceError
from headrace.telemetry import logging
from headrace.testing.chaos.run import Report, Settings, run_chaos


@click.command()
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(0.1), help="How long rounds are begun.")
@click.option("--seed", type=int, help="Of the storm's choices; none: a fresh one, which is printed.")
@click.option("--round-s", default=40.0, show_default=True, type=click.FloatRange(5), help="Length of a round in seconds.")
@click.option("--secure", is_flag=True, help="Everything by mutual TLS and with tokens.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where logs and journals stay; none: a new folder."
)
@click.option("--report", type=click.Path(path_type=Path), help="Also write the counts as JSON to this file.")
def main(*, minutes: float, seed: int | None, round_s: float, secure: bool, out: Path | None, report: Path | None) -> None:
    """Break a fleet on this machine, again and again, and audit each round. The exit status is 0 only if nothing was lost."""
    logging.configure("chaos")
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    directory = out.resolve() if out else Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    click.echo(f"seed {seed}; logs in {directory}", err=True)
    end_s = time.monotonic() + 60 * minutes
    found = Report(seed)

    def go_on(so_far: Report) -> bool:
        nonlocal found
        found = so_far
        return time.monotonic() < end_s

    try:
        found = run_chaos(Settings(seed, directory, round_s=round_s, secure=secure), go_on)
    except HeadraceError as error:
        click.echo(f"after {found.rounds} rounds: {error}\nplay again: SEED={seed}; logs in {directory}", err=True)
        sys.exit(1)
    text = json.dumps(found.to_dict(), indent=2)
    click.echo(text)
    if report is not None:
        report.write_text(text + "\n")


if __name__ == "__main__":
    main()
