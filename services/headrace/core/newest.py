"""Keeps what was read last of each thing, and nothing older. Pure; for one thread, the event loop of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

T = TypeVar("T")


def newest(name: Callable[[T], Hashable], most: int) -> Callable[[Callable[[bytes], T]], Callable[[bytes], T]]:
    """Decorator of a function that reads a record: equal bytes are not read again while they are the newest of their name.

    A cache of the least recently used would fill up with versions that nobody asks for any more: heartbeats change records
    about once a second. name: of a record, whose older version goes. most: names; with one more all are forgotten.
    """

    def decorate(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
        kept: dict[bytes, T] = {}
        newest_of: dict[Hashable, bytes] = {}

        @wraps(read)
        def reading(data: bytes) -> T:
            if (found := kept.get(data)) is not None:
                return found
            record = read(data)
            named = name(record)
            if named not in newest_of and len(newest_of) >= most:
                kept.clear()
                newest_of.clear()
            kept.pop(newest_of.get(named, b""), None)
            kept[data] = record
            newest_of[named] = data
            return record

        return reading

    return decorate
