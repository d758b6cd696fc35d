"""How one batch is made: read, decode and augment into its slot, substitute the bad, seal.

`make_batch` runs on the event loop; the engine and the sealing run on the producer's engine thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray

from headrace.core import batch as codes
from headrace.core.batch import BatchMeta
from headrace.core.epoch_plan import BatchSamples
from headrace.core.errors import BatchFailed, GpuMemoryFull, Ids, SourceUnavailable
from headrace.core.session_plan import Position
from headrace.core.substitution import candidates
from headrace.wire import batch_meta, slot_format
from headrace.worker.budget import ByteBudget
from headrace.worker.engines.protocol import Out, part
from headrace.worker.pixel_places import DevicePlace, PixelPlaces
from headrace.worker.sources.protocol import ReadBatch
from headrace.worker.turns import EngineTurns
from headrace.worker.work import SessionWork

log = structlog.get_logger()

# A batch that found no GPU memory though it was alone is tried so often, with so long between: others share the GPU.
ALONE_TRIES = 5
ALONE_PAUSE_S = 2.0


@dataclass(slots=True)
class Order:
    """A batch to be made. slot: writable, slot_bytes long. Times: CLOCK_MONOTONIC; read_s: once it has its bytes.

    device: where its pixels go if not into the slot.
    """

    work: SessionWork
    rank: int
    index: int
    position: Position
    token: int
    slot: memoryview
    worker: str
    fingerprint: str
    leased_s: float
    slot_free_s: float
    started_s: float
    read_s: float | None = None
    device: DevicePlace | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What became of an order.

    total_bytes: length of the sealed slot. requests: reads made. read_s, busy_s: wall seconds of the reads and of the
    engine. decode_s, augment_s: thread-seconds. bad: reason code -> samples. at_once: how many shared busy_s: 1 where
    threads make one batch after another, for then it counts from the batch's own first row.
    device_bytes: its pixels, where they lie on a GPU instead. augmented_s: when its pixels were there, CLOCK_MONOTONIC.
    """

    total_bytes: int
    read_bytes: int
    requests: int
    read_s: float
    busy_s: float
    decode_s: float
    augment_s: float
    bad: dict[int, int]
    at_once: int = 1
    device_bytes: int = 0
    augmented_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all batches of a worker share.

    executor: a thread for each batch that may be in the engine. turns: how many may be. memory_full: called for each try that
    found no GPU memory. read_deadline_s: for the reads of one batch. places: where pixels are written.
    """

    executor: Executor
    turns: EngineTurns
    read_deadline_s: float
    memory_full: Callable[[], None] = lambda: None
    places: PixelPlaces = field(default_factory=PixelPlaces)


async def make_batch(order: Order, shop: Workshop, budget: ByteBudget) -> Made:
    """Make one batch into its slot; budget: of its job.

    Raises BatchFailed, GpuMemoryFull, or the source's ShardMissing, ShardChanged, AccessDenied or SourceUnavailable.
    """
    samples = order.work.batch_samples(order.position)
    reserved: list[int] = []
    try:
        read = await _read(order, samples.sample_ids.tolist(), shop.read_deadline_s, budget, reserved)
        order.read_s = time.monotonic()
        return await _in_turn(order, shop, samples, read)
    finally:
        budget.give(sum(reserved))


async def _in_turn(order: Order, shop: Workshop, samples: BatchSamples, read: ReadBatch) -> Made:
    """Produce in the engine's turn; where its GPU has no memory, again with fewer beside it. Raises GpuMemoryFull."""
    loop = asyncio.get_running_loop()
    alone = 0
    while True:
        async with shop.turns.turn() as at_once:
            try:
                made = await loop.run_in_executor(shop.executor, _produce, order, shop.places, samples, read, at_once)
            except GpuMemoryFull as error:
                full = error
                shop.turns.shrink()
                limit = shop.turns.limit
            else:
                shop.turns.went_well()
                return made
        shop.memory_full()
        log.warning("gpu_memory_full", index=order.index, at_once=at_once, now_at_most=limit, error=full.message)
        if at_once == 1:
            alone += 1
            if alone == ALONE_TRIES:
                raise full
            await asyncio.sleep(ALONE_PAUSE_S)


