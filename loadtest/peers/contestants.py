"""Who is measured, and on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = ""
DRIVERS = Path(__file__).with_name("drivers")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loader as it is measured.

    env: requirements under envs/, OURS for Headrace's own. driver: file under drivers/. fleet: whether the harness runs
    coordinator and worker beside it. antialias: whether its resize is antialiased. remark: what a reader must know. needs: what
    pip does not bring. main_only: measured on the first work alone.
    """

    name: str
    title: str
    env: str
    driver: str
    antialias: bool = True
    fleet: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""
    needs: str = ""
    main_only: bool = False

    @property
    def script(self) -> Path:
        """Its driver."""
        return DRIVERS / f"drive_{self.driver}.py"


CONTESTANTS = (
    Contestant(
        "headrace_shm",
        "**Headrace, shm**",
        OURS,
        "headrace",
        fleet=True,
        options={"transport": "shm"},
        remark="store, coordinator, worker and trainer processes, batches in shared memory",
    ),
    Contestant(
        "headrace_grpc",
        "**Headrace, gRPC**",
        OURS,
        "headrace",
        fleet=True,
        options={"transport": "grpc"},
        remark="the same, batches over gRPC on loopback, by a fetcher process",
    ),
    Contestant(
        "headrace_engine",
        "**Headrace, engine alone**",
        OURS,
        "headrace_engine",
        remark="in the consumer's process; no hand-over, no reading ahead",
    ),
    Contestant("torch_pillow", "PyTorch DataLoader, Pillow", "torch_pillow", "torch_pillow", remark="as torchvision does it"),
    Contestant(
        "torch_simplejpeg",
        "PyTorch DataLoader, simplejpeg and OpenCV",
        "torch_simplejpeg",
        "torch_simplejpeg",
        antialias=False,
        remark="INTER_LINEAR",
    ),
    Contestant(
        "webdataset", "WebDataset, Pillow", "webdataset", "webdataset", remark="tars, PyTorch's workers", main_only=True
    ),
    Contestant("dali", "DALI, CPU", "dali", "dali", remark="in the consumer's process"),
    Contestant(
        "tfdata",
        "tf.data",
        "tfdata",
        "tfdata",
        antialias=False,
        options={"antialias": False, "service": False},
        remark="in the consumer's process",
    ),
    Contestant(
        "tfdata_antialias",
        "tf.data, antialiased",
        "tfdata",
        "tfdata",
        options={"antialias": True, "service": False},
        remark="in the consumer's process, `antialias=True`",
        main_only=True,
    ),
    Contestant(
        "tfdata_service",
        "tf.data service",
        "tfdata",
        "tfdata",
        antialias=False,
        options={"antialias": False, "service": True},
        remark="dispatcher, worker and consumer processes, no compression",
    ),
    Contestant(
        "spdl",
        "SPDL",
        "spdl",
        "spdl",
        remark="threads in the consumer's process, FFmpeg's filters",
        needs="FFmpeg's libraries: apt-get install ffmpeg",
    ),
    Contestant("ray", "Ray Data, Pillow", "ray", "ray", remark="files read as bytes, `map_batches`", main_only=True),
    Contestant(
        "ffcv",
        "FFCV",
        "ffcv",
        "ffcv",
        remark="reads its own file of photos encoded anew (quality 90)",
        needs="a compiler and libraries: apt-get install libopencv-dev libturbojpeg0-dev pkg-config g++",
        main_only=True,
    ),
)
BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done.

    photos: data set. kind: what drivers do. batch: images. every: it takes part in each such round. only: some contestants.
    """

    name: str
    title: str
    photos: str
    kind: str
    batch: int
    every: int
    only: frozenset[str] = frozenset()


WORKS = (
    Work("train", "Training: random-resized-crop 224 and flip, photos of about 500x375", "small", "train", 256, 1),
    # Smaller batches, or a measurement would be over after a few.
    Work("large", "Training: random-resized-crop 224 and flip, photos of 1600x1200, batches of 64", "large", "train", 64, 2),
    Work(
        "dense",
        "Training as above, photos of about 500x375 nearly as heavy as those of ImageNet",
        "dense",
        "train",
        256,
        2,
        frozenset(("headrace_shm", "headrace_engine", "dali", "tfdata_service", "torch_pillow")),
    ),
    Work("eval", "Evaluation: resize to 256, centre crop 224, photos of about 500x375", "small", "eval", 256, 2),
)


def takes_part(contestant: Contestant, work: Work) -> bool:
    """Whether the contestant is measured on the work."""
    if work.only:
        return contestant.name in work.only
    return work is WORKS[0] or not contestant.main_only
