"""Headrace's `cpu` engine alone, in the consuming process: files read, batches made one after the other, nothing overlapped."""

from __future__ import annotations

import numpy as np
from consumer import main, photo_paths
from headrace_job import SEED, spec

from headrace.worker.engines.protocol import Sample
from headrace.worker.engines.registry import create


def _prepared(task):
    return create("cpu", task.threads).prepare(spec(task.work, task.size), SEED)


def _read(path):
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a third of the time that Path.read_bytes takes
        return file.read()


def _run(prepared, task, paths, numbers, epoch):
    out = np.empty((len(numbers), task.size, task.size, 3), np.uint8)
    _fill(prepared, paths, numbers, epoch, out)
    return out


def _fill(prepared, paths, numbers, epoch, out):
    samples = [Sample(number, str(number), _read(paths[number])) for number in numbers]
    result = prepared.run(samples, [(epoch, number) for number in numbers], memoryview(out.reshape(-1)))
    assert not result.reasons.any()


def batches(task):
    """See consumer.Batches."""
    prepared, paths, rng = _prepared(task), photo_paths(task), np.random.default_rng(SEED)
    out = np.empty((task.batch, task.size, task.size, 3), np.uint8)
    epoch = 0
    while True:
        order = rng.permutation(task.photos).tolist()
        for first in range(0, task.photos - task.batch + 1, task.batch):
            _fill(prepared, paths, order[first : first + task.batch], epoch, out)
            yield out
        epoch += 1


def pixels(task, cuts):
    """See consumer.Pixels. The cuts are those that the engine itself draws in epoch 0."""
    return _run(_prepared(task), task, photo_paths(task), [number for number, *_ in cuts], 0)


if __name__ == "__main__":
    main(batches, pixels)
