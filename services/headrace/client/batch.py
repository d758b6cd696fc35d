"""What the trainer gets: one batch, its pixels a view into shared memory with a stated life time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.client.device_pixels import DevicePixels
from headrace.core.batch import BAD_REASONS, PADDED, SUBSTITUTED, BatchMeta
from headrace.core.errors import BatchReleased
from headrace.wire import slot_format
from headrace.wire.meta_head import MetaHead, read_labels, read_milestones, read_status
from headrace.wire.slot_format import SlotHeader


@dataclass(frozen=True, slots=True)
class Substitution:
    """A bad sample: `sample_id` was planned in `row`, it was unusable for `reason`, `source_id`'s pixels stand there."""

    row: int
    sample_id: int
    source_id: int
    reason: str


class Batch:
    """One batch of B samples.

    pixels: read-only array in the job's output layout and dtype (bfloat16 as ml_dtypes.bfloat16 where that package is
    installed, else as uint16 of the same bits). It is a view into the slot that the worker filled: it is valid until the
    next batch is asked for or the stream is closed; later `pixels` raises BatchReleased. An array kept from before can still be
    read, also after the stream's and the worker's end, but the slot may hold another batch by then, or half of one; it keeps
    the whole slab mapped, all slots of it. `copy()` gives a batch that stays. Everything else stays valid anyway:

    on_device: the pixels on a GPU, where they came by `cuda_ipc`, else None; valid as long as `pixels`, which is then a copy in
    host memory, made when it is first asked for.

    labels: int64[B], uint8[B, classes] for multi-label sets, or None where labels are JSON; then label_json has B texts.
    keys: B texts. sample_ids: int64[B], the samples planned, as places in the manifest; source_ids: int64[B], the ones
    whose pixels, labels and keys are there (they differ where a bad sample was substituted). status: uint8[B], 0 ok,
    1 padded, 2 substituted. mask: bool[B], False where padded. epoch, step: of this rank. batch: k in the epoch plan.
    fingerprint: of the engine that made it. worker, transport: where it came from. pinned: a GPU copies from `pixels` without
    anybody's waiting.
    """

    __slots__ = ("_data", "_decoded", "_device", "_head", "_header", "_pixels", "pinned", "transport")

    def __init__(
        self,
        head: MetaHead,
        data: bytearray,
        header: SlotHeader,
        pixels: NDArray[Any] | None,
        transport: str,
        *,
        device: DevicePixels | None = None,
        pinned: bool = False,
    ) -> None:
        self._head = head
        self._data = data
        self._decoded: BatchMeta | None = None
        self._header = header
        self._pixels = pixels
        self._device = device
        self.pinned = pinned
        self.transport = transport

    @property
    def _meta(self) -> BatchMeta:
        """All that is beside the pixels, parsed when first asked for: most trainers want labels alone."""
        if self._decoded is None:
            from headrace.wire.batch_meta import decode_meta  # here, since protobuf takes long to load

            self._decoded = decode_meta(self._data)
        return self._decoded

    @property
    def pixels(self) -> NDArray[Any]:
        """The images. Raises BatchReleased once their memory went back."""
        if self._pixels is None:
            if self._device is None:
                raise self._gone()
            self._pixels = self._device.to_host(numpy_dtype(self.dtype))
        return self._pixels

    @property
    def on_device(self) -> DevicePixels | None:
        """The images on a GPU, or None: they are in host memory. Raises BatchReleased once their memory went back."""
        if self.released:
            raise self._gone()
        return self._device

    def _gone(self) -> BatchReleased:
        return BatchReleased(
            "this batch's pixels are gone: they are valid until the next batch is asked for; use batch.copy() to keep them",
            job=self._meta.job,
            epoch=self.epoch,
            step=self.step,
        )

    @property
    def released(self) -> bool:
        """True once the pixels are gone."""
        return self._pixels is None and self._device is None

    @property
    def labels(self) -> NDArray[np.int64] | NDArray[np.uint8] | None:
        """Labels as numbers, or None where the data set's labels are JSON."""
        return read_labels(self._data, self._head)

    @property
    def label_json(self) -> list[bytes]:
        """B JSON texts, or nothing where labels are numbers."""
        return self._meta.label_json

    @property
    def keys(self) -> list[str]:
        """B sample keys, of source_ids."""
        return self._meta.keys

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool[B], False where padded."""
        mask: NDArray[np.bool_] = self.status != PADDED
        return mask

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """int64[B], the samples planned."""
        return self._meta.sample_ids

    @property
    def source_ids(self) -> NDArray[np.int64]:
        """int64[B], the samples whose pixels are there."""
        return self._meta.source_ids

    @property
    def status(self) -> NDArray[np.uint8]:
        """uint8[B]: core.batch.OK, PADDED or SUBSTITUTED."""
        return read_status(self._data, self._head)

    @property
    def epoch(self) -> int:
        """Epoch, from 0."""
        return self._head.epoch

    @property
    def step(self) -> int:
        """Step of this rank in the epoch, counted from the session's first batch there."""
        return self._head.step

    @property
    def batch(self) -> int:
        """Place in the epoch plan (k)."""
        return self._head.batch

    @property
    def index(self) -> int:
        """Position in the rank's session."""
        return self._head.index

    @property
    def fingerprint(self) -> str:
        """Engine that made it."""
        return self._meta.fingerprint

    @property
    def worker(self) -> str:
        """Worker that made it."""
        return self._meta.worker

    @property
    def milestones(self) -> dict[str, float]:
        """When it passed each of core.batch.MILESTONES, in seconds on its worker's monotonic clock."""
        return read_milestones(self._data)

    @property
    def dtype(self) -> str:
        """Name of the pixels' dtype, one of core.pipeline_spec.DType."""
        return self._header.dtype

    @property
    def layout(self) -> str:
        """NHWC or NCHW."""
        return self._header.layout

    @property
    def substituted(self) -> list[Substitution]:
        """The bad samples of this batch."""
        meta = self._meta
        return [
            Substitution(row, int(meta.sample_ids[row]), int(meta.source_ids[row]), BAD_REASONS[int(meta.reasons[row])])
            for row in np.flatnonzero(meta.status == SUBSTITUTED).tolist()
        ]

    def __len__(self) -> int:
        return self._head.samples

    def __repr__(self) -> str:
        return f"Batch(epoch={self.epoch}, step={self.step}, batch={self.batch}, samples={len(self)}, released={self.released})"

    def copy(self) -> Batch:
        """The same batch with pixels of its own in host memory, writable and valid for good. Raises BatchReleased."""
        return Batch(self._head, self._data.copy(), self._header, self.pixels.copy(), self.transport)

    def release(self) -> None:
        """Forget the pixels; called by the stream before their memory goes back. A copy is not concerned."""
        self._pixels = self._device = None


def pixel_view(slot: memoryview, header: SlotHeader) -> NDArray[Any]:
    """Array over a slot's pixels, read-only as the slot is. The caller has checked that the header's lengths agree.

    The array, and all that is made of it, holds the mapping. `np.ndarray(buffer=...)` would not: it keeps the mmap's object
    but not the export of its memory, so that the mapping could be closed under an array, and reading that kills the process.
    """
    dtype = numpy_dtype(header.dtype)
    flat: NDArray[Any] = np.frombuffer(slot, dtype, header.pixel_bytes // dtype.itemsize, slot_format.PIXEL_OFFSET)
    return flat.reshape(header.shape)


@lru_cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a pipeline's dtype; bfloat16 from ml_dtypes if that can be imported, else uint16."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16
