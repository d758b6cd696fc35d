"""Time lines as pictures, PNG or SVG by the file's name. matplotlib is in the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.core.bottleneck import MEANINGS, PARTS, SLOWED, Diagnosis
from headrace.core.errors import ConfigInvalid
from headrace.core.step_plan import ENGINE, READ, TRAINER, TRANSFER, Piece

SUFFIXES = (".png", ".svg")
_COLOURS = {
    "lane_wait": "#cc79a7", "slot_wait": "#8c959b", "worker_busy": "#e69f00", "read": "#56b4e9", "decode": "#d55e00",
    "augment": "#d8c62c", "transfer": "#2f7fd1", "copy": "#009e73", SLOWED: "#7a5195",
}  # fmt: skip
_STEP = "#4a5a63"
_ROWS = {READ: "read", ENGINE: "decode + augment", TRANSFER: "to the trainer", TRAINER: "train"}
_NUMBERED = 0.015  # of the axis: narrower boxes have no room for a number
_ROW_COLOURS = {READ: "#56b4e9", ENGINE: "#d55e00", TRANSFER: "#2f7fd1", TRAINER: _STEP}


def check(path: Path) -> None:
    """Raise ConfigInvalid where no picture can be drawn there: said before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise ConfigInvalid(f"--plot must end in .png or .svg, not {path.name!r}", field="plot")
    if not path.absolute().parent.is_dir():
        raise ConfigInvalid(f"{path.absolute().parent} is not there: make it, or name another file by --plot", path=str(path))
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ConfigInvalid(
            "--plot needs matplotlib, which is not installed: pip install 'headrace[plots]', or leave --plot out", field="plot"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "headrace", "axes.spines.top": False, "axes.spines.right": False})
    return plt


def _save(plt: Any, figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130, bbox_inches="tight")
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be written: {error.strerror}; name another file by --plot", path=str(path)
        ) from error
    finally:
        plt.close(figure)


def draw_diagnosis(found: Diagnosis, path: Path) -> None:
    """Two bars: the step on one cached batch, and on the stream with what makes it longer. Raises ConfigInvalid."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8.5, 2.7))
    measured = found.measured
    ms = 1000.0
    axes.barh(1, ms * measured.cached_s, color=_STEP, label="the step itself")
    at = ms * max(0.0, measured.live_s - sum(found.parts.values()))
    axes.barh(0, at, color=_STEP)
    for name in PARTS:
        part = ms * found.parts[name]
        if part >= 0.005 * ms * measured.live_s:
            axes.barh(0, part, left=at, color=_COLOURS[name], label=f"{name}: {MEANINGS[name]}")
            at += part
    rows = (f"on the stream\n{ms * measured.live_s:.1f} ms", f"on one cached batch\n{ms * measured.cached_s:.1f} ms")
    axes.set_yticks([0, 1], rows)
    axes.set_xlabel("milliseconds of one training step; what is coloured in the lower bar could be won")
    axes.set_title(f"{found.verdict}: {found.won_share:.0%} of the time could be won", loc="left", fontweight="bold")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.3), frameon=False, ncols=2, fontsize=8)
    _save(plt, figure, path)


def draw_timelines(lines: Sequence[tuple[str, Sequence[Piece]]], path: Path) -> None:
    """One panel for each (title, pieces), on one scale: when a stage of a batch begins and ends. Raises ConfigInvalid."""
    plt = _pyplot()
    figure, panels = plt.subplots(len(lines), 1, figsize=(10, 1.9 * len(lines)), sharex=True, squeeze=False)
    longest_s = 1.02 * max(piece.end_s for _, pieces in lines for piece in pieces)
    for axes, (title, pieces) in zip(panels[:, 0], lines, strict=True):
        axes.set_xlim(0, longest_s)
        for place, stage in enumerate(reversed(_ROWS)):
            _draw_row(axes, place, [piece for piece in pieces if piece.stage == stage])
        axes.set_yticks(range(len(_ROWS)), list(reversed(_ROWS.values())))
        axes.set_title(title, loc="left", fontweight="bold")
    panels[-1, 0].set_xlabel("seconds since the first batch was asked for; the number in a box is the batch")
    figure.tight_layout()
    _save(plt, figure, path)


def _draw_row(axes: Any, place: int, pieces: Sequence[Piece]) -> None:
    """Pieces that run at the same time, on several workers, lie below one another."""
    ends: list[float] = []
    rows = list[int]()
    for piece in pieces:
        free = next((row for row, end_s in enumerate(ends) if end_s <= piece.start_s + 1e-12), len(ends))
        if free == len(ends):
            ends.append(0.0)
        ends[free] = piece.end_s
        rows.append(free)
    height = 0.84 / max(1, len(ends))
    for piece, row in zip(pieces, rows, strict=True):
        bottom = place + 0.42 - height * (row + 1)
        span_s = piece.end_s - piece.start_s
        box = {"height": height, "align": "edge", "color": _ROW_COLOURS[piece.stage], "edgecolor": "white", "linewidth": 0.6}
        axes.barh(bottom, span_s, left=piece.start_s, **box)
        if span_s > _NUMBERED * axes.get_xlim()[1] and len(ends) <= 5:
            middle = piece.start_s + span_s / 2
            axes.text(
                middle, bottom + height / 2, piece.batch, ha="center", va="center", color="white", fontsize=6, clip_on=True
            )
