"""The `cvcuda` engine: decode by nvImageCodec and augment by CV-CUDA on one NVIDIA GPU, straight into the slot.

On the GPU are scaling, crops and flips, in that order; what a spec has after them is done on the CPU, by the code that all
engines share, and a spec that does not begin so is wholly the `cpu` engine's. Several batches are in it at once: each has a
lane (stream, decoders, buffers) of its own, so that one is decoded while another is augmented and a third handed over.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
import structlog

from headrace.core.errors import EngineUnsupported, GpuLost, GpuMemoryFull, HeadraceError
from headrace.core.pipeline_spec import OP_NAMES, OPS_BY_NAME, PipelineSpec
from headrace.core.placement import visible
from headrace.telemetry.nvml import Nvml, NvmlFailed, NvmlMissing
from headrace.worker.engines import codec, cvcuda_plan, resample
from headrace.worker.engines.apply import Operations
from headrace.worker.engines.codec import Device
from headrace.worker.engines.cpu import CpuEngine, find_native
from headrace.worker.engines.cvcuda_port import Lane, Lanes
from headrace.worker.engines.decode_half import Decoded, DecodeHalf
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.output import Writer
from headrace.worker.engines.pixels import Pixels
from headrace.worker.engines.protocol import DeviceSlot, Out, PreparedEngine, RunResult, Sample

log = structlog.get_logger()

# Raise when a change of this package can change a pixel.
VERSION = 1
# One that is decoded, one that is augmented or copied; the third hides the hand-over of either.
BATCHES_AT_ONCE = 3
# Levels of 255, on average, that a smooth photo may be from the `cpu` engine's: far above what decoders differ by.
TRY_OUT_LEVELS = 4.0


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPU that CUDA calls the first, its driver, and the version of CV-CUDA."""

    name: str
    driver: str
    jpeg_engine: bool
    cvcuda: str


