"""`headrace index`: makes the manifest that a job names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from headrace.cli.text import printable
from headrace.core import limits
from headrace.core.epoch_plan import EpochPlan, reads_in
from headrace.core.errors import ConfigInvalid
from headrace.core.job import Shuffle

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.datasets.build import IndexOptions
    from headrace.datasets.manifest import Manifest
    from headrace.datasets.report import IndexReport

RULES = ("auto", "cls", "txt", "json", "multi", "folder", "none")
BATCHES_LOOKED_AT = 5
ENOUGH_CLASSES = 0.75  # of those that a batch would have by chance
SHOWN = 5  # bad samples and warnings that are printed; the rest is counted


@click.command()
@click.argument("address")
@click.option("--out", help="Where to write manifest and indexes; jobs name this. [default: beside the data]")
@click.option("--replace", is_flag=True, help="Write the manifest also where the one there is of other data.")
@click.option("--labels", type=click.Choice(RULES), default="auto", show_default=True, help="Where a label comes from.")
@click.option("--classes", type=click.Path(path_type=Path), help="Class names: one a line, a JSON list, or JSON name: number.")
@click.option(
    "--exclude", type=click.Path(path_type=Path), help="Samples to leave out: a key a line, or what `quarantine --write` wrote."
)
@click.option(
    "--bad",
    type=click.Choice(["keep", "skip", "fail"]),
    default="keep",
    show_default=True,
    help="Samples found bad: keep (training substitutes and counts them), skip, or fail.",
)
@click.option("--checksums", is_flag=True, help="Read all bytes once and check each image by CRC-32 whenever it is read.")
@click.option("--batch-size", default=256, show_default=True, help="Batch size for which reads and classes are told.")
@click.option("--parallel", default=16, show_default=True, type=click.IntRange(1, 1024), help="Shards at a time.")
def index(
    address: str, *, out: str | None, labels: str, classes: Path | None, exclude: Path | None, batch_size: int, **options: Any
) -> None:
    """Index the WebDataset tars or the image folder at ADDRESS, and write its manifest.

    ADDRESS is a directory, file://, s3://, gs://, az:// or http(s):// prefix, one tar, or tars by braces:
    s3://bucket/train-{000000..001023}.tar. Labels `auto`: .cls, else .json, else .txt, else folder names.
    """
    from rich.console import Console

    from headrace.datasets.build import IndexOptions
    from headrace.datasets.exclude import parse_exclusions
    from headrace.datasets.labels import parse_classes

    indexing = IndexOptions(
        labels=labels,  # type: ignore[arg-type]
        classes=parse_classes(_read(classes)) if classes else {},
        exclude=parse_exclusions(_read(exclude)) if exclude else frozenset(),
        out=_given(out, "--out"),
        **options,
    )
    console = Console()
    report, where, preview = asyncio.run(_run(console, address, indexing, batch_size))
    _print(console, report, where, batch_size, preview)


async def _run(console: Console, address: str, options: IndexOptions, batch_size: int) -> tuple[IndexReport, str, _Preview]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from headrace.datasets.build import build_report
    from headrace.datasets.storage import join_address, local_path

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("shards"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("indexing", total=None)
        report = await build_report(address, options, lambda done, total: progress.update(task, completed=done, total=total))
    preview = await _preview(join_address(report.address, report.manifest.file_name), report.manifest, batch_size)
    path = local_path(report.address)
    return report, str(path.absolute()) if path else report.address, preview


@dataclass(frozen=True, slots=True)
class _Preview:
    """What a batch would be with the default shuffle. mixed: it has about as many classes as by chance; None if unknown."""

    text: str
    mixed: bool | None = None


async def _preview(address: str, manifest: Manifest, batch_size: int) -> _Preview:
    """How many reads and classes a batch would have, by looking at a few batches."""
    if manifest.samples < batch_size:
        return _Preview(f"fewer samples than one batch of {batch_size}")
    from headrace.worker.sources.sharded import open_source

    plan = EpochPlan(manifest.samples, batch_size, 0, 0, Shuffle(), "drop")
    batches = [
        plan.batch_samples(k).sample_ids
        for k in sorted({i * plan.batches // BATCHES_LOOKED_AT for i in range(BATCHES_LOOKED_AT)})
    ]
    reads = round(np.mean([reads_in(ids) if manifest.kind == "webdataset" else len(ids) for ids in batches]))
    if manifest.label_kind != "int" or manifest.num_classes < 2:
        return _Preview(f"{reads} reads")
    source = await open_source(address, manifest.hash)
    try:
        labels = [await source.read_labels(ids.tolist()) for ids in batches]
    finally:
        await source.close()
    classes = float(np.mean([len(np.unique(row)) for row in labels if row is not None]))
    by_chance = manifest.num_classes * (1 - (1 - 1 / manifest.num_classes) ** batch_size)
    text = f"{reads} reads, {round(classes)} of {manifest.num_classes} classes"
    return _Preview(text, classes >= ENOUGH_CLASSES * by_chance)


def _given(value: str | None, flag: str) -> str:
    """An address that may be left out, but not be empty: that is a shell variable that is not set."""
    if value is not None and not value.strip():
        raise ConfigInvalid(f"{flag} is empty, as of a shell variable that is not set: name a directory, or leave {flag} out")
    return value or ""


def _read(path: Path) -> str:
    try:
        limits.at_most(path.stat().st_size, limits.LIST_BYTES, f"bytes in {path}", ConfigInvalid)
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}", path=str(path)) from error


def _labels(manifest: Manifest) -> str:
    if manifest.label_kind == "json":
        return "json"
    if manifest.label_kind == "int" and not manifest.num_classes:
        return "none"
    return f"{manifest.label_kind}, {manifest.num_classes} classes"


def _print(console: Console, report: IndexReport, where: str, batch_size: int, preview: _Preview) -> None:
    from rich.table import Table

    manifest, tally = report.manifest, report.tally
    table = Table(show_header=False, box=None)
    bad = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.bad.items()))
    rows = {
        "kind": manifest.kind,
        "shards": f"{len(manifest.shards)}",
        "samples": f"{manifest.samples}",
        "labels": _labels(manifest),
        "bytes": f"{sum(shard.bytes for shard in manifest.shards):,}",
        "bad": f"{bad or 'none found without decoding'}{' (left out)' if bad and not manifest.bad else ''}",
        "excluded": f"{tally.excluded}" if tally.excluded else "",
        "a batch": f"of {batch_size}: {preview.text}",
        "manifest": manifest.file_name,
        "dataset": f"{where} (a job names this)",
    }
    for key, value in rows.items():
        if value:
            table.add_row(key, value)
    console.print(table)
    for shard, key, reason, detail in tally.details[:SHOWN]:
        console.print(printable(f"bad: {key} in {shard}: {reason} ({detail})"), markup=False, highlight=False)
    for note in tally.notes:
        console.print(printable(f"note: {note}"), markup=False, highlight=False)
    for warning in tally.warnings[:SHOWN]:
        console.print(printable(f"warning: {warning}"), markup=False, highlight=False)
    hidden = max(0, sum(tally.bad.values()) - SHOWN), max(0, len(tally.warnings) - SHOWN)
    if any(hidden):
        console.print(f"and {hidden[0]} more bad samples, {hidden[1]} more warnings")
    if report.class_sorted and not preview.mixed:
        console.print(
            "warning: the data are sorted by class: neighbours share their label. Raise shuffle.window or lower shuffle.run"
            " until a batch has enough classes, or write the shards again in random order.",
            markup=False,
        )
