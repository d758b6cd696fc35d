"""Draws a dashboard's panels as HTML and SVG, from what Prometheus answered: stand-ins for Grafana's own, in its units.

Pure. Only what headrace.telemetry.panels uses: lines, stacks, numbers, names, bars.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Told apart also by those who see fewer colours (after Okabe and Ito), darkest last.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6a00", "#6a3d9a", "#8c8c8c", "#222222")
COLOURS = {"green": "#1a7f37", "yellow": "#b58900", "red": "#c62828", "text": "#222222"}
_TICKS = 4
_LEGEND_MOST = 12


@dataclass(frozen=True, slots=True)
class Series:
    """A name and (time, value) pairs, oldest first; times are seconds since 1970."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


# Grafana's names of units that are written behind the figure, in the legend alone.
_UNITS = {"reqps": " req/s", "watt": " W", "celsius": " °C"}


def amount(value: float, unit: str) -> str:
    """A value in one of Grafana's units, for people."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.1f}%" if abs(value) < 0.1 else f"{100 * value:.0f}%"
    if unit == "s":
        return _duration(value)
    if unit in ("bytes", "binBps"):
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB")) + ("/s" if unit == "binBps" else "")
    text = _scaled(value, 1000, ("", "K", "M", "G"))
    return text + _UNITS.get(unit, unit.removeprefix("suffix:") if unit.startswith("suffix:") else "")


def _duration(value: float) -> str:
    for least, per, name in ((86400, 86400, "days"), (3600, 3600, "h"), (60, 60, "min"), (1, 1, "s"), (0.001, 0.001, "ms")):
        if abs(value) >= least:
            return f"{value / per:.3g} {name}"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def _scaled(value: float, base: int, names: Sequence[str]) -> str:
    step = min(int(math.log(abs(value), base)), len(names) - 1) if abs(value) >= 1 else 0
    return f"{value / base**step:.3g}" + (f" {names[step]}" if names[step] else "")


def panel(made: dict[str, Any], series: list[Series], span: tuple[float, float], width: int, height: int) -> str:
    """One panel's HTML. span: first and last moment of the time axis. width, height: of what is below its title, in pixels."""
    settings = made["fieldConfig"]["defaults"]
    inner = f'<p class="none">{html.escape(settings.get("noValue", "no data"))}</p>'
    if series:
        match made["type"]:
            case "timeseries":
                inner = _chart(series, span, settings, width, height)
            case "bargauge":
                inner = _bars(series, settings)
            case _:
                inner = _numbers(made, series, settings)
    title, words = html.escape(made["title"]), html.escape(made["description"])
    return f'<section><h3>{title}</h3><p class="what">{words}</p>{inner}</section>'


