"""The audit: was every sample of each epoch handed over exactly once?

Judged against the manifest (how many samples there are) by what was really seen in the pixels, never against the plan
that produced the batches. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.core.batch import OK, PADDED, SUBSTITUTED

UNREAD = -1


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rank saw of one epoch.

    pixel_ids: int64, one for each row that was neither padded nor substituted: the id read from its pixels, UNREAD where
    none could be read. substituted_ids: planned ids whose pixels are another sample's. padded: rows that are padding.
    """

    pixel_ids: NDArray[np.int64]
    substituted_ids: NDArray[np.int64]
    padded: int

    @classmethod
    def of_rows(cls, status: NDArray[Any], pixel_ids: NDArray[np.int64], planned_ids: NDArray[np.int64]) -> Self:
        """Of rows with what their batches say of each (core.batch OK, SUBSTITUTED, PADDED)."""
        return cls(pixel_ids[status == OK], planned_ids[status == SUBSTITUTED], int(np.count_nonzero(status == PADDED)))


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """Counts of one epoch. dropped: samples that the tail policy leaves out, as the plan's arithmetic says they must be."""

    epoch: int
    expected: int
    delivered: int
    missing: int
    duplicated: int
    unread: int
    dropped: int
    padded: int
    substituted: int

    @property
    def clean(self) -> bool:
        """True if nothing is missing, doubled, unreadable or foreign."""
        return (
            self.missing == 0
            and self.duplicated == 0
            and self.unread == 0
            and self.delivered + self.substituted == self.expected
        )


def audit_epoch(epoch: int, samples: int, dropped: int, seen: Sequence[Seen]) -> EpochAudit:
    """Audit one epoch over all ranks.

    samples: in the manifest. dropped: how many may be absent (0 under `pad`); which ones is not prescribed. An id outside
    the manifest counts as unread.
    """
    ids = np.concatenate([part.pixel_ids for part in seen]) if seen else np.empty(0, np.int64)
    substituted = np.concatenate([part.substituted_ids for part in seen]) if seen else np.empty(0, np.int64)
    valid = ids[(ids >= 0) & (ids < samples)]
    counts = np.bincount(valid, minlength=samples)
    counts_planned = counts + np.bincount(substituted, minlength=samples)
    absent = int(np.count_nonzero(counts_planned == 0))
    return EpochAudit(
        epoch=epoch,
        expected=samples - dropped,
        delivered=int(np.count_nonzero(counts)),
        missing=max(0, absent - dropped),
        duplicated=int(np.sum(counts_planned[counts_planned > 1] - 1)),
        unread=len(ids) - len(valid),
        dropped=dropped,
        padded=sum(part.padded for part in seen),
        substituted=len(substituted),
    )
