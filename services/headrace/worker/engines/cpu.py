"""The `cpu` engine: any image on any machine.

JPEG of the usual kinds goes through the native core (engines/native.py): the decode of what the crop needs alone, Pillow's
resize and the flips in one call for many rows. All else, and everything where the core was not built, goes through libraries.
These are (measured on one core, loadtest/results/engine_choice.md) simplejpeg, which decodes whole images as fast as anything
and turns every warning of libjpeg into an error; Pillow, for all other formats; and, without the core, cykooz-resizer, which is
three times as fast as Pillow's resize and within one level of it.

A batch is cut into chunks of rows for the engine's own threads; a row is made by one thread from its own bytes and
parameters alone. Every heavy call (the core, decode, resize, numpy) releases the GIL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import structlog

from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.worker.engines import native, pixels, resample
from headrace.worker.engines.apply import Operations
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.native import NativeCore, NativeMissing
from headrace.worker.engines.output import SlotArray, Writer
from headrace.worker.engines.protocol import Out, RunResult, Sample, host_memory
from headrace.worker.engines.rows import Rows, look_at, unknown_reason

# Raise when a change of this package can change a pixel.
VERSION = 2
# Chunks a thread: enough that one slow row doesn't leave the other threads idle, few enough that handing out costs nothing.
CHUNKS_PER_THREAD = 6

log = structlog.get_logger()


def find_native() -> NativeCore | None:
    """The native core; None, with the reason in the log, if there is none."""
    try:
        return native.load()
    except NativeMissing as missing:
        log.warning("native_core_missing", why=str(missing), instead="libraries, slower; see docs/native_core.md")
        return None


class CpuEngine:
    """Decodes and augments with `threads` of its own; close it to end them. core: None leaves all to libraries.

    fingerprint: name, own version, path, libraries. No instruction set: all parts give the same bits on each (tests/contract).
    """

    name = "cpu"
    ops = frozenset(OPS_BY_NAME)
    memory = frozenset({"host"})

    def __init__(self, threads: int, core: NativeCore | None = None) -> None:
        # Of what is loaded: not read again, since a package may be replaced on disk while this runs.
        path = core.versions() if core else resample.versions()
        self.fingerprint = f"{self.name}-{VERSION};{path},{pixels.versions()}"
        self.threads = max(1, threads)
        # Threads that find no row of a batch left begin with the next one: of two cores 1.94 are in use then, 1.83 otherwise.
        self.batches_at_once = min(self.threads, 2)
        self.core = core
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="headrace-pixels") if self.threads > 1 else None

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedCpu:
        """Make ready for a job. This engine has every operation and format."""
        return PreparedCpu(spec, seed, self)

    def close(self) -> None:
        """End the threads; idempotent."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows, and the slot's pixels."""

    rows: Rows
    out: SlotArray


class PreparedCpu:
    """The engine ready for one job's spec. `run` may be called from any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: CpuEngine) -> None:
        self._spec = spec
        self._seed = seed
        self._core = engine.core
        self._pool = engine._pool
        self._threads = engine.threads
        self._writer = Writer(spec)
        self._fused = fused_count(spec) if self._core else 0
        resize = self._core.resize if self._core else resample.resize
        self._all_ops = Operations(spec, resize)
        self._other_ops = Operations(spec, resize, self._fused)
        # Whether the fused operations' pixels are the slot's.
        self._direct = self._fused == len(spec.ops) and (spec.output.dtype, spec.output.layout) == ("uint8", "NHWC")

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples."""
        out_rows = self._writer.view(host_memory(out), len(samples))
        rows = look_at(self._spec, self._seed, samples, keys, self._fused)
        asked_s = time.monotonic()
        times = self._map(_Batch(rows, out_rows), len(samples))
        decode_s, augment_s = (sum(part[stage] for part in times) for stage in (0, 1))
        queued_s = min((part[2] for part in times), default=asked_s) - asked_s
        return RunResult(rows.reasons, rows.probe_s + decode_s, rows.sample_s + augment_s, queued_s)

    def close(self) -> None:
        """Nothing to free: the threads are the engine's."""

    def _map(self, batch: _Batch, count: int) -> list[tuple[float, float, float]]:
        size = max(1, -(-count // (self._threads * CHUNKS_PER_THREAD)))
        chunks = [range(start, min(start + size, count)) for start in range(0, count, size)]
        if self._pool is None or len(chunks) < 2:  # a substitute, whose batch has waited for the threads already
            return [self._make_rows(batch, chunk) for chunk in chunks]
        return list(self._pool.map(lambda chunk: self._make_rows(batch, chunk), chunks))

    def _make_rows(self, batch: _Batch, chunk: range) -> tuple[float, float, float]:
        """Make the chunk's rows; returns thread-seconds of (decode, augment), and when it began."""
        begun_s = time.monotonic()
        fused, others = list[int](), list[int]()
        for row in chunk:
            (fused if self._is_fused(batch.rows, row) else others).append(row)
        decode_s, augment_s = self._make_fused(batch, fused) if fused else (0.0, 0.0)
        for row in others:
            started = time.thread_time()
            rgb = batch.rows.decode(row)
            decoded = time.thread_time()
            decode_s += decoded - started
            if rgb is not None:
                self._writer.write(self._all_ops(rgb, batch.rows.params, row), batch.out[row])
                augment_s += time.thread_time() - decoded
        return decode_s, augment_s, begun_s

    def _is_fused(self, rows: Rows, row: int) -> bool:
        """Whether the native core makes the row: told by its header and geometry alone."""
        probe = rows.probes[row]
        if rows.geometry is None or probe is None or rows.known_bad(row) != "none":
            return False
        return bool(rows.geometry.inside[row]) and native.takes(probe.header)

    def _make_fused(self, batch: _Batch, fused: list[int]) -> tuple[float, float]:
        """Make rows with the native core, in one call; then the other operations, one by one."""
        rows = batch.rows
        assert rows.geometry is not None
        assert self._core is not None
        probes = [probe for row in fused if (probe := rows.probes[row])]
        stored = [(len(probe.data), probe.header.width, probe.header.height, probe.header.orientation) for probe in probes]
        places = fused if self._direct else range(len(fused))
        numbers = np.column_stack([np.array(stored, np.int64), rows.geometry.numbers[fused], places])
        out = batch.out if self._direct else np.empty((len(fused), *rows.geometry.size, 3), np.uint8)
        status, (decode_s, augment_s) = self._core.rows([probe.data for probe in probes], numbers, out)
        started = time.thread_time()
        if status.any():
            for row, code in zip(fused, status.tolist(), strict=True):
                rows.refuse(row, _reason(code, rows.samples[row]))
        if not self._direct:
            for made, row, code in zip(out, fused, status.tolist(), strict=True):
                if code == native.OK:
                    self._writer.write(self._other_ops(made, rows.params, row), batch.out[row])
        return decode_s, augment_s + time.thread_time() - started


def _reason(status: int, sample: Sample) -> str:
    """The reason that a status of the native core stands for. Raises MemoryError, see unknown_reason."""
    if status == native.NO_MEMORY:
        raise MemoryError("the native core found no memory")
    if status == native.BAD_ARGUMENT:
        return unknown_reason(RuntimeError("the native core refused its arguments"), sample)
    return "corrupt" if status else "none"
