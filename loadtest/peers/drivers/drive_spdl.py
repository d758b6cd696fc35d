"""SPDL: threads that decode, cut and scale by FFmpeg; images become batches in SPDL's own buffers."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import spdl.io
from consumer import main, photo_paths
from cuts import CENTER, SHORTER, random_box
from spdl.pipeline import PipelineBuilder

SCALE_FLAGS = "flags=bilinear"


def _filters(box, mirrored, size):
    top, left, height, width = box
    flip = ",hflip" if mirrored else ""
    return f"format=rgb24,crop={width}:{height}:{left}:{top}:exact=1,scale={size}:{size}:{SCALE_FLAGS}{flip}"


def _evaluation():
    scale = f"scale={SHORTER}:{SHORTER}:force_original_aspect_ratio=increase:{SCALE_FLAGS}"
    return f"format=rgb24,{scale},crop={CENTER}:{CENTER}"


def _frame(path, filters):
    data = Path(path).read_bytes()
    packets = spdl.io.demux_image(data)
    return spdl.io.decode_packets(packets, filter_desc=filters)


def _size(data):
    """(height, width) from the JPEG's header, which FFmpeg's filters need to know before the cut."""
    at = 2
    while True:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
        at += 2 + length


def batches(task):
    """See consumer.Batches."""

    def source():
        paths = photo_paths(task)
        while True:
            random.shuffle(paths)
            yield from paths

    def make(path):
        data = Path(path).read_bytes()
        train = task.work == "train"
        filters = _filters(random_box(*_size(data)), random.random() < 0.5, task.size) if train else _evaluation()
        return spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=filters)

    builder = PipelineBuilder().add_source(source()).pipe(make, concurrency=task.threads)
    builder = builder.aggregate(task.batch, drop_last=True).pipe(spdl.io.convert_frames).add_sink(2)
    pipeline = builder.build(num_threads=task.threads)
    with pipeline.auto_stop():
        for buffer in pipeline:
            yield spdl.io.to_numpy(buffer)


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths, frames = photo_paths(task), []
    for number, *box, mirrored in cuts:
        filters = _filters(box, mirrored, task.size) if task.work == "train" else _evaluation()
        frames.append(_frame(paths[number], filters))
    return np.array(spdl.io.to_numpy(spdl.io.convert_frames(frames)))


if __name__ == "__main__":
    main(batches, pixels)
