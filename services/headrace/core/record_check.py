"""What came back from the store is what its types say, within limits, or a RecordInvalid: anybody may have written there.

Pure. Numbers of a wrong type would otherwise break a tick far from where they were read, and a large one keep it busy for ever.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from types import NoneType
from typing import Any, TypeVar

from headrace.core import limits
from headrace.core.errors import HeadraceError, RecordInvalid

_MOST_ITEMS = 65_536
# What the protocol's widest numbers hold: tokens, counts, microseconds.
_INTEGERS = range(2**64)
_BOUNDS = {
    "world": range(1, limits.WORLD + 1),
    "lanes": range(1, limits.LANES + 1),
    "window": range(1, limits.WINDOW + 1),
    "attempt": range(limits.COUNT_BOUND),
    "lane": range(limits.LANES),
    "stop_index": range(-1, limits.COUNT_BOUND),
}
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError, HeadraceError)

T = TypeVar("T")
Read = Callable[..., T]


def reads(what: str) -> Callable[[Read[T]], Read[T]]:
    """Decorator of a function that reads a record: whatever it raises becomes RecordInvalid, and what it gives is checked."""

    def decorate(read: Read[T]) -> Read[T]:
        @wraps(read)
        def reading(*args: Any) -> T:
            try:
                record = read(*args)
                _check(record, type(record), what)
                return record
            except _DAMAGED as error:
                reason = error.message if isinstance(error, HeadraceError) else repr(error)
                raise RecordInvalid(
                    f"a {what} record in the store cannot be read ({reason[:200]}): another version wrote it, or "
                    "somebody else; remove it, or go back to the version that wrote it",
                    record=what,
                ) from error

        return reading

    return decorate


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check(value: Any, kind: Any, name: str) -> None:
    """Raise ValueError or TypeError unless the value is of the annotated type, all the way down."""
    if kind is int:
        if type(value) is not int or value not in _BOUNDS.get(name, _INTEGERS):
            raise ValueError(f"{name} is out of range")
    elif kind is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} is no number")
    elif kind is str:
        limits.text(value, name, limits.ADDRESS_CHARS)
    elif is_dataclass(kind) and isinstance(value, typing.cast("type", kind)):
        if hasattr(kind, "__post_init__"):
            return  # it has checked itself
        hints = _hints(typing.cast("type", kind))
        for each in fields(kind):
            _check(getattr(value, each.name), hints[each.name], each.name)
    else:
        _check_composed(value, kind, name)


def _check_composed(value: Any, kind: Any, name: str) -> None:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, tuple) and len(value) <= _MOST_ITEMS:
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        for item, part in zip(value, kinds, strict=True):
            _check(item, part, name)
    elif NoneType in parts:
        if value is not None:
            _check(value, next(part for part in parts if part is not NoneType), name)
    elif origin is typing.Literal and value in parts:
        return
    elif not (isinstance(kind, type) and type(value) is kind):
        raise TypeError(f"{name} is a {type(value).__name__}")
