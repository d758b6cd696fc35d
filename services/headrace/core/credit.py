"""The credit rule for one connected rank: which batch indexes may be made for it now.

An index may be made if next <= index < next + window, the rank does not have it, and it was not sent on this
connection. Credit is an index, not a count, so a lost, repeated or late NEXT cannot create or destroy any; and the
rank's lowest needed index is always inside the window, so no set of batches made early can keep it from being made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core import limits
from headrace.core.errors import ProtocolMismatch

MAX_WINDOW = limits.WINDOW
_MAX_INDEX = 2**64 - 1


@dataclass(slots=True)
class CreditWindow:
    """The window of one connection. Not thread-safe: one thread owns it.

    next: lowest index that the rank has not released; only grows. have: indexes that the rank said it needs no more.
    made: indexes sent on this connection. Both sets hold only indexes of [next, next + window), so their size is bounded.
    Raises ProtocolMismatch for a window or index out of range.
    """

    next: int
    window: int
    have: set[int] = field(default_factory=set)
    made: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not 1 <= self.window <= MAX_WINDOW:
            raise ProtocolMismatch(f"window must be from 1 to {MAX_WINDOW}, not {self.window}")
        _check_index(self.next)
        self.have = self._inside(self.have)
        self.made = self._inside(self.made)

    def wants(self, index: int) -> bool:
        """True if `index` may be made and sent now."""
        return self.next <= index < self.next + self.window and index not in self.have and index not in self.made

    def mark_made(self, index: int) -> None:
        """Note that `index` was sent (or failed for good). Below the window: nothing to note. Above it: ProtocolMismatch."""
        if index >= self.next + self.window:
            raise ProtocolMismatch(f"index {index} is above the window [{self.next}, {self.next + self.window})", index=index)
        if index >= self.next:
            self.made.add(index)

    def advance(self, next_index: int) -> bool:
        """The rank released all below `next_index`. Returns True if that is news; a lower or equal number changes nothing."""
        _check_index(next_index)
        if next_index <= self.next:
            return False
        self.next = next_index
        self.have = self._inside(self.have)
        self.made = self._inside(self.made)
        return True

    def _inside(self, indexes: Iterable[int]) -> set[int]:
        return {index for index in indexes if self.next <= index < self.next + self.window}


def _check_index(index: int) -> None:
    if not 0 <= index <= _MAX_INDEX:
        raise ProtocolMismatch(f"index {index} is out of range")
