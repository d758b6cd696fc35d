"""`python -m headrace.testing.simulation --seeds 10000`: run seeds, and show how to play one again that fails."""

from __future__ import annotations

import random
import sys
import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.testing.simulation.campaign import Totals, campaign, tell
from headrace.testing.simulation.run import SHOWN, Result, run


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many fresh seeds to run.")
@click.option("--from", "first", type=int, default=None, help="First seed; a random one unless given.")
@click.option("--seed", type=int, default=None, help="Play this one again, and show all its last events.")
@click.option("--jobs", default=2, show_default=True, help="Processes at once.")
@click.option("--events", default=None, type=int, help="How many of the last events to show.")
@click.option("--keep-going", is_flag=True, help="Run all seeds even where some fail.")
@click.option("--tell", "share", nargs=3, type=int, default=None, hidden=True)
def main(  # noqa: PLR0917 - click passes them by name
    seeds: int, first: int | None, seed: int | None, jobs: int, events: int | None, keep_going: bool,
    share: tuple[int, int, int] | None,
) -> None:  # fmt: skip
    """Simulate whole fleets under faults, one a seed, and check what Headrace promises after every step."""
    console = Console(highlight=False)
    if share is not None:
        tell(*share)
        return
    if seed is not None:
        totals = Totals()
        played = run(seed, events or 10 * SHOWN)
        totals.add(played)
        for line in [] if totals.failed else played.last:
            console.print(line, markup=False)
    else:
        begin = random.SystemRandom().randrange(10**9) if first is None else first
        totals = _many(console, begin, seeds, jobs, keep_going)
    for result in totals.failed[:5]:
        _show(console, result, events or SHOWN)
    if totals.failed:
        sys.exit(1)


def _many(console: Console, first: int, seeds: int, jobs: int, keep_going: bool) -> Totals:
    begun = time.monotonic()
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=seeds, failed="")

        told = [0]

        def seen(totals: Totals) -> None:
            if len(totals.failed) > told[0]:
                told[0] = len(totals.failed)
                bar.console.print(f"seed {totals.failed[-1].seed}: {totals.failed[-1].text[:300]}", markup=False)
            bar.update(task, completed=totals.runs, failed=f"{len(totals.failed)} failed" if totals.failed else "")

        totals = campaign(first, seeds, jobs, keep_going, seen)
    _summary(console, totals, first, time.monotonic() - begun)
    return totals


def _summary(console: Console, totals: Totals, first: int, took_s: float) -> None:
    table = Table(title=f"{totals.runs} seeds from {first} in {took_s:.0f} s", show_header=False)
    table.add_row("failed", str(len(totals.failed)))
    table.add_row("simulated", f"{totals.simulated_s / 3600:.1f} hours")
    table.add_row("steps", f"{totals.steps:,}, {totals.most_steps:,} at most in one run")
    table.add_row("checks", f"{sum(totals.checks.values()):,} of {len(totals.checks)} invariants")
    table.add_row("longest recovery", f"{totals.slowest[0]:.0f} s after the last fault (seed {totals.slowest[1]})")
    table.add_row("faults", f"{sum(totals.faults.values()):,}")
    console.print(table)
    kinds = Table("fault", "times")
    for kind, count in totals.faults.most_common():
        kinds.add_row(kind, f"{count:,}")
    checks = Table("invariant", "checks")
    for name, count in sorted(totals.checks.items()):
        checks.add_row(name, f"{count:,}")
    console.print(kinds, checks)


def _show(console: Console, result: Result, events: int) -> None:
    console.print(f"\nseed {result.seed} breaks {result.invariant}", style="bold red")
    for line in result.last[-events:]:
        console.print(line, markup=False)
    console.print(result.text, markup=False, style="red")
    console.print(f"play it again: make simulate SEED={result.seed}", style="bold")


if __name__ == "__main__":
    main()
