"""The picture of a soak: one row a measure, minutes to the right, faults as ticks above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from headrace.testing.soak.plan import FAULTS
from headrace.testing.soak.run import Soaked
from headrace.testing.soak.sampler import Series

MIB: Final = 2.0**20
# Colours that stay apart for all eyes (Okabe and Ito).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LIGHT: Final = "#BBBBBB"
_BY_NAME: Final = {
    "p50_s": "half of the calls took less than this (p50)",
    "p95_s": "19 of 20 did (p95)",
    "p99_s": "99 of 100 did (p99: faults)",
}
PANELS: Final[Sequence[tuple[str, str, float]]] = (
    ("memory_bytes", "anonymous\nmemory, MiB", MIB),
    ("shared_bytes", "shared memory,\nMiB", MIB),
    ("descriptors", "open\ndescriptors", 1.0),
    ("threads", "threads", 1.0),
)


def save(path: Path, seen: Soaked, latencies: Series) -> None:
    """Draw and write the PNG."""
    figure = Figure(figsize=(13, 17), dpi=90)
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(7, 1, sharex=True, height_ratios=[0.8, 1.5, 1, 1.2, 1.2, 1, 1.3]))

    def minutes(times_s: Sequence[float]) -> list[float]:
        return [(time_s - seen.begun_s) / 60 for time_s in times_s]

    _faults(axes[0], seen, minutes)
    for axis, (kind, label, unit) in zip(axes[1:5], PANELS, strict=True):
        _processes(axis, seen, kind, unit, minutes)
        axis.set_ylabel(label)
    axes[1].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=7, frameon=False, fontsize=9)
    _store(axes[5], seen.store, minutes)
    _latency(axes[6], latencies, minutes)
    for axis in axes:
        axis.axvspan(0, minutes([seen.warm_until_s])[0], color="#F2F2F2", zorder=0)
        axis.grid(axis="both", color="#E5E5E5", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("minutes (grey background: warm-up, not judged)")
    axes[-1].set_xlim(0, seen.seconds / 60)
    figure.suptitle(
        f"Soak of {seen.seconds / 60:.0f} minutes: {seen.faults.total()} faults, {seen.epochs_audited} epochs, "
        f"{seen.jobs + 1} jobs. A leak would be a line that rises to the right.",
        fontsize=13,
        y=0.985,
    )
    figure.subplots_adjust(left=0.13, right=0.95, top=0.945, bottom=0.035, hspace=0.28)  # computing a layout takes long
    figure.savefig(path)


def lasting(seen: Soaked) -> list[Series]:
    """Processes that were there for most of the run, longest names last."""
    longest = max((len(series.times_s) for series in seen.series), default=0)
    return [series for series in seen.series if len(series.times_s) > 0.8 * longest]


Minutes = Callable[[Sequence[float]], list[float]]


def _faults(axis: Axes, seen: Soaked, minutes: Minutes) -> None:
    kinds = [kind for kind in FAULTS if seen.faults[kind]]
    for row, kind in enumerate(reversed(kinds)):
        times = minutes([time_s for time_s, each in seen.marks if each == kind])
        axis.plot(times, [row] * len(times), "|", color=COLOURS[1], markersize=8, markeredgewidth=1.6)
    axis.set_yticks(range(len(kinds)), list(reversed(kinds)), fontsize=8)
    axis.set_ylim(-0.7, len(kinds) - 0.3)
    axis.set_title("faults", loc="left", fontsize=10)


def _processes(axis: Axes, seen: Soaked, kind: str, unit: float, minutes: Minutes) -> None:
    keep = lasting(seen)
    others = [series for series in seen.series if series not in keep]
    for number, series in enumerate(others):
        label = "all others, as they come and go" if number == 0 else None
        axis.plot(minutes(series.times_s), [v / unit for v in series.values[kind]], color=_LIGHT, linewidth=0.7, label=label)
    for colour, series in zip(COLOURS, keep, strict=False):
        axis.plot(
            minutes(series.times_s), [v / unit for v in series.values[kind]], color=colour, linewidth=1.4, label=series.name
        )
    axis.set_ylim(bottom=0)


def _store(axis: Axes, store: Series, minutes: Minutes) -> None:
    times = minutes(store.times_s)
    axis.plot(times, store.values.get("keys", []), color=COLOURS[0], label="keys: a few a job, kept for 90 days by design")
    axis.plot(times, store.values.get("stray_keys", []), color=COLOURS[1], label="keys that are nobody's")
    axis.set_ylabel("keys in\nthe store")
    axis.set_ylim(bottom=0)
    right = axis.twinx()
    kib = [value / 1024 for value in store.values.get("lasting_bytes", [])]
    right.plot(times, kib, color=COLOURS[2], label="KiB of fleet and lasting job (right)")
    right.set_ylabel("KiB")
    right.set_ylim(bottom=0)
    right.spines["top"].set_visible(False)
    lines, labels = axis.get_legend_handles_labels()
    more, named = right.get_legend_handles_labels()
    axis.legend(lines + more, labels + named, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, fontsize=9, ncols=3)


def _latency(axis: Axes, latencies: Series, minutes: Minutes) -> None:
    times = [time - 0.5 for time in minutes(latencies.times_s)]
    for colour, (kind, values) in zip(COLOURS, latencies.values.items(), strict=False):
        milliseconds = [max(0.05, value * 1000) for value in values]
        axis.plot(times, milliseconds, color=colour, marker="o", markersize=3, label=_BY_NAME[kind])
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_ylabel("next(): ms,\nby minute")
    if times:
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, fontsize=9, ncols=3)
