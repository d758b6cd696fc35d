"""`python -m headrace.testing.soak --minutes 30`: see `--help`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import click

from headrace.core.errors import HeadraceError
from headrace.telemetry import logging
from headrace.testing.soak.report import Report
from headrace.testing.soak.run import Settings, Soaked, run_soak


@click.command()
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0.2), help="How long rounds are begun.")
@click.option("--seed", type=int, help="Of the schedule; none: a fresh one, which is printed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("soak-out"),
    show_default=True,
    help="Where logs, journals and the report go: soak.md, soak.json, soak.png.",
)
@click.option("--settle-s", default=20.0, show_default=True, type=click.FloatRange(1), help="Time for counts to come back.")
def main(minutes: float, seed: int | None, out: Path, settle_s: float) -> None:
    """Train many small epochs on a fleet that suffers faults all the while, and see whether anything grows.

    The exit status is 0 only if nothing leaked and no sample was lost.
    """
    logging.configure("soak")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    directory = out.resolve() / f"run-{seed}"
    click.echo(f"seed {seed}; logs in {directory}", err=True)

    def tell(seen: Soaked) -> None:
        click.echo(
            f"round {seen.rounds}: {seen.epochs_audited} epochs of visits audited, {len(seen.wrong)} wrong, "
            f"{seen.levels_compared} levels compared",
            err=True,
        )

    try:
        seen = run_soak(Settings(seed, directory, minutes, settle_s=settle_s), tell)
    except HeadraceError as error:
        click.echo(f"{error}\nschedule again: --seed {seed}; logs in {directory}", err=True)
        sys.exit(1)
    report = Report(seen, minutes)
    report.write(out)
    click.echo(report.summary())
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
