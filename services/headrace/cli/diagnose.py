"""`headrace diagnose`: is it the input that holds a training up? Measured with the user's own step on a running fleet."""

from __future__ import annotations

import importlib
import json
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.durations import DURATION, flag, told
from headrace.core.errors import ConfigInvalid

if TYPE_CHECKING:
    import headrace
    from headrace.core.bottleneck import Diagnosis

# Its job is of no use once it has ended, and one a day would fill the list of jobs.
_KEEP_S = 600
STYLES = {"input-bound": "bold red", "balanced": "yellow", "compute-bound": "bold green"}


VARIABLES = (
    "It is a trainer: it takes TLS from HEADRACE_TLS_CA, HEADRACE_TLS_CERT and HEADRACE_TLS_KEY, and the token of its job from "
    "HEADRACE_TOKEN_FILE or HEADRACE_TOKEN, as `headrace.connect` does."
)


@click.command(epilog=VARIABLES)
@click.argument("dataset")
@click.option(
    "--coordinator",
    default="127.0.0.1:7300",
    show_default=True,
    envvar="HEADRACE_COORDINATOR",
    show_envvar=True,
    help="HOST:PORT, ...",
)
@click.option("--batch-size", required=True, type=click.IntRange(1), help="Samples of a batch, as in the training.")
@click.option(
    "--step", "named", help="MODULE:FUNCTION that takes a Batch and trains on it; found as `python -m` finds it here."
)
@click.option("--step-time", type=DURATION, help="Instead of --step: a step that takes so long and does nothing, as 120ms.")
@click.option("--steps", default=50, show_default=True, type=click.IntRange(1), help="Steps measured in each part.")
@click.option("--warmup", default=5, show_default=True, type=click.IntRange(0), help="Steps before each that are not measured.")
@click.option("--pipeline", type=click.Path(path_type=Path, dir_okay=False), help="JSON of a PipelineSpec (its to_dict()).")
@click.option("--transport", default="auto", show_default=True, help="How batches must come: auto, cuda_ipc, shm or grpc.")
@click.option(
    "--beside/--no-beside",
    default=None,
    help="Also measure what busy workers cost the step on the cached batch; by itself where one works on this machine's GPU.",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the two steps to a .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def diagnose(
    dataset: str, *, coordinator: str, batch_size: int, named: str | None, step_time: float | None, steps: int, warmup: int,
    pipeline: Path | None, transport: str, beside: bool | None, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a training step on one cached batch of DATASET, then on a live stream, and say what input costs, and what to do.

    It opens a job of its own beside those that run, as one rank: it takes its part of the fleet's time, so that a fleet which
    is busy with others looks slower. The step trains: give it a model that you throw away. In a script of several ranks, call
    headrace.diagnose(step, stream) instead.

    \b
      headrace diagnose /data/imagenet/train --batch-size 256 --step my_training:step
      headrace diagnose /data/imagenet/train --batch-size 256 --step-time 120ms
    """
    import headrace
    from headrace.cli import plots

    if plot is not None:
        plots.check(plot)
    step = _step(named, step_time)
    name = f"diagnose-{uuid.uuid4().hex[:8]}"
    with headrace.connect(coordinator) as client:
        job = client.job(name, dataset=dataset, batch_size=batch_size, pipeline=_pipeline(pipeline), keep_s=_KEEP_S)
        with job.stream(transport=transport) as stream:  # type: ignore[arg-type]  # checked there, with a sentence
            found = headrace.diagnose(step, stream, steps=steps, warmup=warmup, beside=beside)
    if plot is not None:
        plots.draw_diagnosis(found, plot)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    _print(found)
    if plot is not None:
        click.echo(f"drawn: {plot}")


def _step(named: str | None, step_time_s: float | None) -> Callable[[Any], object]:
    if (named is None) == (step_time_s is None):
        raise ConfigInvalid("give --step MODULE:FUNCTION, or --step-time for a step that only takes time", field="step")
    if named is None:
        return lambda _: time.sleep(step_time_s or 0.0)
    module, _, function = named.partition(":")
    if not module or not function:
        raise ConfigInvalid(f"--step must be MODULE:FUNCTION, not {named!r}", field="step")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigInvalid(f"--step {named} cannot be had from {Path.cwd()}: {error}", field="step") from error
    if not callable(found):
        raise ConfigInvalid(f"--step {named} is no function: it must take a Batch", field="step")
    return found  # type: ignore[no-any-return]


def _pipeline(path: Path | None) -> headrace.PipelineSpec | None:
    if path is None:
        return None
    import headrace

    try:
        return headrace.PipelineSpec.from_dict(json.loads(path.read_text()))
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise ConfigInvalid(f"{path} is no JSON of a PipelineSpec: {error}", path=str(path)) from error


def _print(found: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table

    from headrace.core.bottleneck import MEANINGS

    console, measured = Console(highlight=False), found.measured
    console.print(f"[{STYLES[found.verdict]}]{found.verdict}[/]: {found.sentence}.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"mean of {measured.steps} steps")
    for head in ("a step", "samples/s", "of the live step"):
        table.add_column(head, justify="right")
    table.add_column("")
    for label, seconds in (("on one cached batch", measured.cached_s), ("on the stream", measured.live_s)):
        share = f"{seconds / measured.live_s:.0%}"
        table.add_row(label, told(seconds), f"{measured.batch_size / seconds:.0f}", share if seconds != measured.live_s else "")
    for name, seconds in found.largest():
        table.add_row(f"  {name}", told(seconds), "", f"{seconds / measured.live_s:.0%}", MEANINGS[name])
    console.print(table)
    if measured.contention is not None:
        console.print(f"Beside the step: {measured.contention.sentence}; {measured.contention.advice}.")
    console.print("What to do:")
    for number, action in enumerate(found.actions, 1):
        console.print(f"  {number}. {action}")
    if measured.stages is not None:
        console.print("What if? Change a number:", style="dim")
        console.print(f"  {_plan_command(found)}", soft_wrap=True)


def _plan_command(found: Diagnosis) -> str:
    """With the times that were measured; a worker's are with all its threads, hence --threads 1."""
    measured = found.measured
    assert measured.stages is not None
    times = [
        f"--{name.removesuffix('_s')} {flag(seconds)}" for name, seconds in asdict(measured.stages).items() if seconds >= 5e-5
    ]
    return f"headrace plan {' '.join(times)} --workers {measured.workers}"
