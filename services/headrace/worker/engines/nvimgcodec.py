"""The `nvimgcodec` engine: the decode half of `cvcuda` on the CPU, and the `cpu` engine's operations.

It is there so that what `cvcuda` decodes with is run and tested where no GPU is: all of it is the same code but the device.
As an engine of its own it has no advantage over `cpu`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.worker.engines import codec, resample
from headrace.worker.engines.apply import Operations
from headrace.worker.engines.codec import Codec, Device
from headrace.worker.engines.cpu import CpuEngine, find_native
from headrace.worker.engines.decode_half import Decoded, DecodeHalf
from headrace.worker.engines.output import SlotArray, Writer
from headrace.worker.engines.pixels import orient
from headrace.worker.engines.protocol import Out, RunResult, Sample, host_memory

# Raise when a change of this package can change a pixel.
VERSION = 1
_CPU = Device(gpu=None, hardware=True)  # plans as for a GPU with a JPEG engine


class NvimgcodecEngine:
    """Decodes JPEG by nvImageCodec on the CPU. fingerprint: own version, codec builds, and the `cpu` engine's."""

    name = "nvimgcodec"
    ops = frozenset(OPS_BY_NAME)
    memory = frozenset({"host"})
    batches_at_once = 1

    def __init__(self, threads: int) -> None:
        self.cpu = CpuEngine(threads, find_native())
        self.fingerprint = f"{self.name}-{VERSION};{codec.versions(_CPU)},{resample.versions()};{self.cpu.fingerprint}"
        self.pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="headrace-codec")
        self._codecs: queue.LifoQueue[Codec] = queue.LifoQueue()
        self._threads = threads

    @contextmanager
    def codec(self) -> Iterator[Codec]:
        """Decoders for one call: idle ones, or new ones where all are in use."""
        try:
            one = self._codecs.get_nowait()
        except queue.Empty:
            one = Codec(_CPU, self._threads)
        try:
            yield one
        finally:
            self._codecs.put(one)

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedNvimgcodec:
        """Make ready for a job. This engine has every operation and format."""
        return PreparedNvimgcodec(spec, seed, self)

    def close(self) -> None:
        """End the threads and decoders; idempotent."""
        self.pool.shutdown(cancel_futures=True)
        self.cpu.close()
        while not self._codecs.empty():
            self._codecs.get_nowait().close()


class PreparedNvimgcodec:
    """The engine ready for one job's spec. `run` may be called from any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: NvimgcodecEngine) -> None:
        self._engine = engine
        self._half = DecodeHalf(spec, seed, engine.cpu, _CPU, fused=0)
        self._operations = Operations(spec, resample.resize)
        self._writer = Writer(spec)

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples."""
        out_rows = self._writer.view(host_memory(out), len(samples))
        with self._engine.codec() as one:
            decoded = self._half.run(samples, keys, one, self._engine.pool)
        started = time.thread_time()
        for row, pixels in decoded.made.items():
            self._writer.write(pixels, out_rows[row])
        augment_s = decoded.augment_s + time.thread_time() - started
        augment_s += sum(self._engine.pool.map(lambda row: self._augment(decoded, row, out_rows), decoded.images))
        return RunResult(decoded.rows.reasons, decoded.decode_s, augment_s)

    def close(self) -> None:
        """Nothing to free: threads and decoders are the engine's."""
        self._half.close()

    def _augment(self, decoded: Decoded, row: int, out_rows: SlotArray) -> float:
        started = time.thread_time()
        probe = decoded.rows.probes[row]
        assert probe is not None
        stored = np.asarray(decoded.images[row])
        pixels = self._operations(orient(stored, probe.header.orientation), decoded.rows.params, row)
        self._writer.write(pixels, out_rows[row])
        return time.thread_time() - started
