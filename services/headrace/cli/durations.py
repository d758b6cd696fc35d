"""Times as people write them on a command line: 120ms, 0.12s, 0.12, 90us."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import click

_UNITS = {"s": 1.0, "": 1.0, "ms": 1e-3, "us": 1e-6}
_FORM = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|)\s*")

# Generic since click 8.4 alone.
if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:
    _FloatType = click.ParamType


class Duration(_FloatType):
    """Seconds, of a text with or without a unit."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        if isinstance(value, float | int):
            return float(value)
        found = _FORM.fullmatch(str(value))
        if found is None or not math.isfinite(seconds := float(found[1]) * _UNITS[found[2]]):
            self.fail(f"{value!r} is no time: write 120ms, 0.12s or 90us", param, ctx)
        if not found[2] and seconds >= 1:  # mostly meant as milliseconds, and a step of 20 s is waited for for half an hour
            self.fail(f"{value!r} has no unit: write {found[1]}ms or {found[1]}s", param, ctx)
        return seconds


DURATION = Duration()


class Seconds(click.FloatRange):
    """A number of seconds within bounds, which nan is not: it is smaller than nothing, and so passes click's own check."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def told(seconds: float) -> str:
    """The same for people."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if seconds >= 1e-3 or not seconds else f"{1e6 * seconds:.0f} us"


def flag(seconds: float) -> str:
    """The same for a command line."""
    return f"{1000 * seconds:.3g}ms"
