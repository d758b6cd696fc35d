"""A log line now and then, of what may happen thousands of times."""

from __future__ import annotations

import time
from collections.abc import Hashable


class Seldom:
    """Of each kind the first, and then one in `every_s`. Not for two threads at once.

    most: kinds that are remembered; where there are more, all are begun with anew.
    """

    def __init__(self, every_s: float = 30.0, most: int = 1000) -> None:
        self._every_s = every_s
        self._most = most
        self._seen: dict[Hashable, tuple[float, int]] = {}  # when the last one was told, and how many came since

    def due(self, kind: Hashable) -> int | None:
        """How many were not told since the last one that was, if this one is to be told; else None."""
        now_s = time.monotonic()
        told_s, more = self._seen.get(kind, (float("-inf"), 0))
        if now_s - told_s < self._every_s:
            self._seen[kind] = (told_s, more + 1)
            return None
        if kind not in self._seen and len(self._seen) >= self._most:
            self._seen.clear()
        self._seen[kind] = (now_s, 0)
        return more
