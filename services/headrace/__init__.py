"""Headrace brings ready image batches to trainers: every sample exactly once, the same batch anywhere, every wait explained.

```python
import headrace

with headrace.connect("127.0.0.1:7300") as client:
    job = client.job("train", dataset="/data/imagenet/manifest.json", batch_size=256)
with job.stream(rank=0, world=1, epochs=2) as stream:
    for epoch in stream.epochs():
        for batch in stream:
            step(batch.pixels, batch.labels)
```

Light: numpy and the standard library; gRPC is imported by `connect`, torch and jax by their iterators.
"""

from headrace.client.batch import Batch, Substitution
from headrace.client.connect import Client, Job, connect
from headrace.client.diagnose import diagnose
from headrace.client.stream import Stream, StreamStats
from headrace.core import errors
from headrace.core.errors import HeadraceError
from headrace.core.job import JobSpec, Shuffle, StreamState
from headrace.core.pipeline_spec import (
    CenterCrop,
    ColorJitter,
    Decode,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    Normalize,
    Op,
    Output,
    PipelineSpec,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)

__all__ = [
    "Batch",
    "CenterCrop",
    "Client",
    "ColorJitter",
    "Decode",
    "GaussianBlur",
    "Grayscale",
    "HeadraceError",
    "HorizontalFlip",
    "Job",
    "JobSpec",
    "Normalize",
    "Op",
    "Output",
    "PipelineSpec",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Shuffle",
    "Stream",
    "StreamState",
    "StreamStats",
    "Substitution",
    "VerticalFlip",
    "connect",
    "diagnose",
    "errors",
]
