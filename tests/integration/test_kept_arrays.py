"""Arrays and tensors that a trainer keeps longer than it should: read without a crash, and their memory goes with the last."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from PIL import Image

from headrace.datasets.build import build_index
from headrace.testing.cluster import Cluster

pytest.importorskip("torch")
BATCH, SIDE = 4, 64

# Each trainer is a process of its own: a read of memory that is gone ends it by a signal.
TRAINER = """
import gc, os, signal, sys, time
from pathlib import Path
import numpy as np
import torch
import headrace
from headrace.client.iterators.torch import as_tensors, tensor_of

address, dataset, transport, ending, victim = sys.argv[1:]

def kept_of(batch):
    "All arrays and tensors that a batch gives without a copy, and some that hang on them."
    pixels = batch.pixels
    arrays = [pixels, pixels[1:, ::2], pixels.reshape(-1), pixels.view(np.int8), batch.labels, batch.mask, batch.status]
    arrays += [batch.sample_ids, batch.source_ids, np.asarray(memoryview(pixels)), np.from_dlpack(np.asarray(pixels))]
    tensors = [tensor_of(pixels, "uint8", alias=alias) for alias in (False, True)]
    return [*arrays, *tensors, torch.from_numpy(batch.labels), tensors[1].permute(0, 3, 1, 2), tensors[1].numpy()]

def read(kept):
    return [float(np.asarray(each).astype(np.float64).sum()) for each in kept]

def slabs():
    gc.collect()
    return sum("memfd:headrace" in line for line in Path("/proc/self/maps").read_text().splitlines())

def until(true):
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s, f"{slabs()} slabs are left"
        time.sleep(0.05)

with headrace.connect(address) as client:
    job = client.job(f"kept-{transport}-{ending}", dataset=dataset, batch_size=4, shuffle=headrace.Shuffle(mode="none"),
                     pipeline=headrace.PipelineSpec((headrace.CenterCrop((64, 64)),)))
stream = job.stream(transport=transport, epochs=200)
kept = []
if ending == "collected":
    for number, batch in enumerate(stream):
        kept += kept_of(batch)
        if number == 2:
            break
    del batch, stream
    gc.collect()
    until(lambda: read(kept) and not any(name.startswith("headrace") for name in map(
        lambda thread: thread.name, __import__("threading").enumerate())))
elif ending == "closed":
    with stream:
        for number, tensors in enumerate(as_tensors(stream, zero_copy=True)):
            kept += [*kept_of(tensors.batch), tensors.pixels, tensors.labels, tensors.mask]
            if number == 2:
                break
    del tensors
else:
    workers = set()
    with stream:
        batches = (batch for _ in stream.epochs() for batch in stream)
        while len(workers) < 2:
            batch = next(batches)
            workers.add(batch.worker)
            kept += kept_of(batch)
        os.kill(int(victim), signal.SIGKILL)
        workers.clear()
        for _ in range(40):
            workers.add(next(batches).worker)
            read(kept)
        if transport == "shm":
            time.sleep(1)
            assert slabs() == 2, "the dead worker's is still read"
            del batch
            kept.clear()
            until(lambda: slabs() == 1 and next(batches))
            kept += kept_of(next(batches))
    del batches
time.sleep(1.5)  # a worker may have been at a batch of its slab, and threads of the stream are at their end by now
values = read(kept)
time.sleep(0.3)
assert read(kept) == values
assert slabs() >= 1
pixels = kept[0]
kept.clear()
batch = None
assert slabs() == 1, "one array keeps one slab"
assert float(np.asarray(pixels).astype(np.float64).sum()) == values[0]
del pixels
assert slabs() == 0, "with the last array its memory goes"
print("read")
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator and two workers, of which a trainer may kill the second."""
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of small PNGs of two classes."""
    root = tmp_path_factory.mktemp("dataset")
    for number in range(48):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number, 2 * number, 255 - number)).save(folder / f"{number:04d}.png")
    asyncio.run(build_index(str(root)))
    return str(root)


@pytest.mark.parametrize("ending", ["closed", "collected", "worker-killed"])
@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_what_is_kept_is_read_without_a_crash_and_its_memory_goes_with_the_last(
    fleet: Cluster, dataset: str, transport: str, ending: str
) -> None:
    victim = str(fleet.workers[1].running.pid)
    command = [sys.executable, "-c", TRAINER, fleet.addresses, dataset, transport, ending, victim]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ending == "worker-killed":
        fleet.restart_worker(1)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr[-3000:]
