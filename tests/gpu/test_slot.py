"""Engines that write to a GPU: a slot there holds what one of the host does, whatever runs beside it, and nothing around it.

The engine of numpy lanes runs anywhere; those of a GPU are skipped with the reason where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from headrace.core import pipeline_spec as ps
from headrace.core.batch import REASON_CODE
from headrace.core.pipeline_spec import PipelineSpec
from headrace.wire.device_memory import Device
from headrace.worker.engines.protocol import DeviceSlot, Engine, Sample, part
from tests.contract import engine_entries
from tests.gpu import devices, photos
from tests.gpu.made import make_engine

ENGINES = {"cvcuda-on-numpy": "memfd", "dali-gpu": "vmm", "cvcuda": "vmm"}
OPS = (ps.RandomResizedCrop((96, 80)), ps.HorizontalFlip())
OUTPUTS = [
    ps.Output(dtype, layout, normalize)
    for dtype in ("uint8", "float16", "bfloat16", "float32")
    for layout in ("NHWC", "NCHW")
    for normalize in (None, ps.Normalize())
    if not (dtype == "uint8" and normalize)
]
ROWS, MARGIN, CANARY = 12, 4096, 0xA5


@dataclass
class Rig:
    """An engine, and a block of device memory. Slots lie in it with a margin on both sides."""

    engine: Engine
    device: Device
    pointer: int

    def slot(self, nbytes: int, at: int = 0) -> DeviceSlot:
        memory = self.device.memories[0]
        start = self.pointer + at
        memory.write(start, bytes([CANARY]) * (nbytes + 2 * MARGIN))
        return DeviceSlot(start + MARGIN, nbytes, memory.gpu)

    def read(self, slot: DeviceSlot) -> bytes:
        """The slot's bytes, once nothing around it has changed."""
        whole = bytearray(slot.nbytes + 2 * MARGIN)
        self.device.memories[0].read(slot.pointer - MARGIN, memoryview(whole))
        around = whole[:MARGIN] + whole[-MARGIN:]
        assert around == bytes([CANARY]) * len(around), "written outside of the slot"
        return bytes(whole[MARGIN:-MARGIN])


@pytest.fixture(scope="module", params=ENGINES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    name, kind = request.param, ENGINES[request.param]
    if reason := engine_entries.why_not(name) or devices.why_not(kind):
        pytest.skip(f"NOT RUN: engine {name}: {reason}")
    engine, device = make_engine(name, 4), devices.open_kind(kind)
    memory = device.memories[0]
    block = memory.allocate(64 << 20)
    yield Rig(engine, device, block.pointer)
    engine.close()
    memory.free(block)
    device.close()


def samples(count: int = ROWS, *, bad: bool = False) -> list[Sample]:
    found = [Sample(i, f"photo{i}", data) for i, data in enumerate(photos.jpegs(count))]
    if bad:
        found[3] = Sample(3, "bad", b"no image")
        found[5] = Sample(5, "cut", (found[5].data or b"")[:20_000])
        found[7] = Sample(7, "none", None, "missing_part")
    return found


def keys(count: int = ROWS) -> list[tuple[int, int]]:
    return [(2, 50 + i) for i in range(count)]


@pytest.mark.parametrize("output", OUTPUTS, ids=str)
def test_a_device_slot_holds_what_one_of_the_host_does(rig: Rig, output: ps.Output) -> None:
    spec = PipelineSpec(ops=OPS, output=output)
    prepared = rig.engine.prepare(spec, 1)
    host = bytearray(spec.pixel_bytes(ROWS))
    slot = rig.slot(len(host))
    expected = prepared.run(samples(bad=True), keys(), memoryview(host)).reasons
    found = prepared.run(samples(bad=True), keys(), slot).reasons
    pixels = rig.read(slot)
    prepared.close()
    assert np.array_equal(found, expected)
    assert np.flatnonzero(found).tolist() == [3, 5, 7]
    assert found[7] == REASON_CODE["missing_part"]
    row_bytes = spec.pixel_bytes(1)
    for row in range(ROWS):
        there = slice(row * row_bytes, (row + 1) * row_bytes)
        assert found[row] or pixels[there] == host[there], f"row {row}"


def test_a_substitute_goes_to_its_row_alone(rig: Rig) -> None:
    # Of odd sides, so that rows begin at odd addresses.
    spec = PipelineSpec(ops=(ps.RandomResizedCrop((61, 53)), ps.HorizontalFlip()))
    prepared = rig.engine.prepare(spec, 1)
    row_bytes = spec.pixel_bytes(1)
    slot = rig.slot(spec.pixel_bytes(ROWS))
    assert not prepared.run(samples(), keys(), slot).reasons.any()
    before = rig.read(slot)
    assert not prepared.run(samples()[9:10], keys()[4:5], part(slot, 4 * row_bytes, 5 * row_bytes)).reasons.any()
    after = rig.read(slot)
    alone = bytearray(row_bytes)
    prepared.run(samples()[9:10], keys()[4:5], memoryview(alone))
    prepared.close()
    assert after[4 * row_bytes : 5 * row_bytes] == alone != before[4 * row_bytes : 5 * row_bytes]
    assert after[: 4 * row_bytes] == before[: 4 * row_bytes] and after[5 * row_bytes :] == before[5 * row_bytes :]


def test_batches_in_flight_at_once_and_repeats_are_the_same_to_the_bit(rig: Rig) -> None:
    """Buffers that are used again too early, or a stream that is not waited for, show here."""
    spec = PipelineSpec(ops=OPS)
    prepared = rig.engine.prepare(spec, 1)
    nbytes = spec.pixel_bytes(ROWS)
    batches = [samples()[n:] + samples()[:n] for n in range(rig.engine.batches_at_once + 1)]

    def make(number: int) -> bytes:
        slot = rig.slot(nbytes, number % len(batches) * (nbytes + 2 * MARGIN))
        assert not prepared.run(batches[number % len(batches)], keys(), slot).reasons.any()
        return rig.read(slot)

    alone = [make(number) for number in range(len(batches))]
    with ThreadPoolExecutor(rig.engine.batches_at_once) as threads:
        # No two of one number at once: they would share a slot.
        for _ in range(6):
            assert list(threads.map(make, range(len(batches)))) == alone
    prepared.close()
    assert len(set(alone)) == len(alone)
