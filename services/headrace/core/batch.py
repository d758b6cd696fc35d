"""What a batch is besides its pixels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Per-sample status in a batch. Reasons of bad samples are a bounded set: they label metrics.
OK = 0
PADDED = 1
SUBSTITUTED = 2

BAD_REASONS: tuple[str, ...] = (
    "none",
    "empty",
    "unknown_format",
    "unsupported",
    "truncated",
    "corrupt",
    "too_large",
    "bad_label",
    "missing_part",
    "checksum",
    "decoder_error",
)
REASON_CODE: dict[str, int] = {reason: code for code, reason in enumerate(BAD_REASONS)}


@dataclass(slots=True)
class BatchMeta:
    """Everything that travels with the pixels of one batch of B samples.

    index: position in the rank's session (0, 1, ... over epochs; see core.session_plan). batch: k in the epoch plan.
    sample_ids: int64[B], the ids planned, as places in the manifest. source_ids: int64[B], the ids whose pixels are
    there (differs where substituted). status: uint8[B] of OK, PADDED, SUBSTITUTED. reasons: uint8[B], index into
    BAD_REASONS for substituted ones. labels: int64[B] (`int`), uint8[B, C] (`multi`) or None (`json`, then label_json holds B
    JSON texts). Labels and keys are those of source_ids. milestones: seconds on the worker's CLOCK_MONOTONIC.
    bad_keys: the planned samples' own keys, one for each substituted row in order.
    """

    job: str
    attempt: int
    rank: int
    index: int
    epoch: int
    step: int
    batch: int
    lane: int
    token: int
    worker: str
    plan_hash: str
    fingerprint: str
    sample_ids: NDArray[np.int64]
    source_ids: NDArray[np.int64]
    status: NDArray[np.uint8]
    reasons: NDArray[np.uint8]
    keys: list[str]
    labels: NDArray[np.int64] | NDArray[np.uint8] | None
    label_json: list[bytes] = field(default_factory=list)
    milestones: dict[str, float] = field(default_factory=dict)
    bad_keys: list[str] = field(default_factory=list)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool[B], False where padded."""
        mask: NDArray[np.bool_] = self.status != PADDED
        return mask


# Order of the worker's milestones of a batch; core.starvation turns their differences into causes. `engine`: it got its turn.
MILESTONES: tuple[str, ...] = ("leased", "slot_free", "started", "read", "engine", "decoded", "augmented", "published")
