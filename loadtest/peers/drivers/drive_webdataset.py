"""WebDataset over the tars, with Pillow as torchvision does it, in PyTorch's workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pillow_ops
import torch
import webdataset as wds
from consumer import main, photo_paths


def batches(task):
    """See consumer.Batches."""

    def make(sample):
        return torch.from_numpy(pillow_ops.make(sample["jpg"], task.work, task.size))

    tars = sorted(str(path) for path in Path(task.tars).glob("*.tar"))
    data = wds.WebDataset(tars, shardshuffle=len(tars), resampled=False, empty_check=False, nodesplitter=None)
    data = data.repeat().shuffle(1000).map(make).batched(task.batch, collation_fn=torch.stack, partial=False)
    for batch in wds.WebLoader(data, batch_size=None, num_workers=task.threads):
        yield batch.numpy()


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths = photo_paths(task)
    made = (pillow_ops.given(Path(paths[n]).read_bytes(), tuple(box), flip, task.work, task.size) for n, *box, flip in cuts)
    return np.stack(list(made))


if __name__ == "__main__":
    main(batches, pixels)
