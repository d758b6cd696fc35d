"""Which engine a machine should run, and why: what is there goes in, a choice in words comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Fastest first. `cpu` is the last resort: it runs anywhere that the package is installed with its extra `worker`.
GPU_ENGINES = ("cvcuda", "dali-gpu")
# A CUDA context, the decoders' buffers and a slab of slots: with less, the first large batch fails.
GPU_NEEDS_BYTES = 2 << 30
# What the libraries are built for: CUDA 12, and GPUs from Volta on.
LEAST_CUDA = (12, 0)
LEAST_CAPABILITY = (7, 0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG slice of one, as NVML tells of it.

    index: NVML's, of the whole GPU. jpeg: whether it reports how busy a hardware JPEG decoder is; None: it was not told.
    capability: (0, 0) where unknown. mig: a slice, whose memory cannot be shared with another process.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    jpeg: bool | None = None
    capability: tuple[int, int] = (0, 0)
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is for engines.

    gpus: those that this process may use, in CUDA's order: the first is the one that a worker uses. no_gpus: why there are
    none, as a sentence's end. driver: its version. cuda: newest version that it runs, (0, 0) if unknown. missing: engine ->
    what it lacks here; an engine without an entry can be made. without_native: why `cpu` has no native core; empty: it has.
    """

    cores: int
    gpus: tuple[Gpu, ...] = ()
    no_gpus: str = ""
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    missing: Mapping[str, str] = field(default_factory=dict)
    without_native: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine, and why that one. gpu: what it runs on; None: the CPU. passed_over: (engine, why not), best first."""

    engine: str
    reason: str
    gpu: Gpu | None = None
    passed_over: tuple[tuple[str, str], ...] = ()


def choose(machine: Machine) -> Choice:
    """The fastest engine that can run on this machine. Never fails: whether even `cpu` can be made shows when it is."""
    passed_over: list[tuple[str, str]] = []
    for engine in GPU_ENGINES:
        if why_not := unfit(machine, engine):
            passed_over.append((engine, why_not))
            continue
        gpu = machine.gpus[0]
        return Choice(engine, _on_gpu(machine, gpu), gpu, tuple(passed_over))
    return Choice("cpu", _on_cpu(machine, passed_over), None, tuple(passed_over))


def unfit(machine: Machine, engine: str) -> str:
    """Why a GPU engine cannot or should not run here; empty where it can."""
    if not machine.gpus:
        return machine.no_gpus or "there is no GPU"
    gpu = machine.gpus[0]
    if (0, 0) < machine.cuda < LEAST_CUDA:
        return f"driver {machine.driver} runs CUDA {_dotted(machine.cuda)} at most, and {_dotted(LEAST_CUDA)} is needed"
    if (0, 0) < gpu.capability < LEAST_CAPABILITY:
        return f"{gpu.name} has compute capability {_dotted(gpu.capability)}, and {_dotted(LEAST_CAPABILITY)} is needed"
    if lacking := machine.missing.get(engine):
        return lacking
    if gpu.free_bytes < GPU_NEEDS_BYTES:
        return f"{gpu.name} has {gib(gpu.free_bytes)} of {gib(gpu.total_bytes)} GiB free, and {gib(GPU_NEEDS_BYTES)} are needed"
    return ""


def visible(gpus: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """Those of NVML's GPUs that CUDA shows to a process, in its order. setting: CUDA_VISIBLE_DEVICES, None where it is not set.

    As CUDA reads it: numbers, or the beginnings of UUIDs; what follows an entry that names none, or one a second time, is
    not shown. Numbers are taken in NVML's order, which CUDA keeps among GPUs of one kind; a GPU that is cut into MIG slices
    gives its first.
    """
    if setting is None:
        return gpus
    shown: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal():
            named = [gpu for gpu in gpus if gpu.index == int(entry)][:1]
        else:
            named = [gpu for gpu in gpus if entry.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(entry)]
        if len(named) != 1 or named[0] in shown:
            break
        shown.append(named[0])
    return tuple(shown)


def engine_of(fingerprint: str) -> str:
    """The engine's name, which a fingerprint begins with: `dali-gpu` of `dali-gpu-1;dali=2.4.0`."""
    return fingerprint.partition(";")[0].rpartition("-")[0]


def gib(count: int) -> str:
    """Bytes in GiB, as messages have them."""
    return f"{count / 2**30:.1f}"


def _on_gpu(machine: Machine, gpu: Gpu) -> str:
    decoder = {True: "with a hardware JPEG decoder", False: "without a hardware JPEG decoder", None: "JPEG decoder unknown"}
    text = f"GPU {gpu.index}, {gpu.name}, {decoder[gpu.jpeg]}, {gib(gpu.free_bytes)} of {gib(gpu.total_bytes)} GiB free"
    others = len(machine.gpus) - 1
    if others:
        text += f"; {others} more GPU{'s are' if others > 1 else ' is'} not used: a worker uses one (CUDA_VISIBLE_DEVICES)"
    return text


def _on_cpu(machine: Machine, passed_over: list[tuple[str, str]]) -> str:
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    native = f"without the native core ({machine.without_native})" if machine.without_native else "with the native core"
    reasons = dict.fromkeys(why for _, why in passed_over)
    why = next(iter(reasons)) if len(reasons) == 1 else "; ".join(f"{engine}: {why}" for engine, why in passed_over)
    return f"{cores} {native}; no GPU engine, since {why}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
