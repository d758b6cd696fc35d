"""An example of a trainer, run by the chart's example Job: takes batches, trains nothing, and says how fast they came.

TLS and the job's token come from HEADRACE_* variables, see client.security.SecurityOptions. A rank is one pod of an indexed
Job.
"""

import argparse
import os
import signal
import sys

import headrace

# Process 1 of a container has no default for SIGTERM: without this it would go on until it is killed, and with it its sidecar,
# which drains after it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--coordinator", required=True)
parser.add_argument("--dataset", required=True)
parser.add_argument("--job", required=True)
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--world", type=int, required=True)
parser.add_argument("--transport", choices=["auto", "shm", "grpc"], default="auto")
options = parser.parse_args()
rank = int(os.environ.get("JOB_COMPLETION_INDEX", "0"))

with headrace.connect(options.coordinator) as client:
    job = client.job(options.job, dataset=options.dataset, batch_size=options.batch_size, world=options.world)
with job.stream(rank=rank, world=options.world, epochs=options.epochs, transport=options.transport) as stream:
    for epoch in stream.epochs():
        for batch in stream:
            batch.pixels.mean()  # here a training step would be
        stream.commit()
        stats = stream.stats()
        speed = f"{stats.images} images, {stats.images_per_s:.0f} images/s, {stats.transport}"
        print(f"rank {rank}, epoch {epoch}: {speed}", flush=True)
        print(f"waited {stats.wait_s:.2f} s of {stats.elapsed_s:.2f} s", flush=True)
