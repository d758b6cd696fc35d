"""`--engine auto`: looks at what this machine has, and makes the fastest engine that can run on it (core.placement)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from headrace.core.errors import HeadraceError
from headrace.core.placement import GPU_ENGINES, Choice, Gpu, Machine, choose, visible
from headrace.telemetry.nvml import Nvml, NvmlFailed, NvmlMissing
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine

log = structlog.get_logger()

AUTO = "auto"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# What an engine imports beside what the extra `worker` brings.
MODULES = {
    "cvcuda": ("cvcuda", "nvidia.nvimgcodec", "cuda.bindings"),
    "dali-gpu": ("nvidia.dali",),
}

T = TypeVar("T")
Create = Callable[[str, int], Engine]


def make_engine(
    name: str, threads: int, create: Create = registry.create, look: Callable[[int], Machine] | None = None
) -> Engine:
    """The engine of that name, or under `auto` the one that fits this machine; says which and why in one line.

    Raises as worker.engines.registry.create. One that `auto` chose and that cannot be made is told, and the next best made.
    """
    if name != AUTO:
        return create(name, threads)
    choice, engine = settle((look or look_around)(threads), lambda chosen: create(chosen, threads))
    log.info("engine_chosen", engine=choice.engine, why=choice.reason, gpu=choice.gpu.uuid if choice.gpu else "", by=AUTO)
    return engine


def settle(machine: Machine, create: Callable[[str], T]) -> tuple[Choice, T]:
    """What `auto` comes to, and what `create` gives for it. One on a GPU that cannot be made after all is told and passed over.

    Raises what `create` raises for the one on the CPU.
    """
    while True:
        choice = choose(machine)
        try:
            return choice, create(choice.engine)
        except HeadraceError as error:
            if choice.gpu is None:
                raise
            log.warning("engine_failed", engine=choice.engine, why=error.message, note="auto: the next best is taken")
            machine = replace(machine, missing={**machine.missing, choice.engine: error.message})


def look_around(threads: int) -> Machine:
    """What there is on this machine now. Imports no GPU library and takes no GPU memory."""
    missing = {engine: lacking for engine in GPU_ENGINES if (lacking := lacks(engine))}
    machine = Machine(cores=threads, missing=missing, without_native=without_native())
    try:
        with Nvml() as nvml:
            shown = own_gpus(nvml)
            no_gpus = "" if shown else _no_gpus(len(nvml.gpus()))
            return replace(machine, gpus=shown, driver=nvml.driver, cuda=nvml.cuda, no_gpus=no_gpus)
    except (NvmlMissing, NvmlFailed) as error:
        return replace(machine, no_gpus=str(error))


def own_gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """The GPUs that CUDA would show to this process, in its order. Raises NvmlFailed."""
    return visible(nvml.gpus(), os.environ.get(_VISIBLE))


def lacks(engine: str) -> str:
    """What a GPU engine lacks to be made, and what to install; empty where nothing shows."""
    if engine not in registry.NAMES:
        return f"this version of Headrace has no engine {engine}"
    missing = [module for module in MODULES[engine] if not is_installed(module)]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        return f"{', '.join(missing)} {verb} not installed: pip install 'headrace[{registry.EXTRAS[engine]}]'"
    return ""


def is_installed(module: str) -> bool:
    """Whether a module could be imported; of its parents' packages alone something is run."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or was put there by hand
        return False


def without_native() -> str:
    """Why the engine `cpu` has no native core here; empty if it has."""
    try:
        from headrace.worker.engines import native
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'headrace[worker]'"
    try:
        native.load()
    except native.NativeMissing as missing:
        return str(missing)
    return ""


def _no_gpus(count: int) -> str:
    if count:
        return f"{_VISIBLE}={os.environ.get(_VISIBLE)!r} shows none of the {count} GPUs"
    return "the driver shows no GPU to this process: in a container, ask for one (nvidia.com/gpu)"
