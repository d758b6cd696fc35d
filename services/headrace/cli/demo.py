"""`headrace demo`: the main job on this machine, end to end, with a worker killed in the middle, and an audit."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.durations import Seconds
from headrace.core.epoch_plan import EpochPlan
from headrace.core.errors import ConfigInvalid
from headrace.core.job import JobSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from headrace.testing.cluster import Cluster
    from headrace.testing.job_run import RunResult, StepEvent

EPOCHS = 2
TRANSPORTS = ["auto", "grpc"]
# What ended each cause's time, in words for who has not read core.starvation.
UNTIL = {
    "lane_wait": "a worker was assigned to the batch",
    "slot_wait": "the rank had a free slot for it",
    "worker_busy": "the worker was done with others",
    "read": "its bytes were read",
    "decode": "its images were decoded",
    "augment": "they were cropped, resized, flipped",
    "transfer": "the rank knew that it is complete",
    "copy": "the rank had it in its hands",
}
AUDITED = {
    "samples_expected": "in the manifest, times epochs",
    "samples_delivered": "came to a rank",
    "missing": "never came",
    "duplicated": "came twice in an epoch",
    "unread": "came without a readable barcode",
    "dropped": "left out by the plan",
    "padded": "masked places of last batches",
    "substituted": "bad, another one in their place",
}


@click.command()
@click.option(
    "--samples",
    default=4000,
    show_default=True,
    type=click.IntRange(8, 1_000_000),
    help="Photos to cut the demo data set into.",
)
@click.option("--batch-size", default=128, show_default=True, type=click.IntRange(1, 4096), help="Samples of a batch.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Workers to begin with.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Where data set, logs and contact sheet go.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Also write the facts as JSON to this file.")
@click.option("--prometheus", is_flag=True, help="Instead keep a fleet running, with a Prometheus that scrapes it.")
@click.option("--seconds", default=0.0, type=Seconds(0), help="With --prometheus: end after so long, not by Ctrl-C.")
def demo(
    *, samples: int, batch_size: int, workers: int, out: Path, report: Path | None, prometheus: bool, seconds: float
) -> None:
    """Run the main job on this machine: no GPU, no set-up, under a minute.

    It cuts an ImageNet-like data set from real photos, starts a store, a coordinator and workers as processes of their own, and
    feeds two ranks for two epochs: rank 0 over shared memory, rank 1 over gRPC. The ranks don't train: they read the barcodes
    drawn into the pixels. In the middle of the second epoch one worker is killed (SIGKILL) and another started. At the end
    every sample is accounted for. The exit status is 0 only if each sample of each epoch was handed over exactly once.

    With --prometheus nothing is killed and nothing ends by itself: fleet and ranks go on, for you to look at the status page,
    the metrics and the alerts. Their addresses are printed.
    """
    from rich.console import Console

    console = Console()
    fleet = f"{workers} workers, {len(TRANSPORTS)} ranks, {'epoch after epoch' if prometheus else f'{EPOCHS} epochs'}"
    console.print(f"[bold]Headrace demo[/]: {samples} photos, batches of {batch_size}, {fleet}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"{out} cannot be made: {error.strerror}; choose another by --out", path=str(out)) from error
    if prometheus:
        from headrace.cli import demo_prometheus

        dataset = _cut_photos(console, samples, out.resolve())
        demo_prometheus.run(
            console, dataset, out.resolve(), batch_size=batch_size, workers=workers, seconds=seconds, report=report
        )
        return
    facts = run_demo(console, samples, batch_size, workers, out.resolve())
    if report is not None:
        report.write_text(json.dumps(facts, indent=2) + "\n")
        console.print(f"Report: {report}")
    if not facts["audit_clean"]:
        console.print("[bold red]The audit failed[/]: a sample is missing, doubled or unreadable.")
        sys.exit(1)


def run_demo(console: Console, samples: int, batch_size: int, workers: int, out: Path) -> dict[str, Any]:
    """Run the demo and print what it shows. Returns the report's facts."""
    from headrace.testing.cluster import Cluster

    dataset = _cut_photos(console, samples, out)
    job = JobSpec(name="demo", dataset=str(dataset), batch_size=batch_size, seed=1, tail="pad")
    plan = EpochPlan(samples, batch_size, job.seed, 0, job.shuffle, job.tail)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as run_dir,
        Cluster(Path(run_dir), workers=workers) as cluster,
        _progress(console) as progress,
    ):
        result, killed = _run(progress, cluster, job, out)
        lanes_moved = _lanes_moved(cluster, job.name)
    dropped = 0 if job.tail == "pad" else samples - plan.batches * batch_size
    facts = _facts(result, lanes_moved, dropped, batch_size)
    _print_result(console, facts, killed, out)
    return facts


def _cut_photos(console: Console, samples: int, out: Path) -> Path:
    from headrace.testing.demo_dataset import make_demo_dataset

    with _progress(console) as progress:
        bar = progress.add_task("cutting photos", total=samples)
        dataset = make_demo_dataset(
            out / "dataset", samples=samples, progress=lambda done: progress.update(bar, completed=done)
        )
        progress.update(bar, completed=samples)
    return dataset


