"""Ray Data: files read as bytes, Pillow as torchvision does it in Ray's tasks, batches by iter_batches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_DEDUP_LOGS": "0"}

import numpy as np
import pillow_ops
import ray
from consumer import main, photo_paths

STORE_BYTES = 2 << 30
PART = 128  # rows a call of the transform
SPARE = 8192  # images beyond those that are measured: Ray's iterator ends with its data set, and lists it all at first


def batches(task):
    """See consumer.Batches."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        quiet = {"include_dashboard": False, "log_to_driver": False}
        ray.init(num_cpus=task.threads, object_store_memory=STORE_BYTES, _temp_dir=folder, **quiet)
        try:
            ray.data.DataContext.get_current().enable_progress_bars = False

            def make(rows):
                made = [pillow_ops.make(data, task.work, task.size) for data in rows["bytes"]]
                return {"pixels": np.stack(made)}

            rng = np.random.default_rng()
            paths = [
                path
                for _ in range(-(-(task.images + SPARE) // task.photos))
                for path in rng.permutation(photo_paths(task)).tolist()
            ]
            data = ray.data.read_binary_files(paths, override_num_blocks=-(-len(paths) // 512), shuffle=None)
            data = data.map_batches(make, batch_size=PART)
            for batch in data.iter_batches(batch_size=task.batch, batch_format="numpy", drop_last=True):
                yield batch["pixels"]
        finally:
            ray.shutdown()


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths = photo_paths(task)
    made = (pillow_ops.given(Path(paths[n]).read_bytes(), tuple(box), flip, task.work, task.size) for n, *box, flip in cuts)
    return np.stack(list(made))


if __name__ == "__main__":
    main(batches, pixels)
