"""Train the small CNN on two ranks with DistributedDataParallel, each with its own share of every epoch.

With a store, a coordinator and a worker as for train_torch.py:

    .venv/bin/torchrun --nproc-per-node 2 examples/train_ddp.py --coordinator 127.0.0.1:7300 --dataset demo-out/dataset

Without torchrun, `--spawn 2` starts the ranks itself, as processes of their own. All ranks get the same number of steps in
every epoch, so no all-reduce is ever left waiting: no join context, no drop of a last batch by hand. Rank 0 prints the mean
loss of each epoch over all ranks. Exit status 1 if it did not go down. No checkpoint is saved, so nothing is committed either,
and each run begins at the start; train_torch.py shows how to go on.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train_torch import pipeline, small_cnn, train_step

import headrace
from headrace.client.iterators.torch import as_tensors

SPAWN_DEADLINE_S = 600


def main() -> int:
    """Be one rank, or start all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, help="host:port, or several with commas between")
    parser.add_argument("--dataset", required=True, help="what `headrace index` has indexed: a directory or an address")
    parser.add_argument("--job", default="example-ddp", help="name of the job")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--classes", type=int, default=1000, help="labels are below this number")
    parser.add_argument("--spawn", type=int, default=0, metavar="RANKS", help="start so many ranks on this machine")
    options = parser.parse_args()
    return spawn(options.spawn) if options.spawn and "RANK" not in os.environ else train(options)


def spawn(world: int) -> int:
    """Start the ranks with the variables that torchrun would set; returns the worst exit status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**common, "RANK": str(rank)})  # noqa: S603 - this very command
        for rank in range(world)
    ]
    try:
        return max(abs(process.wait(SPAWN_DEADLINE_S)) for process in ranks)
    finally:
        for process in ranks:
            process.kill()


def train(options: argparse.Namespace) -> int:
    """One rank."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if backend == "nccl" else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(small_cnn(options.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    means: list[float] = []
    with headrace.connect(options.coordinator) as client:
        job = client.job(
            options.job, dataset=options.dataset, batch_size=options.batch_size, pipeline=pipeline(), seed=1, world=world
        )
    with job.stream(rank=rank, world=world, epochs=options.epochs) as stream:
        for epoch in stream.epochs():
            losses = [train_step(model, optimizer, batch.pixels, batch.labels) for batch in as_tensors(stream, device)]
            mean = torch.tensor([sum(losses) / len(losses)], device=device)
            dist.all_reduce(mean)
            means.append(mean.item() / world)
            if rank == 0:
                print(f"epoch {epoch}: {len(losses)} steps on each of {world} ranks, mean loss {means[-1]:.4f}", flush=True)
        stats = stream.stats()
    print(
        f"rank {rank}: {stats.images} images by {stats.transport}, waited {stats.wait_s:.2f} s of {stats.elapsed_s:.2f} s",
        flush=True,
    )
    dist.destroy_process_group()
    return 0 if len(means) < 2 or means[-1] < means[0] else 1


if __name__ == "__main__":
    sys.exit(main())
