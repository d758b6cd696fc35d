"""The `null` engine: does nothing to pixels, so that what is left is the cost of everything else. For benchmarks only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.batch import REASON_CODE
from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.worker.engines.protocol import Out, RunResult, Sample


class NullEngine:
    """Leaves slots as they are."""

    name = "null"
    ops = frozenset(OPS_BY_NAME)
    memory = frozenset({"host", "cuda"})
    batches_at_once = 1
    fingerprint = "null-1"

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedNull:
        """Any spec."""
        return PreparedNull()

    def close(self) -> None:
        """Nothing to free."""


class PreparedNull:
    """The engine ready for any job."""

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """Report samples without data as bad and all others as good; pixels stay what they were."""
        missing = [
            0 if sample.data is not None else REASON_CODE[sample.reason if sample.reason != "none" else "missing_part"]
            for sample in samples
        ]
        return RunResult(np.array(missing, np.uint8), 0.0, 0.0)

    def close(self) -> None:
        """Nothing to free."""
