"""PyTorch's DataLoader over a data set of files; what makes an image out of bytes is given by the driver that imports this."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from consumer import photo_paths
from torch.utils.data import DataLoader, Dataset, Sampler

Make = Callable[[bytes, str, int], np.ndarray]


class Photos(Dataset):
    """Map style: one photo, decoded and augmented."""

    def __init__(self, task: SimpleNamespace, make: Make) -> None:
        self.paths, self.work, self.size, self.make = photo_paths(task), task.work, task.size, make

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.make(Path(self.paths[index]).read_bytes(), self.work, self.size))


class Endless(Sampler):
    """Epoch after epoch of shuffled numbers, so that the loader never drains."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.count).tolist()


def batches(task: SimpleNamespace, make: Make) -> Iterator[np.ndarray]:
    """Batches by `task.threads` worker processes, collated by PyTorch in shared memory."""
    photos = Photos(task, make)
    loader = DataLoader(photos, task.batch, sampler=Endless(len(photos)), num_workers=task.threads, drop_last=True)
    for batch in loader:
        yield batch.numpy()
