"""Page and plot of scaling.py's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PROCESSES = ("worker", "trainer", "fetcher", "coordinator", "store")
QUIET = 1.0  # load average up to which a machine counts as quiet
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
LABELS = {
    "shm small": "shared memory, 8 of 16x16", "grpc small": "gRPC, 8 of 16x16",
    "shm large": "shared memory, 256 of 224x224", "grpc large": "gRPC, 256 of 224x224",
}  # fmt: skip


def write_page(found: dict[str, Any], numbers: Path) -> None:
    """Write the page and the plot beside the numbers, and print the page."""
    page = "\n".join([*_head(found), *_speed(found), *_overhead(found), *_times(found)])
    numbers.with_suffix(".md").write_text(page)
    _plot(found, numbers.with_suffix(".png"))
    print(page)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} | {min(values):{form}} to {max(values):{form}}"


def _head(found: dict[str, Any]) -> list[str]:
    loads = found["load"]
    return [
        "# Scaling",
        "",
        "How does speed grow with workers, what does the whole path cost a batch, and how long does one wait for the first?",
        f"Command: `python loadtest/scaling.py --seconds {found['seconds']:g} --rounds {found['rounds']}`; {found['machine']}.",
        "What each measure is stands at the top of that file. Medians over the rounds, and the range.",
        f"Load average before the rounds: {min(loads):.1f} to {max(loads):.1f}.",
        *(["**Others used the cores meanwhile: no number here is this machine's best.**"] if max(loads) > QUIET else []),
        "",
        "![the numbers below](scaling.png)",
        "",
    ]


def _speed(found: dict[str, Any]) -> list[str]:
    speed = found["speed"]
    one = statistics.median(speed["1"])
    lines = [
        "## Workers", "",
        "Batches of 64, 224x224, one thread a worker, shared memory. Trainer, coordinator and store take their part",
        "of the same cores, so more workers than cores can gain nothing.", "",
        "| workers | images/s, median | range | of one worker's |", "|---:|---:|---|---:|",
    ]  # fmt: skip
    return [
        *lines,
        *(f"| {n} | {_spread(rates, '.0f')} | {statistics.median(rates) / one:.2f} |" for n, rates in speed.items()),
        "",
    ]


def _overhead(found: dict[str, Any]) -> list[str]:
    lines = [
        "## CPU a batch, engine `null`", "",
        "Microseconds of user and system time a batch, of all processes.", "",
        "| batches | " + " | ".join(PROCESSES) + " | all, median | range | batches/s |",
        "|---|" + "---:|" * len(PROCESSES) + "---:|---|---:|",
    ]  # fmt: skip
    for name, rows in found["overhead"].items():
        parts = " | ".join(f"{statistics.median(row[part] for row in rows):.0f}" for part in PROCESSES)
        rate = statistics.median(row["batches_s"] for row in rows)
        lines.append(f"| {LABELS[name]} | {parts} | {_spread([row['all'] for row in rows], '.0f')} | {rate:.0f} |")
    return [*lines, ""]


def _times(found: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for kind, title in (("first", "Time to the first batch"), ("resume", "Time to resume")):
        lines += [f"## {title}", "", "| | s, median | range |", "|---|---:|---|"]
        lines += [f"| {name} | {_spread(values, '.2f')} |" for name, values in found[kind].items()] + [""]
    return [
        *lines,
        "Without an attempt the dead trainer's claim stands until 5 s after its last report (`--rank-ttl-s`), since nobody",
        "else may train on its batches meanwhile; launchers that number their attempts do not wait for it.",
        "",
    ]


def _plot(found: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(13, 4), dpi=100)
    FigureCanvasAgg(figure)
    speed, overhead, times = figure.subplots(1, 3)
    workers = [int(name) for name in found["speed"]]
    medians = [statistics.median(rates) for rates in found["speed"].values()]
    speed.plot(workers, medians, "o-", color=COLOURS[0])
    speed.plot(workers, [medians[0] * n for n in workers], ":", color="#888888")
    for n, rates in zip(workers, found["speed"].values(), strict=True):
        speed.plot([n] * len(rates), rates, ".", color="#888888", markersize=3)
    speed.set(title="images/s by workers\n(dotted: in proportion)", xticks=workers, ylim=(0, None))
    totals = [statistics.median(row["all"] for row in rows) for rows in found["overhead"].values()]
    left = [0.0] * len(totals)
    for part, colour in zip(PROCESSES, COLOURS, strict=True):
        medians = [statistics.median(row[part] for row in rows) for rows in found["overhead"].values()]
        shares = [100 * value / total for value, total in zip(medians, totals, strict=True)]
        overhead.barh(range(len(shares)), shares, left=left, color=colour, label=part)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    names = [f"{LABELS[name]}:\n{total:,.0f} us" for name, total in zip(found["overhead"], totals, strict=True)]
    overhead.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=8)
    overhead.set(title="CPU of a batch, engine null, in %", xlim=(0, 100))
    overhead.legend(frameon=False, fontsize=7, ncols=5, loc="upper center", bbox_to_anchor=(0.4, -0.08), columnspacing=0.8)
    rows = {**found["first"], **found["resume"]}
    for place, values in enumerate(rows.values()):
        times.plot(values, [place] * len(values), ".", color=COLOURS[1])
        times.plot([statistics.median(values)], [place], "|", color="black", markersize=12)
    times.set_yticks(range(len(rows)), [name.replace(", ", ",\n") for name in rows], fontsize=7)
    times.set(title="s to the first batch", xlim=(0, None))
    for axis in (speed, overhead, times):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
