"""What a source is: it finds and reads the encoded bytes of samples of one manifest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.worker.engines.protocol import Sample

# Waits until so many bytes may be held.
Reserve = Callable[[int], Awaitable[None]]


@dataclass(slots=True)
class ReadBatch:
    """Samples of one request, in its order, with their labels.

    labels: int64[B] (`int`), uint8[B, C] (`multi`) or None (`json`). label_json: B texts for `json`. read_bytes, requests:
    what went over the wire, for the metrics.
    """

    samples: list[Sample]
    labels: NDArray[np.int64] | NDArray[np.uint8] | None
    label_json: list[bytes]
    read_bytes: int
    requests: int


class Source(Protocol):
    """Reads samples of one manifest; safe for many reads at once on the worker's event loop."""

    samples: int
    manifest_hash: str

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        """Read these samples, neighbours in one request, many requests in flight.

        reserve: awaited once, if given, with the encoded bytes that are going to be held, before they are read.

        A sample whose label or part is bad comes with data None and a reason. Raises ShardMissing, ShardChanged (never
        retriable) or SourceUnavailable (after retries); then nothing is returned.
        """
        ...

    async def close(self) -> None:
        """Free connections and caches; idempotent."""
        ...
