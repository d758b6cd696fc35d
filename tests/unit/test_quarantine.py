"""The list of bad samples: each counted once an epoch, whoever tells it, however often, and bounded."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.coordinator import quarantine
from headrace.coordinator.quarantine import Quarantine, Quarantined
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.events import BadSample
from headrace.core.quarantine import MAX_SPANS, BadRecord, decode


class SlowStore(MemoryStore):
    """Lets others run in the middle of each request, as a real one does."""

    async def load(self, wanted):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        loaded = await super().load(wanted)
        await asyncio.sleep(0)
        return loaded

    async def commit(self, expected, writes, hint=""):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        return await super().commit(expected, writes, hint)


def met(sample: int, epoch: int, reason: str = "corrupt") -> BadSample:
    return BadSample(epoch, sample, f"key{sample}", reason)


@given(st.lists(st.integers(0, 40), max_size=120))
def test_each_epoch_counts_once_in_any_order(epochs: list[int]) -> None:
    record = BadRecord(3, "key", "empty")
    for epoch in epochs:
        record = record.met(epoch)
        assert decode(3, record.encode()) == record
        assert len(record.spans) <= MAX_SPANS
    if len(set(epochs)) <= MAX_SPANS:
        assert record.count == len(set(epochs))
    assert record.count <= len(set(epochs))
    assert record.last_epoch == max(epochs, default=-1)


def test_a_record_stays_small_and_exact_over_thousands_of_epochs_with_gaps() -> None:
    record, seen = BadRecord(3, "key", "empty"), 0
    for epoch in range(5000):
        if epoch % 10:  # one in ten was dropped
            record, seen = record.met(epoch).met(epoch), seen + 1
    assert (record.count, len(record.spans)) == (seen, MAX_SPANS)
    assert record.met(7).count == seen, "an epoch that is long past says nothing new"
    assert len(record.encode()) < 400


async def test_replicas_that_note_the_same_samples_at_the_same_time_lose_none() -> None:
    store = SlowStore()
    lists = [Quarantine(store) for _ in range(4)]
    calls = [
        lists[turn % 4].record("job", [met(sample, epoch) for sample in range(30)])
        for turn, epoch in enumerate([0, 1, 2, 3, 0, 1, 2, 3])
    ]
    await asyncio.gather(*calls)
    found = await lists[0].of("job")
    assert [(record.sample, record.count) for record in found.samples] == [(sample, 4) for sample in range(30)]
    assert (found.total, found.beyond) == (120, 0)


async def test_the_list_is_bounded_and_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_BAD_SAMPLES", 10)
    bad = Quarantine(MemoryStore())
    with capture_logs() as told:
        await bad.record("job", [met(sample, 0) for sample in range(8)])
        await bad.record("job", [met(sample, 0, "empty") for sample in range(6, 14)])
        await bad.record("job", [met(sample, 1) for sample in (3, 9, 13)])
    found = await bad.of("job")
    assert [record.sample for record in found.samples] == list(range(10))
    assert [record.count for record in found.samples] == [1, 1, 1, 2, 1, 1, 1, 1, 1, 2]
    assert (found.beyond, found.total) == (5, 17)
    lines = [line for line in told if line["event"] == "bad_samples"]
    assert [(line["new"], line["reasons"]) for line in lines] == [(8, "corrupt=8"), (6, "empty=6"), (1, "corrupt=1")]
    assert lines[0]["keys"] == [f"key{sample}" for sample in range(8)]
    assert found.by_reason() == {"corrupt": 9, "empty": 3, "beyond": 5}
    assert await bad.of("other") == Quarantined((), 0)
