"""DALI's CPU pipeline: files, fused decode and random crop, antialiased resize, flip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from consumer import main, photo_paths
from cuts import CENTER, RATIO, SCALE, SHORTER, TRIES
from nvidia.dali import fn, pipeline_def, types


def _scaled(image, **how):
    return fn.resize(image, interp_type=types.INTERP_LINEAR, antialias=True, **how)


def _evaluated(encoded):
    image = _scaled(fn.decoders.image(encoded, device="cpu", output_type=types.RGB), resize_shorter=SHORTER)
    return fn.crop(image, crop=(CENTER, CENTER))


def batches(task):
    """See consumer.Batches."""

    @pipeline_def(batch_size=task.batch, num_threads=task.threads, device_id=None)
    def pipeline():
        encoded, _ = fn.readers.file(files=photo_paths(task), random_shuffle=True)
        if task.work != "train":
            return _evaluated(encoded)
        image = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=SCALE,
            random_aspect_ratio=RATIO,
            num_attempts=TRIES,
        )
        return fn.flip(_scaled(image, size=(task.size, task.size)), horizontal=fn.random.coin_flip())

    pipe = pipeline()
    pipe.build()
    while True:
        (batch,) = pipe.run()
        yield np.array(batch.as_tensor(), copy=False)


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths = photo_paths(task)

    def feed():
        data = [np.fromfile(Path(paths[number]), np.uint8) for number, *_ in cuts]
        boxes = np.array(cuts, np.int32)
        return data, list(boxes[:, 1:3]), list(boxes[:, 3:5]), list(boxes[:, 5])

    @pipeline_def(batch_size=len(cuts), num_threads=task.threads, device_id=None)
    def pipeline():
        encoded, corner, shape, mirrored = fn.external_source(source=feed, num_outputs=4, batch=True)
        if task.work != "train":
            return _evaluated(encoded)
        image = fn.decoders.image_slice(
            encoded, corner, shape, axis_names="HW", normalized_anchor=False, normalized_shape=False, output_type=types.RGB
        )
        return fn.flip(_scaled(image, size=(task.size, task.size)), horizontal=mirrored)

    pipe = pipeline()
    pipe.build()
    (out,) = pipe.run()
    return out.as_array()


if __name__ == "__main__":
    main(batches, pixels)