def _colour(value: float, settings: dict[str, Any]) -> str:
    found = "text"
    for step in settings["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            found = step["color"]
    return COLOURS[found]


def _numbers(made: dict[str, Any], series: list[Series], settings: dict[str, Any]) -> str:
    names = {
        override["matcher"]["options"]: override["properties"][0]["value"] for override in made["fieldConfig"]["overrides"]
    }
    only_names = made["options"]["textMode"] == "name"
    parts = []
    for one in series:
        name = html.escape(names.get(one.name, one.name))
        colour = _colour(one.last, settings)
        if only_names:
            parts.append(f'<p class="name">{name}</p>')
        else:
            value = html.escape(amount(one.last, settings["unit"]))
            parts.append(f'<div class="number"><b style="color:{colour}">{value}</b><span>{name}</span></div>')
    return f'<div class="numbers">{"".join(parts)}</div>'


def _bars(series: list[Series], settings: dict[str, Any]) -> str:
    most = settings.get("max") or max(one.last for one in series) or 1.0
    rows = []
    for one in sorted(series, key=lambda one: -one.last):
        share, colour = min(1.0, max(0.0, one.last / most)), _colour(one.last, settings)
        value = html.escape(amount(one.last, settings["unit"]))
        bar = f'<i style="width:{100 * share:.1f}%;background:{colour}"></i>'
        rows.append(f'<tr><td>{html.escape(one.name)}</td><td class="bar">{bar}</td><td>{value}</td></tr>')
    return f"<table>{''.join(rows)}</table>"


def _nice(value: float, unit: str) -> float:
    """The next larger of 1, 2, 5 times a power of ten; of bytes, a power of two."""
    if unit in ("bytes", "binBps"):
        return float(2 ** math.ceil(math.log2(max(value, 1.0))))
    power = 10 ** math.floor(math.log10(value))
    return next(float(step * power) for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _axis(lowest: float, highest: float, most: float | None, unit: str) -> tuple[float, float, float]:
    """(least, most, step) of a value axis: from 0, or below what lies below; to the panel's own most where that is near."""
    if most is not None and most / 2 < highest <= most and lowest >= 0:
        return 0.0, most, most / _TICKS
    wide = max(highest, 0.0) - min(lowest, 0.0)
    step = _nice(wide / _TICKS, unit) if wide > 1e-12 else 1.0
    return step * math.floor(min(lowest, 0.0) / step), max(step, step * math.ceil(max(highest, 0.0) / step)), step


def _stacks(series: list[Series]) -> list[tuple[Series, Series]]:
    """(floor, top) of each series, one upon the other; a moment without a value counts as 0."""
    moments = sorted({t for one in series for t, _ in one.points})
    floor = dict.fromkeys(moments, 0.0)
    found = []
    for one in series:
        values = dict(one.points)
        top = {t: floor[t] + max(0.0, values.get(t, 0.0)) for t in moments}
        found.append((Series(one.name, tuple(floor.items())), Series(one.name, tuple(top.items()))))
        floor = top
    return found


def _chart(series: list[Series], span: tuple[float, float], settings: dict[str, Any], width: int, height: int) -> str:
    unit, most = settings["unit"], settings.get("max")
    stacked = settings["custom"].get("stacking", {}).get("mode") == "normal"
    left, right, bottom, top = 78, 10, 20, 6
    layers = _stacks(series) if stacked else [(one, one) for one in series]
    values = [v for _, one in layers for _, v in one.points if not math.isnan(v)]
    least, most, step = _axis(min(values, default=0.0), max(values, default=0.0), settings.get("max"), unit)
    on_axis = "short" if unit.startswith("suffix:") or unit in _UNITS else unit  # the legend has it in full
    begin, end = span

    def x(t: float) -> float:
        return left + (t - begin) / (end - begin) * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - min(1.0, max(0.0, (value - least) / (most - least))) * (height - bottom - top)

    parts = []
    for value in (least + step * number for number in range(round((most - least) / step) + 1)):
        label = html.escape(amount(value, on_axis))
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{label}</text>')
    for number in range(_TICKS + 1):
        moment = begin + (end - begin) * number / _TICKS
        clock, anchor = time.strftime("%H:%M:%S", time.gmtime(moment)), ("start", "middle", "middle", "middle", "end")[number]
        parts.append(f'<text x="{x(moment):.1f}" y="{height - 4}" text-anchor="{anchor}">{clock}</text>')
    gap = 3 * (end - begin) / 100
    for number, (floor, one) in enumerate(layers):
        colour = PALETTE[number % len(PALETTE)]
        if stacked:
            shape = [f"{x(t):.1f},{y(v):.1f}" for t, v in (*one.points, *reversed(floor.points))]
            parts.append(f'<polygon points="{" ".join(shape)}" fill="{colour}" fill-opacity=".8"/>')
        for (t0, v0), (t1, v1) in () if stacked else pairwise(one.points):
            if t1 - t0 <= gap and not (math.isnan(v0) or math.isnan(v1)):
                line = f'x1="{x(t0):.1f}" y1="{y(v0):.1f}" x2="{x(t1):.1f}" y2="{y(v1):.1f}"'
                parts.append(f'<line {line} stroke="{colour}" stroke-width="1.6" stroke-linecap="round"/>')
    picture = f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'
    return picture + _legend(series, unit, end - gap)


def _legend(series: list[Series], unit: str, ended_s: float) -> str:
    items = [
        f'<span><i style="background:{PALETTE[number % len(PALETTE)]}"></i>{html.escape(one.name)} '
        f"<b>{html.escape(amount(one.last, unit)) if one.points[-1][0] > ended_s else 'ended'}</b></span>"
        for number, one in enumerate(series[:_LEGEND_MOST])
    ]
    more = f"<span>and {len(series) - _LEGEND_MOST} more</span>" if len(series) > _LEGEND_MOST else ""
    return f'<div class="legend">{"".join(items)}{more}</div>'
