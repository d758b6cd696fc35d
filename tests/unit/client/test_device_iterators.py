"""Batches on a device, one ahead: the three ways there, and that no slot goes back while it is read. The device is the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from headrace.client.device_pixels import DevicePixels
from headrace.client.options import StreamOptions
from headrace.client.stream import Stream
from headrace.client.transports.protocol import TakenSlot
from headrace.core.errors import BatchReleased
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import CenterCrop, Output, PipelineSpec
from headrace.testing.memfd_device import MemfdMemory
from headrace.testing.memory_stream import memory_stream
from headrace.wire import device_memory, slot_format

torch = pytest.importorskip("torch")
WINDOW = 3


class DoneEvent:
    """When it is waited for is noted."""

    def __init__(self, notes: list[tuple[str, int]], number: int) -> None:
        self._notes = notes
        self._number = number

    def synchronize(self) -> None:
        self._notes.append(("waited", self._number))

    def query(self) -> bool:
        return True


class CpuLane:
    """client.iterators.torch.Lane without CUDA: copies are over at once, but whoever does not wait for them is found out."""

    def __init__(self, notes: list[tuple[str, int]]) -> None:
        self._notes = notes
        self._copies = 0

    def copy(self, make: Callable[[], Any]) -> tuple[Any, DoneEvent]:
        self._copies += 1
        return make(), DoneEvent(self._notes, self._copies - 1)

    def hand_over(self, tensors: Sequence[Any], done: DoneEvent) -> None:
        self._notes.append(("handed", done._number))

    def mark(self) -> DoneEvent:
        return DoneEvent(self._notes, self._copies)

    def pinned_like(self, tensor: Any) -> Any:
        return torch.empty_like(tensor)


class Placed:
    """Puts each taken batch's pixels where a test wants them. lost: what the lender says."""

    def __init__(self, where: str, *, stays: bool = True) -> None:
        self.where = where
        self.lost = False
        self.memory = MemfdMemory(outlives_owner=stays)
        self._block = self.memory.allocate(1 << 20)
        self.taken: list[int] = []

    def slot(self, index: int, nbytes: int) -> int:
        return self._block.pointer + index % WINDOW * device_memory.slot_bytes(nbytes)

    def __call__(self, taken: TakenSlot) -> TakenSlot:
        self.taken.append(taken.index)
        if self.where != "device":
            return taken._replace(pinned=self.where == "pinned")
        pointer = self.slot(taken.index, taken.header.pixel_bytes)
        self.memory.write(pointer, bytes(slot_format.pixels(taken.slot, taken.header.pixel_bytes)))
        form = (taken.header.shape, taken.header.dtype, taken.header.pixel_bytes)
        return taken._replace(device=DevicePixels(self, pointer, *form), transport="cuda_ipc")


