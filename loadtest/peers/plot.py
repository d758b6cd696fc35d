"""The picture of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.peers.contestants import CONTESTANTS, WORKS
from loadtest.peers.table import Trial, spread

OURS, THEIRS, LESS = "#1b6ca8", "#9aa5b1", "#d9b77e"


def draw(trials: Sequence[Trial], path: Path) -> None:
    """Bars of images a second and CPU seconds per 1,000 images, a row of panels for each work."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    works = [work for work in WORKS if any(trial.work == work.name for trial in trials)]
    bars = [len({trial.contestant for trial in trials if trial.work == work.name}) for work in works]
    size = (13, 1 + 0.3 * sum(bars) + 1.1 * len(works))
    shape = {"squeeze": False, "layout": "constrained", "height_ratios": [count + 2 for count in bars]}
    figure, panels = pyplot.subplots(len(works), 2, figsize=size, **shape)
    for work, row in zip(works, panels, strict=True):
        for panel, (number, label) in zip(row, (("rate", "images/s"), ("cpu", "CPU s per 1,000 images")), strict=True):
            _bars(panel, trials, work.name, number)
            panel.set_xlabel(f"{label} ({'more' if number == 'rate' else 'less'} is better)")
        row[0].set_title(work.title, loc="left", fontsize=11)
    names = {OURS: "Headrace", THEIRS: "others", LESS: "no antialias: less work"}
    figure.legend(
        handles=[Patch(color=color, label=name) for color, name in names.items()], loc="outside lower center", ncols=3
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(panel, trials: Sequence[Trial], work: str, number: str) -> None:  # type: ignore[no-untyped-def]
    found = []
    for contestant in CONTESTANTS:
        values = spread(trials, contestant.name, work, number)
        if values:
            color = OURS if contestant.name.startswith("headrace") else THEIRS if contestant.antialias else LESS
            found.append((values, contestant.title.replace("*", ""), color))
    found.sort(key=lambda one: one[0].median, reverse=number == "cpu")
    medians = [values.median for values, _, _ in found]
    spans = [[v.median - v.least for v, _, _ in found], [v.most - v.median for v, _, _ in found]]
    bars = panel.barh(
        [title for _, title, _ in found], medians, xerr=spans, color=[color for _, _, color in found], ecolor="#444"
    )
    panel.bar_label(bars, [f"{value:.0f}" if number == "rate" else f"{value:.2f}" for value in medians], padding=6, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.2)
