"""The process that made a stream or a client: a forked child has the objects, but neither their threads nor the right to speak.

What a child closed would be the parent's (its rank, its fetcher), and what it waited for would never come.
"""

from __future__ import annotations

import os
from typing import NoReturn

from headrace.core.errors import StateInvalid


class Origin:
    """Remembers the process in which it was made."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        """True in that process, False in a child that was forked later: there, closing drops what there is and says nothing."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Raise StateInvalid in a forked child."""
        if not self.here:
            raise StateInvalid(
                f"this {what} belongs to process {self._pid}, and this is a child that was forked from it (process "
                f"{os.getpid()}): it has none of the {what}'s threads; open one of its own with headrace.connect(...)",
                process=self._pid,
            )


class StaysHere:
    """Of this process alone: has connections and threads, which no copy can have."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        what = type(self).__name__.lower()
        raise TypeError(  # what `pickle` raises of such objects, and what others expect of it
            f"a {what} can neither be copied nor sent to another process, since its connections are of this one: give the "
            f"other process the coordinators' addresses and the job's parameters, and let it call headrace.connect(...)"
        )
