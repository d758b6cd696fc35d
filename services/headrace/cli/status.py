"""`headrace status`: who waits for input, why, and what to do; live in a terminal, once elsewhere."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.admin import ADMIN, VARIABLES, get, get_job
from headrace.cli.durations import Seconds
from headrace.core.errors import CoordinatorUnavailable, HeadraceError, StoreUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command(epilog=VARIABLES)
@click.argument("job", required=False)
@ADMIN
@click.option("--once", is_flag=True, help="Print it once; so it is anyway where standard output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print once what the admin API says, as JSON.")
@click.option(
    "--every",
    default=2.0,
    show_default=True,
    type=Seconds(0.2, 3600),
    help="Seconds between two looks, while it is live.",
)
def status(job: str | None, *, admin: str, once: bool, as_json: bool, every: float) -> None:
    """Show all jobs and workers, or one JOB in full: its ranks, worst first, with what they wait for, and what to do.

    The verdict is that of the worst rank: in training with all_reduce all others wait for it in the step. Ctrl-C ends it. The
    same as a page: open http://HOST:PORT/ of the coordinator's admin address in a browser.
    """
    if as_json:
        click.echo(json.dumps(ask(admin, job), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if once or not console.is_terminal:
        console.print(drawn(ask(admin, job)))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _live(console, lambda: ask(admin, job), every)


def ask(admin: str, job: str | None) -> dict[str, Any]:
    """What there is to show, as plain data. Raises what `cli.admin.get` raises."""
    found: dict[str, Any] = {"replica": get(admin, "replica")}
    if job is not None:
        return {**found, "job": get_job(admin, job)}
    return {**found, **{name: get(admin, name) for name in ("jobs", "workers", "scaling")}}


def drawn(found: dict[str, Any]) -> RenderableType:
    """The same as rich draws it."""
    from headrace.cli.status_view import one_job, overview

    if "job" in found:
        return one_job(found["job"], found["replica"])
    return overview(found["jobs"], found["workers"], found["scaling"], found["replica"])


def _live(console: Any, look: Callable[[], dict[str, Any]], every_s: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown = drawn(look())  # what is wrong at the first look is told as an error: a wrong address, a job that isn't there
    answered_s = time.monotonic()
    with Live(shown, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        live.refresh()
        while True:
            time.sleep(every_s)
            try:
                shown, answered_s, error = drawn(look()), time.monotonic(), ""
            except (CoordinatorUnavailable, StoreUnavailable) as caught:
                error = _told(caught, time.monotonic() - answered_s)
            live.update(Group(Text(error, "bold red"), shown) if error else shown, refresh=True)


def _told(error: HeadraceError, since_s: float) -> str:
    return f"! no answer for {since_s:.0f} s; what is shown is of then: {error.message}"
