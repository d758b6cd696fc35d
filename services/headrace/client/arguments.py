"""What a trainer gives to `connect`, `job` and `stream`, checked in one place: an error names the argument and what it takes.

Without this a wrong type shows up as an error of Python's or of protobuf's from somewhere inside, or calls later.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, get_args

import numpy as np

from headrace.core.errors import ConfigInvalid
from headrace.core.job import Shuffle
from headrace.core.pipeline_spec import shown


def _refused(name: str, takes: str, value: object) -> ConfigInvalid:
    return ConfigInvalid(f"{name} must be {takes}, not {shown(value)}", field=name)


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number from `least` to `most`, of any integer type. Raises ConfigInvalid."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise _refused(name, f"a whole number from {least} to {most}", value)
    return number


def own_integer(value: Any) -> Any:
    """An integer of another library's type as Python's own; all else as it is, for whoever judges it."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def deadline(name: str, value: Any, *, zero: bool = False) -> float:
    """Seconds to wait at most, finite and above 0. zero: 0 is allowed, too. Raises ConfigInvalid."""
    number = isinstance(value, Real | np.number) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf") or (value == 0 and not zero):
        raise _refused(name, f"a finite number of seconds{', 0 or more' if zero else ' above 0'}: no wait is endless", value)
    return float(value)


def path(name: str, value: Any) -> str:
    """A path or an address, as a text. Raises ConfigInvalid."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise _refused(name, "a text or a path", value)
    return text


def text(name: str, value: Any) -> str:
    """A text. The value is not in the message: it may be a token. Raises ConfigInvalid."""
    if not isinstance(value, str):
        raise ConfigInvalid(f"{name} must be a text, not a value of type {type(value).__name__}", field=name)
    return value


def unless_none(check: Callable[[str, Any], str], name: str, value: Any) -> str:
    """What `check` gives; an empty text for None, as parsers of flags give it."""
    return "" if value is None else check(name, value)


def choice(name: str, value: Any, literal: Any) -> Any:
    """One of a Literal's values, which may be texts, True, False and None. Raises ConfigInvalid."""
    allowed = get_args(literal)
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise _refused(name, f"one of {', '.join(map(str, allowed))}", value)
    return value


def addresses(value: str | Sequence[str]) -> str:
    """Coordinators' addresses as one text with commas. Raises ConfigInvalid; whether each is host:port is judged elsewhere."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise _refused("addresses", "host:port, several of them with commas between, or a list of them", value)
    return ",".join(parts)


def shuffle(value: Shuffle | bool | None) -> Shuffle:
    """How samples are mixed: True and None by default, False not at all. Raises ConfigInvalid."""
    if value is None or isinstance(value, bool):
        return Shuffle(mode="none") if value is False else Shuffle()
    if not isinstance(value, Shuffle):
        raise _refused("shuffle", "True, False or a Shuffle(...)", value)
    return value
