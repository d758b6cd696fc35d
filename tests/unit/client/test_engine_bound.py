"""A session whose job had no engine when it formed is bound by its first batch: pixels never change in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core import errors
from headrace.core.batch import BatchMeta
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.testing.memory_stream import memory_stream

JOB = JobSpec("job", "/data", 4, PipelineSpec((CenterCrop((2, 2)),)), samples=20, manifest_hash="m")


def images(ids: np.ndarray, epoch: int) -> np.ndarray:
    return np.zeros((len(ids), 2, 2, 3), np.uint8)


@pytest.mark.parametrize("demanded", ["", "any"])
def test_the_first_batch_binds_a_session_that_had_no_engine_when_it_formed(demanded: str) -> None:
    made_by = iter(["cpu-1", "cpu-1", "cpu-2"])

    def alter(meta: BatchMeta) -> None:
        meta.fingerprint = next(made_by)

    with memory_stream(JOB.with_fingerprint(demanded), images, alter=alter) as made:
        batches = iter(made)
        assert [next(batches).fingerprint for _ in range(2)] == ["cpu-1", "cpu-1"]
        if demanded:
            assert next(batches).fingerprint == "cpu-2"
        else:
            with pytest.raises(errors.ProtocolMismatch, match="fingerprint is 'cpu-2' where the plan has 'cpu-1'"):
                next(batches)
