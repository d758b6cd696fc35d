"""Engines by name. An engine's libraries are imported only when it is made."""

from __future__ import annotations

from headrace.core.errors import ConfigInvalid, EngineUnsupported
from headrace.worker.engines.protocol import Engine

NAMES = ("cpu", "cpu-libs", "dali", "dali-gpu", "cvcuda", "nvimgcodec", "null")

# The extra that installs what an engine imports; `worker` where none is named.
EXTRAS = {"dali": "dali", "dali-gpu": "dali", "cvcuda": "gpu", "nvimgcodec": "gpu"}


def create(name: str, threads: int) -> Engine:
    """Make an engine with `threads` of its own.

    Raises ConfigInvalid for an unknown name and EngineUnsupported (id: engine) if its libraries aren't installed.
    """
    try:
        if name == "cpu":
            from headrace.worker.engines.cpu import CpuEngine, find_native

            return CpuEngine(threads, find_native())
        if name == "cpu-libs":
            from headrace.worker.engines.cpu import CpuEngine

            return CpuEngine(threads)
        if name in ("dali", "dali-gpu"):
            from headrace.worker.engines.cpu import find_native
            from headrace.worker.engines.dali import DaliEngine

            return DaliEngine(threads, find_native(), None if name == "dali" else 0)
        if name == "cvcuda":
            from headrace.worker.engines.cvcuda_lane import engine_on_first_gpu

            return engine_on_first_gpu(threads)
        if name == "nvimgcodec":
            from headrace.worker.engines.nvimgcodec import NvimgcodecEngine

            return NvimgcodecEngine(threads)
        if name == "null":
            from headrace.worker.engines.null import NullEngine

            return NullEngine()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(name, "worker")
        raise EngineUnsupported(f"engine {name} needs {error.name}: pip install 'headrace[{extra}]'", engine=name) from error
    except ImportError as error:  # it is installed, and cannot be loaded: CV-CUDA's without a driver
        raise EngineUnsupported(f"engine {name} cannot be loaded: {error}", engine=name) from error
    raise ConfigInvalid(f"no engine is named {name!r}; there are: {', '.join(NAMES)}")
