"""A step for `headrace diagnose`: the small CNN of train_torch.py on a model that is thrown away.

With a store, a coordinator and a worker as for train_torch.py, in this directory:

    ../.venv/bin/headrace diagnose ../demo-out/dataset --batch-size 64 --step diagnose_step:step

Put your own model and optimizer in place of these two, and the step says of your training whether input holds it up.
"""

from __future__ import annotations

import torch
from train_torch import small_cnn, train_step

import headrace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODEL = small_cnn(1000).to(DEVICE)
OPTIMIZER = torch.optim.AdamW(MODEL.parameters(), lr=3e-3)


def step(batch: headrace.Batch) -> None:
    """Copy a batch to the device and train on it, as the loop of a training does."""
    pixels = torch.from_numpy(batch.pixels.copy()).to(DEVICE)
    train_step(MODEL, OPTIMIZER, pixels, torch.from_numpy(batch.labels).to(DEVICE))
