"""The `cpu` engine: any image on any machine.

Why these libraries (measured on one core, loadtest/results/engine_choice.md): simplejpeg decodes whole images as fast as
anything and turns every warning of libjpeg into an error. nvImageCodec's region decode saves a tenth of the decode but
hands over garbage for damaged data, silently; Pillow and OpenCV are slower or as silent. cykooz-resizer is three times as
fast as Pillow's resize and within one level of it; OpenCV's resizes are other filters.

A batch is cut into chunks of rows for the engine's own threads; a row is made by one thread from its own bytes and
parameters alone. Every heavy call (decode, resize, numpy) releases the GIL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from headrace.core.augment import BatchParams, sample_params, too_large
from headrace.core.batch import REASON_CODE
from headrace.core.image_header import ImageHeader
from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.worker.engines import pixels, resample
from headrace.worker.engines.apply import apply_ops
from headrace.worker.engines.output import SlotArray, Writer
from headrace.worker.engines.pixels import BadImage, Probe
from headrace.worker.engines.protocol import RunResult, Sample

# Raise when a change of this package can change a pixel.
VERSION = 1
# Chunks a thread: enough that one slow row doesn't leave the other threads idle, few enough that handing out costs nothing.
CHUNKS_PER_THREAD = 6

log = structlog.get_logger()


class CpuEngine:
    """Decodes with simplejpeg and Pillow, resizes with cykooz-resizer. `threads` of its own; close it to end them.

    fingerprint: name, own version and libraries. No instruction set: all parts give the same bits on each (tests/contract).
    """

    name = "cpu"
    ops = frozenset(OPS_BY_NAME)

    def __init__(self, threads: int) -> None:
        # Of what is loaded: not read again, since a package may be replaced on disk while this runs.
        self.fingerprint = f"{self.name}-{VERSION};{pixels.versions()},{resample.versions()}"
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="headrace-pixels") if self.threads > 1 else None

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedCpu:
        """Make ready for a job. This engine has every operation and format."""
        return PreparedCpu(spec, seed, self._pool, self.threads)

    def close(self) -> None:
        """End the threads; idempotent."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the rows of a batch share. probes: None where a sample has no data. too_large: see core.augment.too_large."""

    samples: Sequence[Sample]
    probes: list[Probe | None]
    params: BatchParams
    rows: SlotArray
    reasons: NDArray[np.uint8]
    too_large: NDArray[np.bool_]


class PreparedCpu:
    """The engine ready for one job's spec. `run` may be called from any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, pool: ThreadPoolExecutor | None, threads: int) -> None:
        self._spec = spec
        self._seed = seed
        self._pool = pool
        self._threads = threads
        self._writer = Writer(spec)

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: memoryview) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples."""
        started = time.thread_time()
        count = len(samples)
        rows = self._writer.view(out, count)
        probes = [self._probe(sample) for sample in samples]
        sizes = np.array([probe.header.oriented_size if probe else (0, 0) for probe in probes], np.int64).reshape(count, 2)
        epochs, planned = np.array(keys, np.int64).reshape(count, 2).T
        probed = time.thread_time()
        params = sample_params(self._spec, self._seed, (epochs, planned), sizes)
        batch = _Batch(samples, probes, params, rows, np.zeros(count, np.uint8), too_large(self._spec, params))
        sampled = time.thread_time()
        times = self._map(batch, count)
        decode_s = probed - started + sum(part[0] for part in times)
        return RunResult(batch.reasons, decode_s, sampled - probed + sum(part[1] for part in times))

    def close(self) -> None:
        """Nothing to free: the threads are the engine's."""

    def _map(self, batch: _Batch, count: int) -> list[tuple[float, float]]:
        size = max(1, -(-count // (self._threads * CHUNKS_PER_THREAD)))
        chunks = [range(start, min(start + size, count)) for start in range(0, count, size)]
        if self._pool is None or len(chunks) < 2:
            return [self._make_rows(batch, chunk) for chunk in chunks]
        return list(self._pool.map(lambda chunk: self._make_rows(batch, chunk), chunks))

    def _make_rows(self, batch: _Batch, chunk: range) -> tuple[float, float]:
        """Make the chunk's rows; returns thread-seconds of (decode, augment)."""
        decode_s = augment_s = 0.0
        for row in chunk:
            started = time.thread_time()
            rgb = self._decode(batch, row)
            decoded = time.thread_time()
            decode_s += decoded - started
            if rgb is not None:
                self._writer.write(apply_ops(rgb, self._spec, batch.params, row), batch.rows[row])
                augment_s += time.thread_time() - decoded
        return decode_s, augment_s

    def _probe(self, sample: Sample) -> Probe | None:
        """The sample's header; None if it has no data."""
        if sample.data is None:
            return None
        try:
            return pixels.probe(sample.data, self._spec.decode)
        except Exception as error:  # noqa: BLE001 - see _unknown
            return Probe(b"", ImageHeader(), _unknown(error, sample))

    def _decode(self, batch: _Batch, row: int) -> pixels.Pixels | None:
        """The row's decoded image; None, with the reason noted, if the sample is bad."""
        sample, probe = batch.samples[row], batch.probes[row]
        if probe is None:
            reason = sample.reason if sample.reason != "none" else "missing_part"
        elif probe.reason != "none":
            reason = probe.reason
        elif batch.too_large[row]:
            reason = "too_large"
        else:
            try:
                return pixels.decode_rgb(probe, self._spec.decode)
            except BadImage as bad:
                reason = bad.reason
            except Exception as error:  # noqa: BLE001 - see _unknown
                reason = _unknown(error, sample)
        batch.reasons[row] = REASON_CODE[reason]
        return None


def _unknown(error: Exception, sample: Sample) -> str:
    """The reason for an error that isn't known of damaged data: whatever a decoder raises, one sample must not end the batch.

    But for a lack of memory, which is not the sample's fault: substituting would make another batch than elsewhere.
    """
    if isinstance(error, MemoryError):
        raise error
    log.warning("decoder_failed", sample_id=sample.sample_id, key=sample.key, error=repr(error))
    return "decoder_error"
