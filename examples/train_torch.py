"""Train a small CNN on one process, with batches from Headrace.

From a clone, in three terminals (`make demo` has made .venv and the data set):

    .venv/bin/headrace store
    .venv/bin/headrace coordinator
    .venv/bin/headrace worker

and in a fourth:

    .venv/bin/pip install torch
    .venv/bin/python examples/train_torch.py --coordinator 127.0.0.1:7300 --dataset demo-out/dataset

Any data set will do that `headrace index` has indexed. Prints the mean loss of each epoch, which goes down. With
`--checkpoint FILE` it saves the stream's state beside the model's, commits, and goes on from there when started again with more
--epochs. Exit status 1 if the loss did not go down.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import torch
from torch import nn

import headrace
from headrace.client.iterators.torch import as_tensors, normalize

SIZE = 64


def small_cnn(classes: int) -> nn.Module:
    """Three strided convolutions and a linear layer: about 25,000 parameters, seconds an epoch on one core."""
    widths = (3, 16, 32, 64)
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def pipeline() -> headrace.PipelineSpec:
    """Augmentation runs on the fleet; normalising uint8 pixels is left to the trainer's device."""
    return headrace.PipelineSpec(ops=(headrace.RandomResizedCrop((SIZE, SIZE), scale=(0.5, 1.0)), headrace.HorizontalFlip()))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    """One step; returns the loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(normalize(pixels)), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> int:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, help="host:port, or several with commas between")
    parser.add_argument("--dataset", required=True, help="what `headrace index` has indexed: a directory or an address")
    parser.add_argument("--job", default="example-torch", help="name of the job")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000, help="labels are below this number")
    parser.add_argument("--checkpoint", type=Path, help="file to save to and to go on from")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = small_cnn(options.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = None
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["stream"]

    means: list[float] = []
    with headrace.connect(options.coordinator) as client:
        job = client.job(options.job, dataset=options.dataset, batch_size=options.batch_size, pipeline=pipeline(), seed=1)
    with job.stream(epochs=options.epochs, state=state) as stream:
        for epoch in stream.epochs():
            losses = [train_step(model, optimizer, batch.pixels, batch.labels) for batch in as_tensors(stream, device)]
            means.append(sum(losses) / len(losses))
            print(f"epoch {epoch}: {len(losses)} steps, mean loss {means[-1]:.4f}", flush=True)
            if options.checkpoint:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "stream": stream.state_dict()}
                torch.save(parts, options.checkpoint)
                stream.commit()  # only what is saved: a run without a checkpoint begins at the start again
        stats = stream.stats()
    print(f"{stats.images} images, {stats.images_per_s:.0f} images/s, waited {stats.wait_s:.2f} s of {stats.elapsed_s:.2f} s")
    return 0 if len(means) < 2 or means[-1] < means[0] else 1


if __name__ == "__main__":
    sys.exit(main())
