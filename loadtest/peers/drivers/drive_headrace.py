"""Headrace's trainer: batches of a running fleet (coordinator, worker), over the transport that the task names."""

from __future__ import annotations

import numpy as np
from consumer import main
from headrace_job import SEED, spec

import headrace


def _stream(task, epochs):
    with headrace.connect(task.coordinators) as client:
        pipeline = spec(task.work, task.size)
        job = client.job(f"peers-{task.work}", dataset=task.tars, batch_size=task.batch, pipeline=pipeline, seed=SEED)
    return job.stream(transport=task.options["transport"], epochs=epochs)


def batches(task):
    """See consumer.Batches."""
    with _stream(task, 0) as stream:
        for _ in stream.epochs():
            for batch in stream:
                yield batch.pixels


def pixels(task, cuts):
    """See consumer.Pixels: rows of epoch 0, whose cuts are those."""
    row_of = {number: row for row, (number, *_) in enumerate(cuts)}
    out = np.zeros((len(cuts), task.size, task.size, 3), np.uint8)
    seen = set()
    with _stream(task, 1) as stream:
        for batch in stream:
            for place, number in enumerate(batch.sample_ids.tolist()):
                if number in row_of:
                    out[row_of[number]] = batch.pixels[place]
                    seen.add(number)
    if seen != set(row_of):
        raise SystemExit(f"epoch 0 lacks {len(row_of) - len(seen)} of the photos: their number must be a multiple of a batch")
    return out


if __name__ == "__main__":
    main(batches, pixels)
