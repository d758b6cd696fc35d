"""Mutates protobuf messages by their fields: bytes alone would mostly give what does not parse."""

from __future__ import annotations

import contextlib
import math
from random import Random
from typing import Any

from google.protobuf.message import DecodeError, Message

from headrace.testing.fuzz.mutate import mutate_json

_INTEGERS = (0, 1, 2, 7, 64, 6144, 65536, 2**31 - 1, 2**32 - 1, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, -1, -(2**63))
_DOUBLES = (0.0, -1.0, 1e308, math.nan, math.inf, -math.inf, 0.5)
_TEXTS = ("", "x", "x" * 101, "y" * 5000, "../../x", "a\0b", "none", "truncated", "ü" * 60, "redis://u:p@h")
_MOST_ITEMS = 1500


def mutated(rng: Random, data: bytes, kind: type[Message]) -> bytes:
    """One to three fields of a message changed; other bytes come back as they are."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return data
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, message)
    return message.SerializeToString()


def _change(rng: Random, message: Any) -> None:
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_items(rng, field, getattr(message, field.name))
    elif field.type == field.TYPE_MESSAGE:
        _change(rng, getattr(message, field.name))
    else:
        with contextlib.suppress(ValueError, TypeError, UnicodeEncodeError):  # a number that the field cannot hold
            setattr(message, field.name, _value(rng, field, getattr(message, field.name)))


def _change_items(rng: Random, field: Any, items: Any) -> None:
    action = rng.random()
    if field.type == field.TYPE_MESSAGE:
        if action < 0.3 and len(items):
            del items[rng.randrange(len(items)) :]
        elif action < 0.6 or not len(items):
            _change(rng, items.add())
        elif action < 0.7:
            for _ in range(rng.choice((2, 70, _MOST_ITEMS))):
                items.add().CopyFrom(items[0])
        else:
            _change(rng, rng.choice(items))
        return
    if action < 0.3 and len(items):
        del items[rng.randrange(len(items)) :]
        return
    with contextlib.suppress(ValueError, TypeError):
        items.extend([_value(rng, field, items[0] if len(items) else None)] * rng.choice((1, 1, 3, _MOST_ITEMS)))


def _value(rng: Random, field: Any, old: Any) -> Any:
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return rng.choice(_DOUBLES)
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_STRING:
        if field.name == "spec_json" and old and rng.random() < 0.8:
            return mutate_json(rng, old.encode()).decode()
        return rng.choice(_TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 8, 100)))
    return old + rng.choice((-1, 1)) if isinstance(old, int) and rng.random() < 0.3 else rng.choice(_INTEGERS)