async def _read(order: Order, sample_ids: list[int], deadline_s: float, budget: ByteBudget, reserved: list[int]) -> ReadBatch:
    """Read within the deadline, which does not run while bytes wait for room; `reserved` gets what is held."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(deadline_s) as deadline:

            async def reserve(count: int) -> None:
                deadline.reschedule(None)
                asked_s = time.monotonic()
                await budget.take(count)
                # No room: the engine is behind with other batches. That is no time of this one's reads.
                order.started_s += time.monotonic() - asked_s
                reserved.append(count)
                deadline.reschedule(loop.time() + deadline_s)

            return await order.work.source.read(sample_ids, reserve)
    except TimeoutError:
        job, position = order.work.session.job, order.position
        raise SourceUnavailable(
            f"the reads of a batch did not end within {deadline_s:g} s; look at the store or mount of {job.dataset}",
            job=job.name, epoch=position.epoch, batch=position.batch,
        ) from None  # fmt: skip


def _produce(order: Order, places: PixelPlaces, samples: BatchSamples, read: ReadBatch, at_once: int) -> Made:
    assert order.read_s is not None
    session = order.work.session
    job = session.job
    sample_ids, mask = samples.sample_ids, samples.mask
    keys = [(order.position.epoch, sample_id) for sample_id in sample_ids.tolist()]
    begun = time.monotonic()
    with places.writing(order.slot, order.device, order.work.pixel_bytes) as pixels:
        result = order.work.engine.run(read.samples, keys, pixels)
        if result.queued_s is not None:  # the threads made other batches until then, and are this one's from then on
            begun, at_once = begun + result.queued_s, 1
        sources, reasons = _substitute(order, read, keys, result.reasons, pixels)
        augmented = time.monotonic()
    # One library call decodes and augments: its wall time is split by the thread-seconds that it measured for each.
    share = result.decode_s / max(result.decode_s + result.augment_s, 1e-12)
    status = np.where(sources != np.arange(len(sources)), codes.SUBSTITUTED, codes.OK).astype(np.uint8)
    status[~mask] = codes.PADDED
    meta = BatchMeta(
        job=job.name,
        attempt=session.attempt,
        rank=order.rank,
        index=order.index,
        epoch=order.position.epoch,
        step=order.position.step,
        batch=order.position.batch,
        lane=order.position.lane,
        token=order.token,
        worker=order.worker,
        plan_hash=job.plan_hash,
        fingerprint=order.fingerprint,
        sample_ids=sample_ids,
        source_ids=sample_ids[sources],
        status=status,
        reasons=reasons,
        keys=[read.samples[row].key for row in sources],
        labels=None if read.labels is None else read.labels[sources],
        bad_keys=[read.samples[row].key for row in np.flatnonzero(status == codes.SUBSTITUTED)],
        label_json=[read.label_json[row] for row in sources] if read.label_json else [],
        milestones=_milestones(order, begun, begun + (augmented - begun) * share, augmented),
    )
    output = job.pipeline.output
    total = slot_format.seal(
        order.slot,
        batch_meta.encode_meta(meta),
        index=order.index,
        token=order.token,
        dtype=output.dtype,
        layout=output.layout,
        shape=job.pipeline.shape(job.batch_size),
        pixel_bytes=order.work.pixel_bytes,
        on_device=order.device is not None,
    )
    met = reasons[mask & (reasons > 0)]
    bad = {int(code): int(count) for code, count in zip(*np.unique(met, return_counts=True), strict=True)}
    return Made(
        total,
        read.read_bytes,
        read.requests,
        order.read_s - order.started_s,
        augmented - begun,
        result.decode_s,
        result.augment_s,
        bad,
        at_once,
        order.work.pixel_bytes if order.device is not None else 0,
        augmented,
    )


def _milestones(order: Order, begun_s: float, decoded_s: float, augmented_s: float) -> dict[str, float]:
    """In the order in which they are passed; now the batch is published."""
    assert order.read_s is not None
    return {
        "leased": order.leased_s,
        "slot_free": order.slot_free_s,
        "started": order.started_s,
        "read": order.read_s,
        "engine": begun_s,
        "decoded": decoded_s,
        "augmented": augmented_s,
        "published": time.monotonic(),
    }


def _substitute(
    order: Order,
    read: ReadBatch,
    keys: list[tuple[int, int]],
    reasons: NDArray[np.uint8],
    pixels: Out,
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Fill the rows of bad samples from good ones of the same batch, under the planned row's parameters.

    Returns (row whose sample is there int64[B], reasons uint8[B]). Raises BatchFailed.
    """
    rows = np.arange(len(keys), dtype=np.int64)
    bad = np.flatnonzero(reasons)
    if len(bad) == 0:
        return rows, reasons
    job, position = order.work.session.job, order.position
    first = read.samples[int(bad[0])]
    ids: Ids = {"job": job.name, "epoch": position.epoch, "batch": position.batch, "sample": first.sample_id, "key": first.key}
    reason = codes.BAD_REASONS[int(reasons[bad[0]])]
    if job.pipeline.on_bad_sample == "fail":
        raise BatchFailed(
            f"sample {first.key!r} is bad ({reason}) and the job's policy is `fail`: mend it and index again",
            **ids,
        )
    if len(bad) == len(keys):
        raise BatchFailed(
            f"all {len(keys)} samples of the batch are bad (first {first.key!r}: {reason}); look at the data set", **ids
        )
    row_bytes = pixels.nbytes // len(keys)
    planned = [sample for _, sample in keys]
    for row in bad.tolist():
        for substitute in candidates(job.seed, position.epoch, planned[row], planned):
            if reasons[substitute]:
                continue
            out = part(pixels, row * row_bytes, (row + 1) * row_bytes)
            if not order.work.engine.run([read.samples[substitute]], [keys[row]], out).reasons[0]:
                rows[row] = substitute
                break
        else:
            raise BatchFailed(f"no good sample can stand in for {read.samples[row].key!r}; look at the data set", **ids)
    return rows, reasons
