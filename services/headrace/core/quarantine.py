"""What is known of one bad sample, over all epochs in which it was met. Pure.

The epochs are kept as spans, so that a report that comes twice, or an epoch that is trained again after a resume, counts
once, and the record stays small over thousands of epochs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache

from headrace.core.record_check import reads

# Under `drop` a sample is not met in every epoch, so that spans have gaps. Beyond these the oldest become a number.
MAX_SPANS = 16


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A bad sample. sample: its id. reason: as first met. spans: (first, last) epochs in which it was met, ascending, disjoint
    and never touching. earlier: epochs before these that are only counted; what is reported of them again is ignored."""

    sample: int
    key: str
    reason: str
    spans: tuple[tuple[int, int], ...] = ()
    earlier: int = 0

    @property
    def count(self) -> int:
        """In how many epochs it was met."""
        return self.earlier + sum(last - first + 1 for first, last in self.spans)

    @property
    def last_epoch(self) -> int:
        """The newest of them; -1 before the first."""
        return self.spans[-1][1] if self.spans else -1

    def met(self, epoch: int) -> BadRecord:
        """The record once it was met in an epoch; itself if that is known."""
        if any(first <= epoch <= last for first, last in self.spans):
            return self
        if self.earlier and epoch < self.spans[0][0]:
            return self
        spans = _joined([*self.spans, (epoch, epoch)])
        dropped = spans[:-MAX_SPANS]
        earlier = self.earlier + sum(last - first + 1 for first, last in dropped)
        return replace(self, spans=tuple(spans[len(dropped) :]), earlier=earlier)

    def encode(self) -> bytes:
        """JSON without the id, which is the record's place in the store."""
        return json.dumps([self.key, self.reason, self.spans, self.earlier], separators=(",", ":")).encode()


# A table of thousands is read again and again, and hardly any of it changes.
@lru_cache(maxsize=16384)
@reads("bad sample")
def decode(sample: int, data: bytes) -> BadRecord:
    """Read a record. Raises RecordInvalid."""
    key, reason, spans, earlier = json.loads(data)[:4]
    return BadRecord(sample, key, reason, tuple((first, last) for first, last in spans), earlier)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, with neighbours that touch made one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
