"""The `cvcuda` engine: decode by nvImageCodec and augment by CV-CUDA on one NVIDIA GPU, straight into the slot.

It has scaling, crops and flips, in that order; for others a job needs another engine. Several batches are in it at once: each
has a lane (stream, decoders, buffers) of its own, so that one is decoded while another is augmented and a third handed over.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from headrace.core.errors import EngineUnsupported, HeadraceError
from headrace.core.pipeline_spec import PipelineSpec
from headrace.core.placement import visible
from headrace.telemetry.nvml import Nvml, NvmlFailed, NvmlMissing
from headrace.worker.engines import codec, cuda_runtime, cvcuda_plan
from headrace.worker.engines.codec import Device
from headrace.worker.engines.cpu import CpuEngine, find_native
from headrace.worker.engines.cvcuda_lane import Lane, as_headrace, start_library
from headrace.worker.engines.decode_half import Decoded, DecodeHalf
from headrace.worker.engines.output import Writer
from headrace.worker.engines.protocol import DeviceSlot, Out, RunResult, Sample

# Raise when a change of this package can change a pixel.
VERSION = 1
# One that is decoded, one that is augmented or copied; the third hides the hand-over of either.
BATCHES_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPU that CUDA calls the first, and its driver."""

    name: str
    driver: str
    jpeg_engine: bool


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
    return GpuFacts(gpus[0].name, driver, bool(gpus[0].jpeg))


def fingerprint(facts: GpuFacts, device: Device, cpu: str) -> str:
    """Versions of all that decodes and augments, driver, GPU model, whether it has a JPEG engine, backend; without spaces."""
    model = facts.name.replace(" ", "_")
    libraries = f"cvcuda={version('cvcuda-cu12')},{codec.versions(device)},driver={facts.driver},gpu={model}"
    return f"cvcuda-{VERSION};{libraries};{cpu}"


class CvcudaEngine:
    """On the first GPU that this process may use. threads: of the CPU, for headers, checks and what the GPU doesn't decode.

    Raises EngineUnsupported (id: engine) where there is no GPU.
    """

    name = "cvcuda"
    ops = frozenset({"resize", "center_crop", "random_crop", "random_resized_crop", "horizontal_flip", "vertical_flip"})
    memory = frozenset({"host", "cuda"})
    batches_at_once = BATCHES_AT_ONCE

    def __init__(self, threads: int) -> None:
        facts = first_gpu()
        self.device = Device(0, facts.jpeg_engine)
        self.cpu = CpuEngine(threads, find_native())
        self.fingerprint = fingerprint(facts, self.device, self.cpu.fingerprint)
        self.pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="headrace-codec")
        self._threads = threads
        self._idle: queue.LifoQueue[Lane] = queue.LifoQueue()
        self._on_gpu = threading.local()

    @contextmanager
    def lane(self) -> Iterator[Lane]:
        """A lane for one call: an idle one, or a new one where all are in use. It comes back with nothing under way."""
        if not getattr(self._on_gpu, "chosen", False):
            cuda_runtime.use(self.device.gpu or 0)
            start_library()
            self._on_gpu.chosen = True
        try:
            one = self._idle.get_nowait()
        except queue.Empty:
            one = self._new_lane()
        try:
            yield one
        finally:
            one.sync()
            self._idle.put(one)

    def _new_lane(self) -> Lane:
        try:
            return Lane(self.device, self._threads)
        except (RuntimeError, MemoryError) as error:
            raise as_headrace(error) from error

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedCvcuda:
        """Make ready for a job. Raises EngineUnsupported (ids: engine, op) for operations that it lacks, or out of order."""
        return PreparedCvcuda(spec, seed, self)

    def close(self) -> None:
        """End threads and lanes; idempotent."""
        self.pool.shutdown(cancel_futures=True)
        self.cpu.close()
        while not self._idle.empty():
            cuda_runtime.use(self.device.gpu or 0)
            self._idle.get_nowait().close()


class PreparedCvcuda:
    """The engine ready for one job's spec. `run` may be called from any thread."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: CvcudaEngine) -> None:
        fused = cvcuda_plan.require(spec, engine.name)
        self._spec = spec
        self._engine = engine
        self._target = cvcuda_plan.target_of(spec.output)
        self._half = DecodeHalf(spec, seed, engine.cpu, engine.device.hardware, fused)
        self._writer = Writer(spec)

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples, GpuMemoryFull."""
        self._check_slot(out, len(samples))
        with self._engine.lane() as lane:
            lane.timer.mark(0, lane.stream)
            decoded = self._half.run(samples, keys, lane.codec, self._engine.pool, lane.stream)
            lane.timer.mark(1, lane.stream)
            if samples:
                self._write(lane, decoded, out)
            lane.timer.mark(2, lane.stream)
            lane.sync()
            decode_s, augment_s = lane.timer.seconds()
        return RunResult(decoded.rows.reasons, decoded.decode_s + decode_s, decoded.augment_s + augment_s)

    def close(self) -> None:
        """Nothing to free: threads and lanes are the engine's."""
        self._half.close()

    def _write(self, lane: Lane, decoded: Decoded, out: Out) -> None:
        """Augment into `out`; it is there after the lane's next sync."""
        count = len(decoded.rows.samples)
        nbytes = self._target.nbytes(self._spec.out_size, count)
        direct = isinstance(out, DeviceSlot) and not self._target.by_host
        pointer = out.pointer if isinstance(out, DeviceSlot) and direct else lane.scratch(nbytes)
        plan = cvcuda_plan.plan(decoded.rows, self._spec.out_size, decoded.images)
        lane.write(plan, self._target, decoded.images, decoded.made, pointer)
        if direct:
            return
        if self._target.by_host:
            self._write_by_host(lane, pointer, nbytes, count, out)
        elif isinstance(out, memoryview):
            cuda_runtime.download(_address(out), pointer, nbytes, lane.stream)

    def _write_by_host(self, lane: Lane, pointer: int, nbytes: int, count: int, out: Out) -> None:
        """Make the slot's format on the host, of pixels that the GPU left as uint8; then copy it back, if the slot is there."""
        slot_bytes = self._spec.pixel_bytes(count)
        staged = lane.host(nbytes + (slot_bytes if isinstance(out, DeviceSlot) else 0))
        cuda_runtime.download(_address(staged), pointer, nbytes, lane.stream)
        lane.sync()
        host_out = staged[nbytes:] if isinstance(out, DeviceSlot) else out
        rows = self._writer.view(host_out, count)
        pixels = np.frombuffer(staged[:nbytes], np.uint8).reshape(count, *self._spec.out_size, 3)
        list(self._engine.pool.map(self._writer.write, pixels, rows))
        if isinstance(out, DeviceSlot):
            cuda_runtime.upload(out.pointer, _address(host_out), slot_bytes, lane.stream)

    def _check_slot(self, out: Out, count: int) -> None:
        if not isinstance(out, DeviceSlot):
            self._writer.view(out, count)
            return
        needed = self._spec.pixel_bytes(count)
        if out.nbytes != needed or out.gpu != self._engine.device.gpu:
            where = f"GPU {self._engine.device.gpu}"
            raise HeadraceError(f"{count} rows need a slot of {needed} bytes on {where}, not {out.nbytes} on GPU {out.gpu}")


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) if view.nbytes else 0
