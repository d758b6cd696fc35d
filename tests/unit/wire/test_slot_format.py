"""The size of slots: one number for all parties of a job."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.batch import BatchMeta
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.wire import slot_format
from headrace.wire.batch_meta import encode_meta


@given(batch=st.integers(1, 40), side=st.integers(1, 70), key=st.integers(1, 200), label=st.integers(0, 300))
def test_a_jobs_slot_holds_its_largest_batch(batch: int, side: int, key: int, label: int) -> None:
    pipeline = PipelineSpec((CenterCrop((side, side)),))
    job = JobSpec("job", "/data", batch, pipeline, samples=batch, max_key_bytes=key, max_label_bytes=label)
    slot = memoryview(bytearray(slot_format.job_slot_bytes(job)))
    assert len(slot) % slot_format.PAGE == 0
    ids, status = np.full(batch, 2**62), np.full(batch, 2, np.uint8)
    meta = BatchMeta(
        job="j" * 100, attempt=2**62, rank=65535, index=2**62, epoch=2**62, step=2**62, batch=2**62, lane=6143, token=2**62,
        worker="w" * 200, plan_hash="f" * 64, fingerprint="f" * 200, sample_ids=ids, source_ids=ids, status=status,
        reasons=status, labels=None, keys=["k" * key] * batch, bad_keys=["k" * key] * batch, label_json=[b"l" * label] * batch,
    )  # fmt: skip
    shape, size = pipeline.shape(batch), pipeline.pixel_bytes(batch)
    slot_format.seal(slot, encode_meta(meta), index=1, token=1, dtype="uint8", layout="NHWC", shape=shape, pixel_bytes=size)
    assert slot_format.read_header(slot).total_bytes <= len(slot)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.data())
def test_a_mark_is_read_as_it_was_written_or_not_at_all(index: int, token: int, total: int, data: st.DataObject) -> None:
    slot = memoryview(bytearray(slot_format.PIXEL_OFFSET))
    assert slot_format.read_mark(slot) is None
    slot_format.mark(slot, 1, 2, 3)
    before = bytes(slot)
    slot_format.mark(slot, index, token, total)
    assert slot_format.read_mark(slot) == (index, token, total)
    # Another process may see the first bytes of the new one and the rest of the old one.
    seen = data.draw(st.integers(0, slot_format.PIXEL_OFFSET))
    slot[seen:] = before[seen:]
    assert slot_format.read_mark(slot) in (None, (index, token, total), (1, 2, 3))
