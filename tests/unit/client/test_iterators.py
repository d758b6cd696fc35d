"""Torch and jax get what numpy gets, without warnings and without aliases that outlive the slot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace.client.batch import Batch
from headrace.client.options import StreamOptions
from headrace.client.stream import Stream
from headrace.core.errors import BatchFailed
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import CenterCrop, Output, PipelineSpec
from headrace.testing.memory_stream import MemoryLink, memory_stream

torch = pytest.importorskip("torch")
DTYPES = ["uint8", "float16", "bfloat16", "float32"]
LAYOUTS = ["NHWC", "NCHW"]


def open_stream(dtype: str = "uint8", layout: str = "NHWC", epochs: int = 1, **kwargs: Any) -> Stream:
    pipeline = PipelineSpec((CenterCrop((2, 6)),), Output(dtype=dtype, layout=layout))  # type: ignore[arg-type]
    job = JobSpec("train", "/data", 4, pipeline, samples=20, tail="pad")

    def images(ids: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        ramp = np.arange(36).reshape(pipeline.shape(1))
        return (ids[:, None, None, None] + ramp) % 251

    return memory_stream(job, images, options=StreamOptions(epochs=epochs), **kwargs)


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_copy", [False, True])
def test_torch_tensors_equal_the_numpy_pixels(dtype: str, layout: str, zero_copy: bool) -> None:
    from headrace.client.iterators.torch import as_tensors

    with open_stream(dtype, layout) as stream:
        steps = 0
        for got in as_tensors(stream, zero_copy=zero_copy):
            assert str(got.pixels.dtype) == f"torch.{dtype}"
            assert tuple(got.pixels.shape) == got.batch.pixels.shape
            np.testing.assert_array_equal(got.pixels.float().numpy(), got.batch.pixels.astype(np.float32))
            np.testing.assert_array_equal(got.labels.numpy(), got.batch.labels)
            assert got.mask.tolist() == got.batch.mask.tolist()
            same = got.pixels.data_ptr() == got.batch.pixels.__array_interface__["data"][0]
            assert same == zero_copy
            steps += 1
    assert steps == 5


def test_a_torch_tensor_may_be_written_to_and_stays() -> None:
    from headrace.client.iterators.torch import as_tensors

    with open_stream() as stream:
        kept = [(got.pixels, got.pixels.clone(), got.batch.copy()) for got in as_tensors(stream)]
    for tensor, clone, copy in kept:
        assert torch.equal(tensor, clone)
        np.testing.assert_array_equal(tensor.numpy(), copy.pixels)
        tensor.zero_()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normalize_is_the_formula(layout: str) -> None:
    from headrace.client.iterators.torch import normalize

    shape = (2, 5, 7, 3) if layout == "NHWC" else (2, 3, 5, 7)
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    nchw = pixels.transpose(0, 3, 1, 2) if layout == "NHWC" else pixels
    wanted = (nchw / 255 - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    got = normalize(torch.from_numpy(pixels), mean, std, layout=layout)
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last) == (layout == "NHWC")


class Recorder:
    """A stager on the CPU that notes in which order batches are begun and finished."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def begin(self, batch: Batch) -> Any:
        from headrace.client.iterators.ahead import Copied
        from headrace.client.iterators.torch import TensorBatch, tensor_of

        self.events.append(("begin", batch.index))
        tensors = TensorBatch(tensor_of(batch.pixels, batch.dtype), None, torch.from_numpy(batch.mask), batch)

        def finish() -> TensorBatch:
            self.events.append(("finish", batch.index))
            return tensors

        return Copied(finish, None)


def test_copies_run_one_ahead_without_counting_the_next_batch() -> None:
    from headrace.client.iterators.torch import ahead

    stager = Recorder()
    with open_stream(epochs=2) as stream:
        for number, got in enumerate(ahead(stream, stager)):
            assert got.batch.index == number == stream.stats().batches - 1
            np.testing.assert_array_equal(got.pixels.numpy(), got.batch.pixels)
            begun = [index for kind, index in stager.events if kind == "begin"]
            assert begun == list(range(min(number + 2, 5)))
        assert stream.state_dict()["epoch"] == 1
        assert len(list(ahead(stream, stager))) == 5
    assert [index for kind, index in stager.events if kind == "finish"] == list(range(10))


def test_a_batch_that_is_late_is_copied_when_it_comes() -> None:
    from headrace.client.iterators.torch import ahead

    links: list[MemoryLink] = []
    stager = Recorder()
    with open_stream(on_link=links.append) as stream:
        stream.join()
        links[0].intake.let(1)
        batches = ahead(stream, stager)
        next(batches)
        assert stager.events == [("begin", 0), ("finish", 0)]
        links[0].intake.let(None)
        assert [got.batch.index for got in batches] == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_arrays_equal_the_numpy_pixels_and_stay(dtype: str, layout: str) -> None:
    pytest.importorskip("jax")
    from headrace.client.iterators.jax import as_arrays

    kept = []
    with open_stream(dtype, layout) as stream:
        for got in as_arrays(stream):
            assert str(got.pixels.dtype) == dtype
            assert got.labels is not None
            assert got.labels.tolist() == got.batch.labels.tolist()  # type: ignore[union-attr]
            kept.append((got.pixels, got.batch.copy(), got.mask))
    assert len(kept) == 5
    for pixels, copy, mask in kept:
        np.testing.assert_array_equal(np.asarray(pixels, np.float32), copy.pixels.astype(np.float32))
        assert mask.tolist() == copy.mask.tolist()


def one_ahead(stream: Stream) -> Iterator[Any]:
    from headrace.client.iterators.ahead import ahead

    return ahead(stream, Recorder())


def on_torch(stream: Stream) -> Iterator[Any]:
    from headrace.client.iterators.torch import as_tensors

    return as_tensors(stream)


def on_meta_device(stream: Stream) -> Iterator[Any]:
    from headrace.client.iterators.torch import as_tensors

    return as_tensors(stream, "meta")


def on_jax(stream: Stream) -> Iterator[Any]:
    pytest.importorskip("jax")
    from headrace.client.iterators.jax import as_arrays

    return as_arrays(stream)


@pytest.mark.parametrize("open_iterator", [iter, one_ahead, on_torch, on_meta_device, on_jax])
def test_an_error_ends_no_iterator_and_the_next_next_goes_on_with_the_same_batch(
    open_iterator: Callable[[Stream], Iterator[Any]],
) -> None:
    links: list[MemoryLink] = []
    with open_stream(on_link=links.append) as stream:
        stream.join()
        links[0].intake.broken[2] = BatchFailed("its shard is gone", batch=2)
        batches = open_iterator(stream)
        for _ in range(2):
            next(batches)
        for _ in range(2):
            with pytest.raises(BatchFailed):
                next(batches)
        links[0].intake.broken.clear()
        assert [index_of(got) for got in batches] == [2, 3, 4]


def test_an_iterator_whose_epoch_is_over_stays_so_and_leaves_the_next_epochs_batch_alone() -> None:
    with open_stream(epochs=2) as stream:
        over = iter(stream)
        assert len(list(over)) == 5
        batch = next(iter(stream))
        assert next(over, None) is None
        assert batch.epoch == 1 and not batch.released
    assert next(over, None) is None


def index_of(got: Any) -> int:
    batch = got if isinstance(got, Batch) else got.batch
    return batch.index
