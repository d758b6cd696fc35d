"""The engines that the contract's suites run over, and how near each must come. A new engine is one entry here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.core.errors import EngineUnsupported, HeadraceError
from headrace.testing import numpy_lane
from headrace.worker.engines import native, registry
from headrace.worker.engines.protocol import Engine


@dataclass(frozen=True)
class Entry:
    """How far, in levels of 255, an engine may be from the plain reference.

    max_levels: at most. mean_levels: on average over an image that was resized; mean_levels_unscaled: over one that was
    not, where only rounding can differ. decode_levels: on average over an image as it was decoded, where another decoder
    may round otherwise; 0 where the reference's own library decodes. edge_levels: at most in the outermost rows and
    columns of an image that was resized. fingerprint: what it begins with. float_slack: halves of a unit in the last place
    that a float may be off.
    """

    name: str
    max_levels: int
    mean_levels: float
    mean_levels_unscaled: float
    decode_levels: float = 0.0
    edge_levels: int = 1
    fingerprint: str = "cpu-2;"
    float_slack: float = 1.0


ENTRIES = (
    Entry("cpu", max_levels=1, mean_levels=0.3, mean_levels_unscaled=0.01),
    Entry("cpu-libs", max_levels=1, mean_levels=0.3, mean_levels_unscaled=0.01),
    # DALI repeats the pixels at an image's edge where Pillow leaves them out: its outermost row and column differ.
    Entry("dali", 1, mean_levels=0.6, mean_levels_unscaled=0.01, edge_levels=24, fingerprint="dali-1;dali="),
    # Bounds as wide as two decoders may differ: not yet measured on a GPU.
    Entry("dali-gpu", 24, 1.5, mean_levels_unscaled=1.0, decode_levels=1.0, edge_levels=40, fingerprint="dali-gpu-1;dali="),
    # As above. Its floats are the GPU's arithmetic, not a table.
    Entry("cvcuda", 24, 1.5, 1.0, 1.0, edge_levels=24, float_slack=4, fingerprint="cvcuda-1;cvcuda="),
    # The same engine, on lanes of numpy: all of it but CV-CUDA's own calls.
    Entry("cvcuda-on-numpy", 1, 0.3, 0.01, float_slack=4, fingerprint="cvcuda-1;cvcuda=none,nvimgcodec="),
    # The decode half of cvcuda on the CPU: libjpeg-turbo again, to the bit.
    Entry("nvimgcodec", max_levels=1, mean_levels=0.3, mean_levels_unscaled=0.01, fingerprint="nvimgcodec-1;nvimgcodec="),
)
# Engines of the registry that make no pixels, and so keep no contract.
NO_PIXELS = frozenset({"null"})
# Engines that are made here alone, by name.
MADE_HERE: dict[str, Callable[[int], Engine]] = {"cvcuda-on-numpy": numpy_lane.engine}
# Engines of the design. Each joins once the registry names it.
DESIGNED = ("cpu", "dali", "dali-gpu", "cvcuda")


@functools.cache
def why_not(name: str) -> str:
    """Why an engine does not run here; empty if it does."""
    if name not in registry.NAMES and name not in MADE_HERE:
        return "not in the registry"
    try:
        MADE_HERE.get(name, functools.partial(registry.create, name))(1).close()
    except (HeadraceError, EngineUnsupported) as error:
        return error.message
    return ""


def no_core() -> str:
    """Why the `cpu` engine has no native core here, and does as cpu-libs; empty if it has."""
    try:
        native.load()
    except native.NativeMissing as missing:
        return str(missing)
    return ""


def runnable() -> list[Entry]:
    """Entries of the engines that run here."""
    return [entry for entry in ENTRIES if not why_not(entry.name)]


def report() -> Iterator[str]:
    """A line for each engine: whether the suites ran over it."""
    for name in dict.fromkeys([*DESIGNED, *registry.NAMES, *MADE_HERE]):
        if name not in NO_PIXELS:
            reason = why_not(name)
            if name == "cpu" and not reason and no_core():
                yield f"engine {name}: DID NOT RUN with its native core, but with libraries ({no_core()})"
                continue
            yield f"engine {name}: {f'DID NOT RUN ({reason})' if reason else 'ran'}"


def make(entry: Entry, threads: int = 2) -> Engine:
    """The engine itself; close it."""
    return MADE_HERE.get(entry.name, functools.partial(registry.create, entry.name))(threads)
