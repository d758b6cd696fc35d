"""Which sample takes the place of a bad one. Pure.

The substitute is the first good sample of the same batch in an order keyed by the bad one, so that it is the same
wherever the batch is made, and so that several bad samples of a batch don't all take the same neighbour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def candidates(seed: int, epoch: int, planned_id: int, sample_ids: Sequence[int]) -> list[int]:
    """Rows of a batch in the order in which they are tried for `planned_id`.

    sample_ids: int[B], the batch's planned ids. Rows are ranked by a keyed hash of their own sample's id, so the order
    does not depend on where in the batch a sample lies. Rows that hold `planned_id` itself are left out.
    """

    def rank(row: int) -> bytes:
        text = f"substitute/{seed}/{epoch}/{planned_id}/{sample_ids[row]}"
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    return sorted((row for row in range(len(sample_ids)) if sample_ids[row] != planned_id), key=lambda row: (rank(row), row))
