"""What an engine is: it turns encoded bytes into pixels in a slot.

An engine is one class in one file and one entry in the contract tests. The worker's producer calls `prepare` once a job
and `run` once a batch, from as many threads at a time as the engine says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError
from headrace.core.pipeline_spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Where a batch's pixels go on a GPU. pointer: CUDA device address. gpu: ordinal in this process."""

    pointer: int
    nbytes: int
    gpu: int


# What an engine writes to.
Out: TypeAlias = memoryview | DeviceSlot


def part(out: Out, start: int, stop: int) -> Out:
    """The bytes from start to stop."""
    if isinstance(out, DeviceSlot):
        return DeviceSlot(out.pointer + start, stop - start, out.gpu)
    return out[start:stop]


def host_memory(out: Out) -> memoryview:
    """`out` for an engine that writes to host memory alone; the worker gives it nothing else. Raises HeadraceError."""
    if isinstance(out, DeviceSlot):
        raise HeadraceError("an engine that makes pixels in host memory was given a slot on a GPU: its `memory` is wrong")
    return out


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample's bytes and names.

    sample_id: place in the manifest. data: the encoded file; None where it could not be had (bad: reason says why).
    """

    sample_id: int
    key: str
    data: bytes | memoryview | None
    reason: str = "none"


@dataclass(slots=True)
class RunResult:
    """Outcome of one batch.

    reasons: uint8[B], index into core.batch.BAD_REASONS, 0 where the pixels are good. Rows with a reason hold undefined
    pixels: the producer substitutes them. decode_s, augment_s: thread-seconds measured inside, for the accounting.
    queued_s: seconds until its first row was begun, where batches are made one after another by threads that they share; None
    where it was worked on at once, beside others.
    """

    reasons: NDArray[np.uint8]
    decode_s: float
    augment_s: float
    queued_s: float | None = None


class PreparedEngine(Protocol):
    """An engine made ready for one job's spec."""

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """Decode and augment a batch into `out`, and return once all of it is there, also where a GPU writes it.

        samples: B of them. keys: per row the (epoch, planned sample id) whose augmentation parameters apply; with the
        job's seed they key the randomness (core.augment), whatever the pixels' own id is. out: of a kind that the engine's
        `memory` names; writable, exactly spec.pixel_bytes(B) bytes, C-contiguous in spec.shape(B). Never raises for a bad
        sample. The pixels of a row depend on (sample bytes, key, spec, seed) alone: not on neighbours, batch size, threads.
        """
        ...

    def close(self) -> None:
        """Free what it holds; idempotent."""
        ...


class Engine(Protocol):
    """A way to decode and augment.

    memory: kinds of `out` that it takes: `host` always, `cuda` (DeviceSlot) too where it works on a GPU. batches_at_once: so
    many calls of `run` may be in flight at once, each on a thread of its own.
    """

    name: str
    ops: frozenset[str]
    memory: frozenset[str]
    batches_at_once: int

    @property
    def fingerprint(self) -> str:
        """Name, version, codec builds, backend: whatever could change a pixel, as one line without spaces."""
        ...

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedEngine:
        """Make ready for a job. Raises EngineUnsupported (ids: engine, op) if it lacks an operation or format."""
        ...

    def close(self) -> None:
        """End its threads and free what it holds, once no job is prepared any more; idempotent."""
        ...
