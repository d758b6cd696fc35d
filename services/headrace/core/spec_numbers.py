"""Numbers of a spec in the type that its fields declare. Pure.

Python holds 1 and 1.0 for equal, JSON writes them differently: without this, equal specs would have different hashes, and a
rank that says `p=1` would be refused the job of one that says `p=1.0`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from headrace.core.errors import SpecInvalid

T = TypeVar("T")


def settle(record: T, where: str) -> T:
    """The record with floats where it declares floats and ints where it declares ints, in tuples too.

    Expects values that were validated as numbers. Raises SpecInvalid for a fraction where a whole number is declared.
    """
    assert is_dataclass(record)
    changed: dict[str, Any] = {}
    for field in fields(record):
        value, kind = getattr(record, field.name), str(field.type)
        if "float" in kind:
            changed[field.name] = _each(value, _as_float, where)
        elif kind.startswith(("int", "tuple[int")):
            changed[field.name] = _each(value, _as_int, f"{where}.{field.name}")
    settled: T = replace(record, **changed) if changed else record  # type: ignore[type-var]
    return settled


def _each(value: Any, convert: Any, where: str) -> Any:
    return tuple(convert(item, where) for item in value) if isinstance(value, tuple) else convert(value, where)


def _as_float(value: float, where: str) -> float:
    return float(value) + 0.0  # -0.0 equals 0.0, but is written otherwise


def _as_int(value: float, where: str) -> int:
    if value != int(value):
        raise SpecInvalid(f"{where} must be a whole number, not {value!r}", field=where)
    return int(value)
