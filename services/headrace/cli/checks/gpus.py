"""The NVIDIA driver, each GPU, and whether its memory can be shared with trainers."""

from __future__ import annotations

import os

from headrace.cli.checks.finding import Finding
from headrace.core.errors import TransportUnavailable
from headrace.core.placement import Gpu, Machine, gib

_SUBJECT = "GPUs"
_ON_CPU = "without a GPU all runs on the CPU, and batches reach trainers by shm or grpc"


def check(machine: Machine) -> list[Finding]:
    """A line for the driver, one for each GPU, one for cuda_ipc."""
    if not machine.gpus:
        name = "GPU" if machine.driver else "driver"
        found = f"driver {machine.driver}, no GPU" if machine.driver else "none"
        return [
            Finding(_SUBJECT, name, "note", found, f"{machine.no_gpus[:1].upper()}{machine.no_gpus[1:]}; {_ON_CPU}"),
            Finding(_SUBJECT, "cuda_ipc", "note", "not possible", f"It needs a GPU; {_ON_CPU}"),
        ]
    cuda = f", runs CUDA {machine.cuda[0]}.{machine.cuda[1]}" if machine.cuda > (0, 0) else ""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = f"; CUDA_VISIBLE_DEVICES={setting}" if setting is not None else ""
    driver = Finding(_SUBJECT, "driver", "ok", f"{machine.driver}{cuda}{shown}")
    return [driver, *map(_gpu, machine.gpus), *_sharing(machine.gpus)]


def _gpu(gpu: Gpu) -> Finding:
    jpeg = {True: "hardware JPEG decoder", False: "no hardware JPEG decoder", None: "JPEG decoder not told"}[gpu.jpeg]
    capability = f", compute capability {gpu.capability[0]}.{gpu.capability[1]}" if gpu.capability > (0, 0) else ""
    found = f"{gpu.name}, {gpu.uuid}, {gib(gpu.free_bytes)} of {gib(gpu.total_bytes)} GiB free, {jpeg}{capability}"
    name = f"GPU {gpu.index}"
    if gpu.mig:
        return Finding(
            _SUBJECT, name, "note", found, "A MIG slice's memory cannot be shared with another slice: trainers on it use shm"
        )
    return Finding(_SUBJECT, name, "ok", found)


def _sharing(gpus: tuple[Gpu, ...]) -> list[Finding]:
    """CUDA is asked in this process; no memory of a GPU is taken for it."""
    found = []
    for ordinal, gpu in enumerate(gpus):
        name = f"cuda_ipc, GPU {gpu.index}"
        try:
            from headrace.wire.cuda_device import open_device

            device = open_device(ordinal)
        except (TransportUnavailable, ImportError) as error:
            text = error.message if isinstance(error, TransportUnavailable) else f"{error.name} is not installed"
            found.append(Finding(_SUBJECT, name, "note", "not possible", f"{text[:1].upper()}{text[1:]}; batches go by shm"))
            continue
        if device.lacks:
            advice = (
                f"{device.lacks[:1].upper()}{device.lacks[1:]}: legacy handles are used, and a dead worker's batches are lost"
            )
            found.append(Finding(_SUBJECT, name, "note", "legacy handles alone", advice))
        else:
            found.append(Finding(_SUBJECT, name, "ok", "virtual memory by file descriptors, else legacy handles"))
    return found