def images_of(pipeline: PipelineSpec) -> Callable[[np.ndarray[Any, Any], int], np.ndarray[Any, Any]]:
    def images(ids: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        return (ids[:, None, None, None] * 7 + np.arange(36).reshape(pipeline.shape(1)) + epoch) % 251

    return images


def open_stream(placed: Placed, notes: list[tuple[str, int]], dtype: str = "uint8") -> Stream:
    pipeline = PipelineSpec((CenterCrop((2, 6)),), Output(dtype=dtype))  # type: ignore[arg-type]
    job = JobSpec("train", "/data", 4, pipeline, samples=40, tail="pad")
    return memory_stream(
        job,
        images_of(pipeline),
        window=WINDOW,
        options=StreamOptions(epochs=1),
        place=placed,
        on_release=lambda index: notes.append(("released", index - 1)),
    )


def stager(notes: list[tuple[str, int]], *, view: bool = False) -> Any:
    from headrace.client.iterators.torch import DeviceStager

    return DeviceStager(torch.device("cpu"), CpuLane(notes), view=view)


@pytest.fixture(params=["device", "pinned", "host"])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_each_way_brings_the_same_tensors(where: str, dtype: str) -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    with open_stream(Placed(where), notes, dtype) as stream:
        kept = []
        for got in ahead(stream, stager(notes)):
            assert (got.batch.on_device is not None) == (where == "device")
            kept.append((got.pixels, got.batch.copy(), got.labels, got.mask))
    assert len(kept) == 10
    for pixels, batch, labels, mask in kept:  # they are the trainer's own: later batches have not changed them
        assert str(pixels.dtype) == f"torch.{dtype}"
        np.testing.assert_array_equal(pixels.float().numpy(), batch.pixels.astype(np.float32))
        assert labels.tolist() == batch.labels.tolist() and mask.tolist() == batch.mask.tolist()


def test_no_slot_goes_back_before_its_copy_was_waited_for(where: str) -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    with open_stream(Placed(where), notes) as stream:
        for _ in ahead(stream, stager(notes)):
            pass
    for index in range(9):
        released = notes.index(("released", index))
        if where != "host":  # out of host memory that is not pinned they are copied before `begin` returns
            assert notes.index(("waited", index)) < released
        assert notes.index(("handed", index)) < released


def test_a_loop_that_is_left_waits_for_the_copies_under_way() -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    with open_stream(Placed("device"), notes) as stream:
        for _ in ahead(stream, stager(notes)):
            break
        assert {("waited", 0), ("waited", 1)} <= set(notes)


def test_a_view_is_the_slot_and_goes_back_when_the_trainer_is_done() -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    placed = Placed("device")
    with open_stream(placed, notes) as stream:
        for number, got in enumerate(ahead(stream, stager(notes, view=True))):
            assert got.pixels.data_ptr() == placed.slot(number, got.pixels.numel())
            np.testing.assert_array_equal(got.pixels.numpy(), got.batch.pixels)
            notes.append(("trained", number))
    for index in range(9):
        trained = notes.index(("trained", index))
        after = [kind for kind, _ in notes[trained + 1 : notes.index(("released", index))]]
        assert "waited" in after


def test_memory_that_goes_with_its_worker_is_copied_at_once_also_where_a_view_was_asked_for() -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    placed = Placed("device", stays=False)
    with open_stream(placed, notes) as stream:
        for number, got in enumerate(ahead(stream, stager(notes, view=True))):
            assert got.pixels.data_ptr() != placed.slot(number, got.pixels.numel())
            assert notes.index(("waited", number)) < notes.index(("handed", number))


def test_a_staged_batch_that_is_lost_with_its_worker_is_taken_anew() -> None:
    from headrace.client.iterators.ahead import ahead

    notes: list[tuple[str, int]] = []
    placed = Placed("device", stays=False)
    with open_stream(placed, notes) as stream:
        batches = ahead(stream, stager(notes))
        first = next(batches)
        assert first.batch.index == 0 and placed.taken == [0, 1]
        placed.lost = True  # batch 1 was staged; its worker dies
        with pytest.raises(BatchReleased):
            _ = first.batch.on_device.pointer
        placed.lost = False
        placed.where = "host"
        stream._staged.taken.device._lender = type("Gone", (), {"lost": True, "memory": placed.memory})()  # type: ignore
        second = next(batches)
        assert second.batch.index == 1 and second.batch.on_device is None
        assert placed.taken == [0, 1, 1, 2]
        np.testing.assert_array_equal(second.pixels.numpy(), second.batch.pixels)
        assert [got.batch.index for got in batches] == list(range(2, 10))
        assert stream.stats().batches == 10


def test_on_the_host_a_device_batch_is_a_copy_and_both_go_with_the_batch() -> None:
    notes: list[tuple[str, int]] = []
    with open_stream(Placed("device"), notes) as stream:
        batch = next(iter(stream))
        pixels, on_device = batch.pixels, batch.on_device
        assert on_device is not None and pixels is batch.pixels
        assert pixels.flags.owndata or pixels.base is not None
        np.testing.assert_array_equal(pixels, np.from_dlpack(on_device))
        assert batch.copy().on_device is None
        batch.release()
        assert batch.released
        for gone in ("pixels", "on_device"):
            with pytest.raises(BatchReleased):
                getattr(batch, gone)


def test_a_device_that_is_not_cuda_offers_no_cuda_interface_and_a_cuda_one_does() -> None:
    placed = Placed("device")
    pixels = DevicePixels(placed, 4096, (1, 2, 6, 3), "bfloat16", 72)
    assert not hasattr(pixels, "__cuda_array_interface__")
    placed.memory.dlpack_device = (2, 1)
    interface = pixels.__cuda_array_interface__
    assert interface == {
        "shape": (1, 2, 6, 3), "typestr": "<u2", "data": (4096, False), "strides": None, "stream": None, "version": 3,
    }  # fmt: skip


def test_a_capsule_that_nobody_takes_frees_what_it_lent() -> None:
    from headrace.client import dlpack

    placed = Placed("device")
    pixels = DevicePixels(placed, placed.slot(0, 72), (1, 4, 6, 3), "uint8", 72)
    before = len(dlpack._lent)
    capsule = pixels.__dlpack__(stream=1)
    assert len(dlpack._lent) == before + 1
    del capsule
    assert len(dlpack._lent) == before
    tensor = torch.from_dlpack(pixels)
    assert len(dlpack._lent) == before + 1
    del tensor
    assert len(dlpack._lent) == before


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_jax_gets_its_own_copy_of_a_device_batch(dtype: str) -> None:
    pytest.importorskip("jax")
    from headrace.client.iterators.jax import as_arrays

    notes: list[tuple[str, int]] = []
    placed = Placed("device")
    with open_stream(placed, notes, dtype) as stream:
        kept = [(got.pixels, got.batch.copy()) for got in as_arrays(stream)]
    assert len(kept) == 10
    for pixels, batch in kept:
        assert str(pixels.dtype) == dtype
        np.testing.assert_array_equal(np.asarray(pixels, np.float32), batch.pixels.astype(np.float32))
