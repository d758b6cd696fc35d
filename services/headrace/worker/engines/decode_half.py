"""The decode half of the engines on nvImageCodec: plan, check, decode; the same on a GPU and on the CPU.

Samples that nvImageCodec takes (codec_plan) are checked for damage, which it doesn't tell of, and decoded by it, whole. All
others, and those that it refuses against its word, are left to the `cpu` engine: decoded and augmented, uint8[height, width, 3]
as the spec's operations leave them. So every format and every reason is that engine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import structlog
from nvidia import nvimgcodec

from headrace.core.pipeline_spec import Output, PipelineSpec
from headrace.worker.engines.codec import Codec, Cut, Device
from headrace.worker.engines.codec_plan import Route, cuts_of, routes_of
from headrace.worker.engines.cpu import CpuEngine
from headrace.worker.engines.jpeg_scan import scan_fault
from headrace.worker.engines.pixels import Pixels, with_known_jfif
from headrace.worker.engines.protocol import RunResult, Sample
from headrace.worker.engines.rows import Rows, look_at

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch after its decode half.

    rows: what is known of it; its reasons are final. images: row -> its image as stored, before EXIF orientation. cuts: of
    rows whose image is no more than that. made: row -> finished uint8[height, width, 3] of the `cpu` engine; a bad row is in
    neither. decode_s, augment_s: thread-seconds.
    """

    rows: Rows
    images: dict[int, nvimgcodec.Image]
    cuts: dict[int, Cut]
    made: dict[int, Pixels]
    decode_s: float
    augment_s: float


class DecodeHalf:
    """Of one job's spec. Any thread. fused: see rows.look_at; a row that geometry cannot make goes to the `cpu` engine."""

    def __init__(self, spec: PipelineSpec, seed: int, cpu: CpuEngine, device: Device, fused: int) -> None:
        self._spec = spec
        self._seed = seed
        self._device = device
        self._fused = fused
        self._cpu_spec = replace(spec, output=Output("uint8", "NHWC"))
        self._core = cpu.core
        self._cpu = cpu.prepare(self._cpu_spec, seed)

    def run(
        self,
        samples: Sequence[Sample],
        keys: Sequence[tuple[int, int]],
        codec: Codec,
        pool: ThreadPoolExecutor,
        stream: int = 0,
    ) -> Decoded:
        """Decode a batch. codec: this call's alone. pool: threads for checks. stream: CUDA stream that images are ready on."""
        rows = look_at(self._spec, self._seed, samples, keys, self._fused)
        routes = routes_of(rows, self._device.hardware)
        cuts = cuts_of(rows) if self._device.regions else {}
        host = np.flatnonzero(routes == Route.HOST).tolist()
        planned = routes.copy()
        hosted = pool.submit(self._make, rows, keys, host)
        check_s = self._check(rows, np.flatnonzero(routes != Route.HOST).tolist(), pool)
        images: dict[int, nvimgcodec.Image] = {}
        started = time.thread_time()
        for route in (Route.HARDWARE, Route.CUDA):
            taken = [row for row in np.flatnonzero(routes == route).tolist() if not rows.reasons[row]]
            datas = [with_known_jfif(probe.data, probe.header) for row in taken if (probe := rows.probes[row])]
            decoded = codec.decode(route, datas, stream, [cuts.get(row) for row in taken]) if taken else []
            images |= {row: image for row, image in zip(taken, decoded, strict=True) if image is not None}
            refused = [row for row in taken if row not in images]
            routes[refused] += 1
            if refused:
                log.warning("decoder_refused", by=route.name.lower(), samples=len(refused), first=samples[refused[0]].key)
        decode_s = time.thread_time() - started
        refused = np.flatnonzero((routes == Route.HOST) & (planned != Route.HOST)).tolist()
        made, result = _join(hosted, host)
        if refused:
            more, again = self._make(rows, keys, refused)
            made |= dict(zip(refused, more, strict=True))
            result = RunResult(result.reasons, result.decode_s + again.decode_s, result.augment_s + again.augment_s)
        good = {row: pixels for row, pixels in made.items() if not rows.reasons[row]}
        decode_s += rows.probe_s + check_s + result.decode_s
        return Decoded(rows, images, cuts, good, decode_s, rows.sample_s + result.augment_s)

    def close(self) -> None:
        """Free what it holds; the engines are others'."""
        self._cpu.close()

    def _make(self, rows: Rows, keys: Sequence[tuple[int, int]], which: list[int]) -> tuple[Pixels, RunResult]:
        """Rows by the `cpu` engine, and why some are bad."""
        pixels: Pixels = np.empty(self._cpu_spec.shape(len(which)), np.uint8)
        out = pixels.reshape(-1).data
        result = self._cpu.run([rows.samples[row] for row in which], [keys[row] for row in which], out)
        rows.reasons[which] = result.reasons
        return pixels, result

    def _check(self, rows: Rows, which: list[int], pool: ThreadPoolExecutor) -> float:
        """Note the damage in these rows' scans; returns thread-seconds."""

        def check(row: int) -> float:
            started = time.thread_time()
            probe = rows.probes[row]
            assert probe is not None
            fault = scan_fault(probe, self._core)
            if fault != "none":
                rows.refuse(row, fault)
            return time.thread_time() - started

        return sum(pool.map(check, which))


def _join(hosted: Future[tuple[Pixels, RunResult]], host: list[int]) -> tuple[dict[int, Pixels], RunResult]:
    pixels, result = hosted.result()
    return dict(zip(host, pixels, strict=True)), result