def first_gpu() -> GpuFacts:
    """What the driver tells of the first GPU that this process may use. Raises EngineUnsupported (id: engine)."""
    try:
        with Nvml() as nvml:
            gpus = visible(nvml.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
            driver = nvml.driver
    except (NvmlMissing, NvmlFailed) as error:
        raise EngineUnsupported(f"engine cvcuda needs a GPU: {error}", engine="cvcuda") from error
    if not gpus:
        raise EngineUnsupported("engine cvcuda needs a GPU, and CUDA_VISIBLE_DEVICES shows none", engine="cvcuda")
    return GpuFacts(gpus[0].name, driver, bool(gpus[0].jpeg), codec.installed("cvcuda-cu12"))


def smooth_photo() -> bytes:
    """A JPEG that all decoders decode nearly alike."""
    y, x = np.mgrid[0:256, 0:320]
    pixels: Pixels = np.stack([x * 255 // 319, y, (x + y) * 255 // 574], axis=2).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, 90, "RGB", "420")
    return data


def fingerprint(facts: GpuFacts, device: Device, cpu: str) -> str:
    """Versions of all that decodes and augments, driver, GPU model, whether it has a JPEG engine, backend; without spaces."""
    model = facts.name.replace(" ", "_")
    libraries = f"cvcuda={facts.cvcuda},{codec.versions(device)},driver={facts.driver},gpu={model}"
    return f"cvcuda-{VERSION};{libraries};{cpu}"


class CvcudaEngine:
    """threads: of the CPU, for headers, checks and what the GPU doesn't decode. lanes: of the GPU that it works on."""

    name = "cvcuda"
    ops = frozenset(OPS_BY_NAME)
    memory = frozenset({"host", "cuda"})
    batches_at_once = BATCHES_AT_ONCE

    def __init__(self, threads: int, facts: GpuFacts, lanes: Lanes) -> None:
        self.cpu = CpuEngine(threads, find_native())
        self.fingerprint = fingerprint(facts, lanes.device, self.cpu.fingerprint)
        self.pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="headrace-codec")
        self.lanes = lanes
        self._threads = threads
        self._idle: queue.LifoQueue[Lane] = queue.LifoQueue()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane for one call: an idle one, or a new one where all are in use. It comes back with nothing under way."""
        self.lanes.use()
        try:
            one = self._idle.get_nowait()
        except queue.Empty:
            one = self.lanes.new(max(1, self._threads // BATCHES_AT_ONCE))
        try:
            yield one
        except GpuMemoryFull:
            # Fewer batches will be in flight: what the other lanes, and the library, hold for later is what is lacking now.
            one.close()
            self._close_idle()
            self.lanes.forget()
            raise
        except GpuLost:
            raise  # nothing can be given back
        except BaseException:
            self.lanes.probe()
            one.sync()
            self._idle.put(one)
            raise
        one.sync()
        self._idle.put(one)

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedEngine:
        """Make ready for a job. This engine has every operation and format; the log says what of them the CPU does."""
        fused = fused_count(spec)
        by_cpu = [OP_NAMES[type(op)] for op in spec.ops[fused:]]
        if by_cpu:
            note = "" if fused else "the spec does not begin with crops and resizes that fix the size: all is the CPU's"
            log.warning("cvcuda_in_part", by_cpu=by_cpu, note=note, engine=self.name)
        return PreparedCvcuda(spec, seed, self, fused) if fused else PreparedWithoutGpu(spec, seed, self)

    def try_out(self) -> None:
        """Make a row of a photo as the `cpu` engine makes it, nearly. Raises EngineUnsupported (id: engine) if it can't."""
        spec = PipelineSpec()
        samples, rows = [Sample(0, "photo", smooth_photo())], []
        try:
            for engine in (self, self.cpu):
                slot = bytearray(spec.pixel_bytes(1))
                prepared = engine.prepare(spec, 0)
                result = prepared.run(samples, [(0, 0)], memoryview(slot))
                prepared.close()
                if result.reasons.any():
                    raise EngineUnsupported("it refuses a sound JPEG", engine=self.name)
                rows.append(np.frombuffer(slot, np.uint8).astype(np.int64))
            if np.abs(rows[0] - rows[1]).mean() > TRY_OUT_LEVELS:
                raise EngineUnsupported("it makes other pixels than the cpu engine", engine=self.name)
        except Exception as error:
            self.close()
            words = error.message if isinstance(error, HeadraceError) else repr(error)
            raise EngineUnsupported(f"engine cvcuda fails at its first photo: {words}", engine=self.name) from error

    def close(self) -> None:
        """End threads and lanes; idempotent. Of a GPU that is lost nothing can be given back: that is the process's end."""
        self.pool.shutdown(cancel_futures=True)
        self.cpu.close()
        with suppress(GpuLost):
            self._close_idle()

    def check_slot(self, spec: PipelineSpec, out: DeviceSlot, count: int) -> None:
        """Raise HeadraceError if it is not a slot for so many rows."""
        needed, gpu = spec.pixel_bytes(count), self.lanes.gpu
        if (out.nbytes, out.gpu) != (needed, gpu):
            raise HeadraceError(f"{count} rows need a slot of {needed} bytes on GPU {gpu}, not {out.nbytes} on GPU {out.gpu}")

    def _close_idle(self) -> None:
        while True:
            try:
                one = self._idle.get_nowait()
            except queue.Empty:
                return
            self.lanes.use()
            one.close()


class PreparedCvcuda:
    """The engine ready for one job's spec, whose first `fused` operations are the GPU's. `run`: any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: CvcudaEngine, fused: int) -> None:
        self._spec = spec
        self._engine = engine
        self._others: Operations | None = None
        if fused < len(spec.ops):
            resize = engine.cpu.core.resize if engine.cpu.core else resample.resize
            self._others = Operations(spec, resize, fused)
        self._target = cvcuda_plan.target_of(spec.output, by_host=self._others is not None)
        self._half = DecodeHalf(spec, seed, engine.cpu, engine.lanes.device, fused)
        self._writer = Writer(spec)

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples, GpuMemoryFull."""
        self._check_slot(out, len(samples))
        with self._engine.lane() as lane:
            lane.mark(0)
            decoded = self._half.run(samples, keys, lane.codec, self._engine.pool, lane.stream)
            lane.mark(1)
            if samples:
                self._write(lane, decoded, out)
            lane.mark(2)
            lane.sync()
            decode_s, augment_s = lane.seconds()
        return RunResult(decoded.rows.reasons, decoded.decode_s + decode_s, decoded.augment_s + augment_s)

    def close(self) -> None:
        """Nothing to free: threads and lanes are the engine's."""
        self._half.close()

    def _write(self, lane: Lane, decoded: Decoded, out: Out) -> None:
        """Augment into `out`; it is there after the lane's next sync."""
        assert decoded.rows.geometry is not None
        size = decoded.rows.geometry.size
        nbytes = self._target.nbytes(size, len(decoded.rows.samples))
        direct = isinstance(out, DeviceSlot) and not self._target.by_host
        pointer = out.pointer if isinstance(out, DeviceSlot) and direct else lane.scratch(nbytes)
        plan = cvcuda_plan.plan(decoded.rows, size, decoded.images, decoded.cuts)
        # Rows that the host made are finished: they do not pass the GPU where the host goes on after it.
        lane.write(plan, self._target, decoded.images, {} if self._others else decoded.made, pointer)
        if direct:
            return
        if self._target.by_host:
            self._write_by_host(lane, pointer, nbytes, decoded, out)
        elif isinstance(out, memoryview):
            lane.download(out, pointer)

    def _write_by_host(self, lane: Lane, pointer: int, nbytes: int, decoded: Decoded, out: Out) -> None:
        """Finish on the host what the GPU left as uint8: other operations, the slot's format; then copy it to a slot there."""
        rows = decoded.rows
        assert rows.geometry is not None
        count = len(rows.samples)
        slot_bytes = self._spec.pixel_bytes(count)
        staged = lane.host(nbytes + (slot_bytes if isinstance(out, DeviceSlot) else 0))
        lane.download(staged[:nbytes], pointer)
        lane.sync()
        host_out = staged[nbytes:] if isinstance(out, DeviceSlot) else out
        slot = self._writer.view(host_out, count)
        pixels = np.frombuffer(staged[:nbytes], np.uint8).reshape(count, *rows.geometry.size, 3)

        def finish(row: int) -> None:
            image = pixels[row]
            if self._others is not None and row in decoded.made:
                image = decoded.made[row]
            elif self._others is not None:
                image = self._others(image, rows.params, row)
            self._writer.write(image, slot[row])

        list(self._engine.pool.map(finish, [row for row in range(count) if row in decoded.images or row in decoded.made]))
        if isinstance(out, DeviceSlot):
            lane.upload(out.pointer, host_out)

    def _check_slot(self, out: Out, count: int) -> None:
        if isinstance(out, DeviceSlot):
            self._engine.check_slot(self._spec, out, count)
        else:
            self._writer.view(out, count)


class PreparedWithoutGpu:
    """A spec that the `cpu` engine makes as a whole, and whose batches are copied to slots on the GPU. `run`: any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: CvcudaEngine) -> None:
        self._spec = spec
        self._engine = engine
        self._prepared = engine.cpu.prepare(spec, seed)

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples, GpuMemoryFull."""
        if not isinstance(out, DeviceSlot):
            return self._prepared.run(samples, keys, out)
        self._engine.check_slot(self._spec, out, len(samples))
        with self._engine.lane() as lane:
            staged = lane.host(out.nbytes)
            result = self._prepared.run(samples, keys, staged)
            lane.upload(out.pointer, staged)
            return result

    def close(self) -> None:
        """Free what it holds."""
        self._prepared.close()
