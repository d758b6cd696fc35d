"""DALI's CPU pipeline on the work that loadtest.native gives it, a round for each line read; run in DALI's own environment.

    python native_dali.py WORK.npz

Needs numpy and nvidia-dali-cuda120 (or another build of DALI; no GPU is used). Prints CPU seconds of each round; at the end of
its input it writes the pixels of the last round to WORK.out.npy.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from nvidia.dali import fn, pipeline_def, types


def main(path: str) -> None:
    """Serve rounds until the input ends."""
    work = np.load(path)
    files = np.split(work["bytes"], np.cumsum(work["lengths"])[:-1])
    boxes, flips, size = work["boxes"].astype(np.int32), work["flips"].astype(np.int32), int(work["size"])
    count = len(boxes)

    def feed():
        encoded = [files[i % len(files)] for i in range(count)]
        return encoded, list(boxes[:, :2]), list(boxes[:, 2:]), list(flips)

    @pipeline_def(
        batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False
    )
    def pipeline():
        encoded, corner, shape, flip = fn.external_source(source=feed, num_outputs=4, batch=True)
        cut = fn.decoders.image_slice(
            encoded, corner, shape, axis_names="HW", normalized_anchor=False, normalized_shape=False, output_type=types.RGB
        )
        scaled = fn.resize(cut, size=[size, size], antialias=True, interp_type=types.INTERP_LINEAR)
        return fn.flip(scaled, horizontal=flip)

    pipe = pipeline()
    pipe.build()
    out = None
    for _ in sys.stdin:
        began = time.process_time()
        (out,) = pipe.run()
        print(time.process_time() - began, flush=True)
    if out is not None:
        np.save(path + ".out.npy", out.as_array())


if __name__ == "__main__":
    main(sys.argv[1])