def _run(progress: Progress, cluster: Cluster, job: JobSpec, out: Path) -> tuple[RunResult, str]:
    from headrace.testing.job_run import run_job

    bars = [
        progress.add_task(f"rank {rank} ({'forced gRPC' if choice == 'grpc' else choice})", total=None)
        for rank, choice in enumerate(TRANSPORTS)
    ]
    killed: list[str] = []

    def on_step(event: StepEvent) -> None:
        progress.update(bars[event.rank], total=EPOCHS * event.steps, completed=event.epoch * event.steps + event.step)
        if not killed and event.epoch == EPOCHS - 1 and event.step >= event.steps // 2:
            killed.append(cluster.kill_worker(0))
            new = cluster.add_worker(wait=False)
            progress.console.print(
                f"  epoch {event.epoch}, step {event.step}: killed worker {killed[0]} (SIGKILL), started {new}"
            )

    result = run_job(
        job,
        cluster.addresses,
        TRANSPORTS,
        out / "ranks",
        samples=_samples(cluster, job),
        dropped=0,
        epochs=EPOCHS,
        deadline_s=300,
        on_step=on_step,
        sheet=[str(out / "contact_sheet.png"), ""],
    )
    return result, killed[0] if killed else ""


def _lanes_moved(cluster: Cluster, job: str) -> int:
    """As the coordinator's admin API has it."""
    with urllib.request.urlopen(f"http://{cluster.coordinators[0].admin_address}/api/jobs/{job}", timeout=10) as answer:
        return int(json.load(answer)["lanes_moved"])


def _samples(cluster: Cluster, job: JobSpec) -> int:
    """What the manifest says, read from its file: the audit's yardstick."""
    return int(json.loads(Path(job.dataset).read_text())["samples"])


def _facts(result: RunResult, lanes_moved: int, dropped: int, batch_size: int) -> dict[str, Any]:
    audits = result.audits
    return {
        "audit_clean": result.clean,
        "samples_expected": sum(audit.expected for audit in audits),
        "samples_delivered": sum(audit.delivered for audit in audits),
        "missing": sum(audit.missing for audit in audits),
        "duplicated": sum(audit.duplicated for audit in audits),
        "unread": sum(audit.unread for audit in audits),
        "dropped": dropped * len(audits),
        "padded": sum(audit.padded for audit in audits),
        "substituted": sum(audit.substituted for audit in audits),
        "lanes_moved": lanes_moved,
        "batches_remade": sum(stats["remade"] for stats in result.stats),
        "images_per_second": round(
            sum(stats["images"] for stats in result.stats) / max(1e-9, *(stats["elapsed_s"] for stats in result.stats)), 1
        ),
        "ranks": [
            {
                "rank": rank,
                "transport": stats["transport"],
                "transport_reason": "; ".join(sorted({reason for _, reason in stats["transports"].values()})),
                "steps": stats["batches"],
                "images_per_second": round(stats["images_per_s"], 1),
                "wait_s": round(stats["wait_s"], 3),
                "wait_s_by_cause": {cause: round(seconds, 3) for cause, seconds in stats["wait_s_by_cause"].items()},
            }
            for rank, stats in enumerate(result.stats)
        ],
    }


def _print_result(console: Console, facts: dict[str, Any], killed: str, out: Path) -> None:
    ranks = facts["ranks"]
    table = _table("Ranks", ["rank", "transport", "steps", "images/s", "why this transport"], text_columns={1, 4})
    for rank in ranks:
        cells = (rank["rank"], rank["transport"], rank["steps"], f"{rank['images_per_second']:.0f}", rank["transport_reason"])
        table.add_row(*map(str, cells))
    console.print(table)
    headings = ["cause", *(f"rank {rank['rank']}" for rank in ranks), "the time that passed until"]
    waits = _table("Seconds that ranks waited, by cause", headings, text_columns={0, len(headings) - 1})
    for cause in ranks[0]["wait_s_by_cause"]:
        seconds = (f"{rank['wait_s_by_cause'][cause]:.2f}" for rank in ranks)
        waits.add_row(cause.replace("_", " "), *seconds, UNTIL.get(cause, ""))
    waits.add_section()
    waits.add_row("all", *(f"{rank['wait_s']:.2f}" for rank in ranks), "these ranks don't train: they mostly wait")
    console.print(waits)
    audit = _table("Audit: ids read from the pixels", ["samples", "", "which"], text_columns={0, 2})
    for name, meaning in AUDITED.items():
        audit.add_row(name.removeprefix("samples_"), str(facts[name]), meaning)
    console.print(audit)
    verdict = "clean[/]: every sample of each epoch exactly once" if facts["audit_clean"] else "not clean[/]"
    colour = "[bold green]" if facts["audit_clean"] else "[bold red]"
    console.print(f"{colour}Audit {verdict}, with {killed or 'no worker'} killed.")
    console.print(
        f"Lanes moved to another worker: {facts['lanes_moved']}. Batches begun anew there: {facts['batches_remade']}."
    )
    console.print(f"{facts['images_per_second']:.0f} images/s over all ranks, start and kill included.")
    console.print(f"One augmented batch as a picture: {out / 'contact_sheet.png'}", soft_wrap=True)


def _table(title: str, headings: list[str], text_columns: set[int]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number in text_columns else "right")
    return table


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("  {task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
