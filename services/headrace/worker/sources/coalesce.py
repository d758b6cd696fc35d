"""Merges byte ranges of neighbours into few reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Extent:
    """One read of `length` bytes at `start`; items: which of the asked ranges lie in it."""

    start: int
    length: int
    items: tuple[int, ...]


def coalesce(starts: Sequence[int], lengths: Sequence[int], gap_bytes: int, max_bytes: int) -> list[Extent]:
    """Extents that cover all ranges of one file, by ascending start.

    Neighbours are merged if at most `gap_bytes` that nobody asked for lie between them and the extent stays within
    `max_bytes`; a single larger range stays whole. Ranges may overlap or repeat, but then still share an extent where the
    bound allows.
    """
    extents: list[Extent] = []
    items: list[int] = []
    begin = end = 0
    for item in np.argsort(np.asarray(starts, np.int64), kind="stable").tolist():
        start, stop = starts[item], starts[item] + lengths[item]
        if items and (start - end > gap_bytes or max(stop, end) - begin > max_bytes):
            extents.append(Extent(begin, end - begin, tuple(items)))
            items = []
        if not items:
            begin, end = start, stop
        items.append(item)
        end = max(end, stop)
    if items:
        extents.append(Extent(begin, end - begin, tuple(items)))
    return extents
