"""The `dali` engines: JPEG decode and the fused geometry by NVIDIA DALI, on the CPU or, by the same code, on a GPU.

How a row is made is told by its header, the spec and its drawn parameters alone. JPEGs of the usual kinds, whole, are decoded
by DALI, all other images by libraries as in the `cpu` engine; then DALI cuts, scales and mirrors, and the other operations are
the shared code's. What DALI's geometry lacks (a crop over the image's edge, a spec that does not begin with crops and resizes)
is made by that code altogether. DALI passes over damage, so libjpeg reads each JPEG to its end before, warnings being errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.core.errors import GpuLost, GpuMemoryFull, HeadraceError
from headrace.core.image_header import ImageHeader
from headrace.core.pipeline_spec import OPS_BY_NAME, PipelineSpec
from headrace.worker.engines import native, pixels, resample
from headrace.worker.engines.apply import Operations
from headrace.worker.engines.crew import Crew
from headrace.worker.engines.dali_input import plain_jpeg
from headrace.worker.engines.dali_line import AnyImages, Line
from headrace.worker.engines.dali_stages import StageFailed, copy_to_gpu, host_images
from headrace.worker.engines.dali_versions import dali_versions
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.jpeg_scan import scan_fault
from headrace.worker.engines.native import NativeCore
from headrace.worker.engines.output import SlotArray, Writer
from headrace.worker.engines.pixels import Pixels
from headrace.worker.engines.protocol import DeviceSlot, Out, RunResult, Sample
from headrace.worker.engines.resample import crop
from headrace.worker.engines.rows import Rows, look_at

# Raise when a change of this package can change a pixel.
VERSION = 1
# Decoded pixels that DALI holds at a time; a batch of large photos goes through in pieces.
PIECE_BYTES = 256 << 20

log = structlog.get_logger()


class DaliEngine:
    """DALI with `threads` of its own. gpu: ordinal in this process; None: the CPU, no driver needed. core: for the check.

    Raises EngineUnsupported (id: engine) if the GPU cannot be used.
    """

    ops = frozenset(OPS_BY_NAME)

    def __init__(self, threads: int, core: NativeCore | None, gpu: int | None = None) -> None:
        self.name = "dali" if gpu is None else "dali-gpu"
        self.memory = frozenset({"host"} if gpu is None else {"host", "cuda"})
        self.batches_at_once = 1 if gpu is None else 2
        self.threads = max(1, threads)
        self.gpu = gpu
        self.core = core
        path = core.versions() if core else resample.versions()
        self.fingerprint = f"{self.name}-{VERSION};{dali_versions(gpu)},{path},{pixels.versions()}"
        self.crew = Crew(self.threads)

    def prepare(self, spec: PipelineSpec, seed: int) -> PreparedDali:
        """Make ready for a job. This engine has every operation and format."""
        if not fused_count(spec):
            log.warning(
                "dali_not_used", why="the spec does not begin with crops and resizes that fix the size", engine=self.name
            )
        return PreparedDali(spec, seed, self)

    def close(self) -> None:
        """End the threads; idempotent."""
        self.crew.close()


@dataclass(slots=True)
class _Batch:
    """One batch under way. out: pixels of the slot in host memory, or the slot on the GPU. Times in thread-seconds."""

    rows: Rows
    line: Line
    out: SlotArray | DeviceSlot
    decode_s: float
    augment_s: float


class PreparedDali:
    """The engine ready for one job's spec. `run` may be called from engine.batches_at_once threads."""

    def __init__(self, spec: PipelineSpec, seed: int, engine: DaliEngine) -> None:
        self._spec = spec
        self._seed = seed
        self._engine = engine
        self._crew = engine.crew
        self._writer = Writer(spec)
        self._fused = fused_count(spec)
        resize = engine.core.resize if engine.core else resample.resize
        self._all_ops = Operations(spec, resize)
        self._other_ops = Operations(spec, resize, self._fused)
        self._row_bytes = spec.pixel_bytes(1)
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def run(self, samples: Sequence[Sample], keys: Sequence[tuple[int, int]], out: Out) -> RunResult:
        """See PreparedEngine.run. Raises HeadraceError if `out` is not a slot for these samples, GpuMemoryFull."""
        slot = self._slot(out, len(samples))
        rows = look_at(self._spec, self._seed, samples, keys, self._fused)
        with self._line() as line:
            batch = _Batch(rows, line, slot, rows.probe_s, rows.sample_s)
            jpegs, images, others = self._sorted(rows)
            for piece in self._pieces(rows, self._sound(batch, jpegs)):
                self._decode_by_dali(batch, piece)
            for piece in self._pieces(rows, images):
                self._decode_by_libraries(batch, piece)
            for piece in self._pieces(rows, others):
                self._make_without_dali(batch, piece)
        return RunResult(rows.reasons, batch.decode_s, batch.augment_s)

    def close(self) -> None:
        """Free what DALI holds for the job; idempotent."""
        with self._lock:
            while self._lines:
                self._lines.pop().close()

    def _slot(self, out: Out, count: int) -> SlotArray | DeviceSlot:
        if not isinstance(out, DeviceSlot):
            return self._writer.view(out, count)
        if out.gpu != self._engine.gpu or out.nbytes != count * self._row_bytes:
            raise HeadraceError(f"{count} rows of engine {self._engine.name} on GPU {self._engine.gpu} don't fit {out}")
        return out

    @contextmanager
    def _line(self) -> Iterator[Line]:
        """A line for one batch; as many are kept as batches were made at once."""
        with self._lock:
            line = self._lines.pop() if self._lines else None
        if line is None:
            line = Line(self._spec, self._fused, self._engine.threads, self._engine.gpu)
        try:
            yield line
        finally:
            with self._lock:
                self._lines.append(line)

    def _sorted(self, rows: Rows) -> tuple[list[int], list[int], list[int]]:
        """Rows that DALI decodes, rows that it scales after libraries decoded them, and the rest. Bad ones are refused."""
        jpegs, images, others = list[int](), list[int](), list[int]()
        for row, probe in enumerate(rows.probes):
            reason = rows.known_bad(row)
            if reason != "none" or probe is None:
                rows.refuse(row, reason)
            elif rows.geometry is None or not rows.geometry.inside[row]:
                others.append(row)
            else:
                (jpegs if takes(probe.header, self._engine.gpu) else images).append(row)
        return jpegs, images, others

    def _sound(self, batch: _Batch, jpegs: list[int]) -> list[int]:
        """Those that libjpeg has nothing to say of; the others are refused."""

        def fault(row: int) -> str:
            probe = batch.rows.probes[row]
            assert probe is not None
            return scan_fault(probe, self._engine.core)

        faults, thread_s = self._crew.map(fault, jpegs)
        batch.decode_s += thread_s
        sound = []
        for row, reason in zip(jpegs, faults, strict=True):
            if reason == "none":
                sound.append(row)
            else:
                batch.rows.refuse(row, reason)
        return sound

    def _pieces(self, rows: Rows, chosen: list[int]) -> Iterator[list[int]]:
        """The rows in pieces that hold at most PIECE_BYTES once decoded, or one row."""
        piece, held = list[int](), 0
        for row in chosen:
            probe = rows.probes[row]
            assert probe is not None
            cost = 3 * (probe.header.width * probe.header.height + self._spec.out_size[0] * self._spec.out_size[1])
            if piece and held + cost > PIECE_BYTES:
                yield piece
                piece, held = [], 0
            piece.append(row)
            held += cost
        if piece:
            yield piece

    def _decode_by_dali(self, batch: _Batch, piece: list[int]) -> None:
        """Decode and finish the rows. Where DALI fails on them all for one of them, by halves."""
        rows = batch.rows
        assert rows.geometry is not None
        jpegs = [plain_jpeg(probe.data, probe.header) for row in piece if (probe := rows.probes[row])]
        boxes = batch.line.boxes(rows.geometry, piece)
        started = self._seconds()
        try:
            images = batch.line.decode(jpegs, boxes)
        except StageFailed as failed:
            if len(piece) > 1:
                half = len(piece) // 2
                self._decode_by_dali(batch, piece[:half])
                self._decode_by_dali(batch, piece[half:])
            else:
                self._refuse(batch, piece[0], failed, in_bytes=batch.line.refuses(jpegs[0], boxes))
            return
        batch.decode_s += self._seconds() - started
        self._transform(batch, images, piece)

    def _refuse(self, batch: _Batch, row: int, failed: StageFailed, in_bytes: bool) -> None:
        """A row that DALI fails on alone is bad where that lies in its bytes.

        Raises GpuLost or, of DALI on the CPU, HeadraceError where not even a sound image is decoded; GpuMemoryFull.
        """
        if fault := batch.line.fault():
            kind = HeadraceError if self._engine.gpu is None else GpuLost
            raise kind(f"DALI decodes nothing any more: restart the worker. It says: {fault}") from failed
        sample = batch.rows.samples[row]
        if not in_bytes:
            # Substituting would make another batch than on a GPU with more room.
            raise GpuMemoryFull(f"GPU {self._engine.gpu} fails on an image that is sound, for want of memory or so: {failed}")
        log.warning("dali_refused", sample_id=sample.sample_id, key=sample.key, error=str(failed))
        batch.rows.refuse(row, "corrupt")

    def _decode_by_libraries(self, batch: _Batch, piece: list[int]) -> None:
        assert batch.rows.geometry is not None
        boxes = batch.line.boxes(batch.rows.geometry, piece).tolist()

        def cut(row: int, box: list[int]) -> Pixels | None:
            image = batch.rows.decode(row)
            if image is None:
                return None
            return pixels.contiguous(crop(image, (box[0], box[1], box[2], box[3]), self._spec.decode.background))

        found, thread_s = self._crew.map(cut, piece, boxes)
        batch.decode_s += thread_s
        good = [(row, image) for row, image in zip(piece, found, strict=True) if image is not None]
        if good:
            self._transform(batch, [image for _, image in good], [row for row, _ in good])

    def _transform(self, batch: _Batch, images: AnyImages, piece: list[int]) -> None:
        """The fused operations by DALI; then the others, if any, and into the slot."""
        assert batch.rows.geometry is not None
        straight = isinstance(batch.out, DeviceSlot) and self._fused == len(self._spec.ops)
        started = self._seconds()
        made = batch.line.transform(images, batch.rows.geometry, piece, formatted=straight)
        if isinstance(batch.out, DeviceSlot) and straight:
            copy_to_gpu(made, batch.out.pointer, self._row_bytes, piece)
        in_host = [] if straight else host_images(made)
        batch.augment_s += self._seconds() - started
        if in_host:
            self._finish(batch, piece, lambda place, row: self._other_ops(in_host[place], batch.rows.params, row))

    def _make_without_dali(self, batch: _Batch, piece: list[int]) -> None:
        found, thread_s = self._crew.map(batch.rows.decode, piece)
        batch.decode_s += thread_s
        good = [(row, image) for row, image in zip(piece, found, strict=True) if image is not None]
        if good:
            self._finish(
                batch, [row for row, _ in good], lambda place, row: self._all_ops(good[place][1], batch.rows.params, row)
            )

    def _finish(self, batch: _Batch, rows: list[int], finished: Callable[[int, int], Pixels]) -> None:
        """Put finished(place in rows, row), uint8[H, W, 3], into the slot."""
        out = batch.out

        def write(place: int, row: int) -> Any:
            image = finished(place, row)
            if isinstance(out, DeviceSlot):
                return pixels.contiguous(image)
            return self._writer.write(image, out[row])

        made, thread_s = self._crew.map(write, range(len(rows)), rows)
        if isinstance(out, DeviceSlot):
            copy_to_gpu(batch.line.format(made), out.pointer, self._row_bytes, rows)
        batch.augment_s += thread_s

    def _seconds(self) -> float:
        """A clock of what DALI's own threads take, which it does not tell: the process does little else while they work.

        On a GPU, where they wait for it, the time that passes.
        """
        return time.process_time() if self._engine.gpu is None else time.monotonic()


def takes(header: ImageHeader, gpu: int | None) -> bool:
    """Whether DALI decodes this image: a whole JPEG of gray or YCbCr, and on the CPU RGB, of a usual sampling."""
    return native.takes(header) and (gpu is None or header.color != "rgb")
