"""`headrace plan`: what a step would take with other workers, or with a GPU engine, before anybody buys or moves anything."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.durations import DURATION, told
from headrace.core.defaults import BATCHES_IN_FLIGHT
from headrace.core.errors import ConfigInvalid
from headrace.core.step_plan import ENGINE, READ, TRAINER, TRANSFER, WINDOW, Counts, Gpu, Stages, StepPlan, step_plan, timeline

if TYPE_CHECKING:
    from rich.console import Console

_DRAWN = 10
MEANING = {
    READ: "workers reading the shards",
    ENGINE: "workers decoding and augmenting",
    TRANSFER: "batches on their way to a trainer",
    TRAINER: "the training step itself",
    WINDOW: "the number of batches made ahead",
}
NEXT = {
    READ: "more workers, a nearer store, or fewer and larger reads (shuffle.run)",
    ENGINE: "more workers or threads, or a GPU engine (--gpu-decode)",
    TRANSFER: "workers on the trainers' nodes (shared memory), or smaller batches",
    TRAINER: "leave the loader alone: the step is the limit",
    WINDOW: "a larger window (the coordinator's max_rank_bytes)",
}
_TIMES = {
    "read": "reading it from the store",
    "decode": "decoding it, on one thread",
    "augment": "augmenting it, on one thread",
    "transfer": "on its way to the trainer; 0 in shared memory",
    "copy": "copying it to the device, unless that overlaps the step",
}


def _time_options(command: Any) -> Any:
    for name, text in reversed(_TIMES.items()):
        command = click.option(f"--{name}", type=DURATION, default=0.0, help=f"Time of one batch: {text}.")(command)
    return click.option("--step", type=DURATION, required=True, help="Time of one training step on a batch that is there.")(
        command
    )


@click.command()
@_time_options
@click.option("--ranks", default=1, show_default=True, type=click.IntRange(1), help="Trainers.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Workers.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads of one worker's engine.")
@click.option(
    "--reads",
    default=BATCHES_IN_FLIGHT,
    show_default=True,
    type=click.IntRange(1),
    help="Batches that a worker reads at a time (its batches_in_flight).",
)
@click.option("--window", default=0, type=click.IntRange(0), help="Batches made ahead for a rank; 0: as the coordinator does.")
@click.option("--lanes", default=0, type=click.IntRange(0), help="Most workers that can serve the job; 0: no bound.")
@click.option("--gpu-decode", type=DURATION, help="Also with a GPU engine: its time to decode one batch.")
@click.option("--gpu-augment", type=DURATION, default=0.0, help="Its time to augment one batch.")
@click.option("--gpu-shared", is_flag=True, help="It runs on the trainer's own GPU, and so takes its time from the step.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the time lines to a .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def plan(
    *, plot: Path | None, as_json: bool, gpu_decode: float | None, gpu_augment: float, gpu_shared: bool, **given: Any
) -> None:
    """Say how long a training step would take, and what would be its limit.

    The times are of one batch: `headrace diagnose` measures them and prints this command with them filled in; the workers'
    metric headrace_stage_seconds has them, too. TIME is 120ms, 0.12s or 90us.

    \b
      headrace plan --step 120ms --decode 900ms --augment 300ms --workers 2 --threads 4
      headrace plan --step 120ms --decode 900ms --augment 300ms --gpu-decode 12ms --gpu-augment 3ms
    """
    stages = Stages(**{f"{name}_s": given[name] for name in (*_TIMES, "step")})
    counts = Counts(**{name: given[name] for name in ("ranks", "workers", "threads", "reads", "window", "lanes")})
    if gpu_decode is None and (gpu_augment or gpu_shared):
        raise ConfigInvalid(
            "--gpu-augment and --gpu-shared are of a GPU engine: give its --gpu-decode, too", field="gpu_decode"
        )
    gpu = Gpu(gpu_decode, gpu_augment, gpu_shared) if gpu_decode is not None else None
    engines: list[tuple[str, Gpu | None]] = [
        ("CPU engine", None),
        *([("GPU engine, shared" if gpu.shared else "GPU engine", gpu)] if gpu else []),
    ]
    plans = [(name, step_plan(stages, counts, engine)) for name, engine in engines]
    if plot is not None:
        from headrace.cli import plots

        plots.check(plot)
        lines = [(f"One after the other: {told(plans[0][1].serial_s)} a step", timeline(stages, counts, _DRAWN, overlap=False))]
        for (name, engine), (_, found) in zip(engines, plans, strict=True):
            title = f"Overlapped, {name}: {told(found.overlapped_s)} a step, {found.wait_share:.0%} of it waiting for input"
            lines.append((title, timeline(stages, counts, _DRAWN, engine)))
        plots.draw_timelines(lines, plot)
    if as_json:
        told_of = {name.partition(" ")[0].lower(): {**asdict(found), "wait_share": found.wait_share} for name, found in plans}
        click.echo(json.dumps(told_of, indent=2))
        return
    from rich.console import Console

    _print(Console(highlight=False), plans, counts)
    if plot is not None:
        click.echo(f"drawn: {plot}")


def _print(console: Console, plans: list[tuple[str, StepPlan]], counts: Counts) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column(f"{counts.workers} workers x {counts.threads} threads, {counts.ranks} ranks")
    for name, _ in plans:
        table.add_column(name, justify="right")
    first = plans[0][1]
    rows = [
        ("step, one after the other", [told(found.serial_s) for _, found in plans]),
        ("step, overlapped", [f"[bold]{told(found.overlapped_s)}[/]" for _, found in plans]),
        ("  of that waiting for input", [f"{found.wait_share:.0%}" for _, found in plans]),
        ("  times as fast as now", [f"{first.overlapped_s / found.overlapped_s:.2f}" for _, found in plans]),
    ]
    for limit, meaning in MEANING.items():
        rows.append((f"limit: {meaning}", [_limit(found, limit) for _, found in plans]))
    rows.append(("workers so that nobody waits", [_wanted(found) for _, found in plans]))
    for label, cells in rows:
        table.add_row(label, *cells)
    console.print(table)
    for name, found in plans:
        console.print(f"{name}: the limit is [bold]{MEANING[found.bottleneck]}[/]. What would help: {NEXT[found.bottleneck]}.")


def _limit(found: StepPlan, limit: str) -> str:
    text = told(found.limits[limit])
    if limit != found.bottleneck:
        return f"{text}  "
    return f"[{'green' if limit == TRAINER else 'bold red'}]{text} <[/]"


def _wanted(found: StepPlan) -> str:
    return str(found.workers_wanted) if found.workers_wanted else "no number would do"
