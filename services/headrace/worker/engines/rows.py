"""What every engine knows of a batch before it decodes: headers, drawn parameters, and which samples are bad already.

And the one way to decode with libraries (engines/pixels.py), for the rows that an engine's own decoder does not take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from headrace.core.augment import BatchParams, sample_params, too_large
from headrace.core.batch import REASON_CODE
from headrace.core.image_header import ImageHeader
from headrace.core.pipeline_spec import PipelineSpec
from headrace.worker.engines import pixels
from headrace.worker.engines.geometry import Geometry, geometry
from headrace.worker.engines.pixels import BadImage, Probe
from headrace.worker.engines.protocol import Sample

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch that was looked at. Any thread, so long as each row is one thread's.

    probes: None where a sample has no data. reasons: uint8[B], see RunResult; 0 until a row is found bad. too_large: see
    core.augment.too_large. geometry: of the fused operations, if any. probe_s, sample_s: thread-seconds that it took.
    """

    spec: PipelineSpec
    samples: Sequence[Sample]
    probes: list[Probe | None]
    params: BatchParams
    reasons: NDArray[np.uint8]
    too_large: NDArray[np.bool_]
    geometry: Geometry | None
    probe_s: float
    sample_s: float

    def known_bad(self, row: int) -> str:
        """The reason for which a row is bad before it is decoded; `none` if it is to be decoded."""
        sample, probe = self.samples[row], self.probes[row]
        if probe is None:
            return sample.reason if sample.reason != "none" else "missing_part"
        if probe.reason != "none":
            return probe.reason
        return "too_large" if self.too_large[row] else "none"

    def refuse(self, row: int, reason: str) -> None:
        """Note that the row is bad, for a reason of core.batch.BAD_REASONS."""
        self.reasons[row] = REASON_CODE[reason]

    def decode(self, row: int) -> pixels.Pixels | None:
        """The row's image, by libraries: uint8[H, W, 3] of any strides; None, with the reason noted, if the sample is bad."""
        reason = self.known_bad(row)
        probe = self.probes[row]
        if reason == "none" and probe:
            try:
                return pixels.decode_rgb(probe, self.spec.decode)
            except BadImage as bad:
                reason = bad.reason
            except Exception as error:  # noqa: BLE001 - see unknown_reason
                reason = unknown_reason(error, self.samples[row])
        self.refuse(row, reason)
        return None


def look_at(spec: PipelineSpec, seed: int, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], fused: int) -> Rows:
    """Read the headers and draw the parameters. fused: how many operations geometry.fused_count gave, 0 for none."""
    started = time.thread_time()
    count = len(samples)
    probes = [_probe(sample, spec) for sample in samples]
    sizes = np.array([probe.header.oriented_size if probe else (0, 0) for probe in probes], np.int64).reshape(count, 2)
    epochs, planned = np.array(keys, np.int64).reshape(count, 2).T
    probed = time.thread_time()
    params = sample_params(spec, seed, (epochs, planned), sizes)
    numbers = geometry(spec, params, fused) if fused else None
    large = too_large(spec, params)
    times = probed - started, time.thread_time() - probed
    return Rows(spec, samples, probes, params, np.zeros(count, np.uint8), large, numbers, *times)


def _probe(sample: Sample, spec: PipelineSpec) -> Probe | None:
    """The sample's header; None if it has no data."""
    if sample.data is None:
        return None
    try:
        return pixels.probe(sample.data, spec.decode)
    except Exception as error:  # noqa: BLE001 - see unknown_reason
        return Probe(b"", ImageHeader(), unknown_reason(error, sample))


def unknown_reason(error: Exception, sample: Sample) -> str:
    """The reason for an error that isn't known of damaged data: whatever a decoder raises, one sample must not end the batch.

    But for a lack of memory, which is not the sample's fault: substituting would make another batch than elsewhere.
    """
    if isinstance(error, MemoryError):
        raise error
    log.warning("decoder_failed", sample_id=sample.sample_id, key=sample.key, error=repr(error))
    return "decoder_error"
