"""PyTorch DataLoader with Pillow, as torchvision does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pillow_ops
import torch_loader
from consumer import main, photo_paths


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths = photo_paths(task)
    made = (pillow_ops.given(Path(paths[n]).read_bytes(), tuple(box), flip, task.work, task.size) for n, *box, flip in cuts)
    return np.stack(list(made))


if __name__ == "__main__":
    main(lambda task: torch_loader.batches(task, pillow_ops.make), pixels)
