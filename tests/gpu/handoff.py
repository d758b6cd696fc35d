"""How long a batch takes from the worker's pixels to the trainer's hands, and whether a byte crosses PCIe on that way."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.wire.device_memory import PATTERN_BYTES
from headrace.wire.meta_head import read_milestones
from tests.gpu import devices
from tests.gpu.bench import GPU_KINDS, Keeper, Size
from tests.gpu.contestants import SIDE, Absent, absence, need_gpu
from tests.gpu.made import Order
from tests.gpu.peers import TAKE_S, taking, working
from tests.gpu.report import Row

# What both sides write and read to prove that they see the same memory: both ends, once a rank.
PROBE_BYTES = 2 * PATTERN_BYTES
SAMPLE_S = 0.02


def times(size: Size) -> Iterator[Row]:
    """From the moment in which the engine has returned, so that the pixels are there, to the one in which take() returns.

    Each batch is asked for after the one before: nothing is ready beforehand. The engine makes nothing, so that nothing else
    runs. Sealing, the message, and the waking of the trainer's thread are in it.
    """
    for memory in ("", *devices.KINDS):
        name = f"hand-over by {memory or 'shm'}"
        try:
            yield _times(name, memory, size)
        except Absent as absent:
            yield Row("hand-off", name, "not run", reason=str(absent))


def _times(name: str, memory: str, size: Size) -> Row:
    if memory in GPU_KINDS:
        need_gpu()
    found = []
    with ExitStack() as stack:
        with absence(name):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
            order = Order(str(directory / "w.sock"), memory, "null", size.batch, SIDE, window=1)
            device = devices.open_kind(memory) if memory else None
            stack.enter_context(working(order))
            intake = stack.enter_context(taking(order, order.session(1_000_000), device))
        until = time.monotonic() + 2 * size.seconds
        while time.monotonic() < until or len(found) < 20:
            taken = intake.take(len(found), TAKE_S)
            now_s = time.monotonic()
            found.append(1e6 * (now_s - read_milestones(taken.meta)["augmented"]))
            del taken
            intake.release(len(found))
    found.sort()
    p50, p90, p99 = (found[int(len(found) * share)] for share in (0.5, 0.9, 0.99))
    figures = {"p50_us": round(p50, 1), "p90_us": round(p90, 1), "p99_us": round(p99, 1), "batches": len(found)}
    return Row("hand-off", name, "passed", figures, f"{order.spec.pixel_bytes(size.batch) / 1e6:.1f} MB a batch")


def pcie(size: Size) -> Iterator[Row]:
    """Bytes between host and GPU while batches are handed over: those that we copy, and those that the GPU counts."""
    for memory in devices.KINDS:
        engine = "cvcuda-on-numpy" if memory == "memfd" else "null"
        name = f"engine {engine}, hand-over by {memory}, our own copies"
        try:
            yield _own_copies(name, engine, memory, size)
        except Absent as absent:
            yield Row("PCIe", name, "not run", reason=str(absent))
    for memory in GPU_KINDS:
        name = f"hand-over by {memory}, counted by NVML"
        try:
            yield _counted(name, memory, size)
        except Absent as absent:
            yield Row("PCIe", name, "not run", reason=str(absent))


def _own_copies(name: str, engine: str, memory: str, size: Size) -> Row:
    """What DeviceMemory.write and read moved in both processes: all of our copies between host and device go through them."""
    if memory in GPU_KINDS:
        need_gpu()
    batches = 12
    with ExitStack() as stack:
        order, device, worker, intake = _pair(stack, name, engine, memory, size)
        for index in range(batches):
            intake.take(index, TAKE_S)
            intake.release(index + 1)
        told = worker.ask()
        mine = devices.counter(device)
    moved = told["written"] + told["read_back"] + mine.written + mine.read_back - 4 * PROBE_BYTES
    figures = {"batches": batches, "pixel_bytes": batches * order.spec.pixel_bytes(size.batch), "copied_bytes": moved}
    return Row("PCIe", name, "failed" if moved else "passed", figures, "beside the probe of 512 bytes a rank")


def _counted(name: str, memory: str, size: Size) -> Row:
    """The GPU's own count, idle, while batches are handed over, and while as many are read to the host: a counter that does
    not see these is blind."""
    need_gpu()
    with ExitStack() as stack:
        counter = stack.enter_context(PcieCounter())
        order, device, _, intake = _pair(stack, name, "null", memory, size)
        keep = Keeper(order, stack)
        pixel_bytes = order.spec.pixel_bytes(size.batch)
        state = {"next": 0}
        host = memoryview(bytearray(pixel_bytes))

        def hand_over(read_back: bool) -> int:
            """For a second; returns the bytes."""
            first, until = state["next"], time.monotonic() + 1.0
            while time.monotonic() < until:
                taken = intake.take(state["next"], TAKE_S)
                assert taken.device is not None
                if read_back:
                    device.memories[0].read(taken.device.pointer, host)
                else:
                    keep(taken.device.pointer)
                state["next"] += 1
                del taken
                intake.release(state["next"])
            return (state["next"] - first) * pixel_bytes

        idle, _ = counter.during(lambda: time.sleep(1.0) or 0)
        crossed, handed = counter.during(lambda: hand_over(False))
        control, read = counter.during(lambda: hand_over(True))
    figures = {"handed_bytes": handed, "crossed_bytes": crossed, "idle_bytes": idle, "control_read_bytes": read,
               "control_crossed_bytes": control}  # fmt: skip
    share = max(0, crossed - idle) / max(handed, 1)
    if control < 0.5 * read:
        return Row("PCIe", name, "not run", figures, f"the counter ({counter.how}) does not see copies that were made")
    seen = f"{100 * share:.2f}% of the bytes handed over crossed ({counter.how})"
    return Row("PCIe", name, "passed" if share < 0.01 else "failed", figures, seen)


def _pair(stack: ExitStack, name: str, engine: str, memory: str, size: Size) -> tuple[Any, ...]:
    with absence(name):
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
        order = Order(str(directory / "w.sock"), memory, engine, size.batch, SIDE, photos=size.batch)
        device = devices.open_kind(memory)
        worker = stack.enter_context(working(order))
        intake = stack.enter_context(taking(order, order.session(1_000_000), device))
    return order, device, worker, intake


class PcieCounter:
    """Bytes over PCIe of the first GPU, both ways: NVML's counters, or its rates sampled. Raises Absent."""

    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.how = "NVML's byte counters" if self._fields() is not None else "NVML's rates, sampled"
            if self._fields() is None:
                self._rate()
        except Exception as error:
            raise Absent(f"NVML does not count PCIe here: {error!r}") from error

    def __enter__(self) -> PcieCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._nvml.nvmlShutdown()

    def during(self, work: Callable[[], int]) -> tuple[int, int]:
        """(bytes that crossed meanwhile, what `work` returned)."""
        before = self._fields()
        if before is not None:
            result = work()
            after = self._fields()
            assert after is not None
            return after - before, result
        rates, stop = [], threading.Event()

        def sample() -> None:
            while not stop.is_set():
                rates.append(self._rate())

        thread = threading.Thread(target=sample)
        begun = time.monotonic()
        thread.start()
        try:
            result = work()
        finally:
            took = time.monotonic() - begun
            stop.set()
            thread.join()
        return int(statistics.fmean(rates) * took), result

    def _rate(self) -> float:
        """Bytes a second, over the last 20 ms, which the call takes."""
        kinds = (self._nvml.NVML_PCIE_UTIL_TX_BYTES, self._nvml.NVML_PCIE_UTIL_RX_BYTES)
        return 1024.0 * sum(self._nvml.nvmlDeviceGetPcieThroughput(self._handle, kind) for kind in kinds)

    def _fields(self) -> int | None:
        """The two counters' sum; None where this GPU has none."""
        ids = [getattr(self._nvml, f"NVML_FI_DEV_PCIE_COUNT_{way}_BYTES", None) for way in ("TX", "RX")]
        if None in ids:
            return None
        values = self._nvml.nvmlDeviceGetFieldValues(self._handle, ids)
        if any(value.nvmlReturn != self._nvml.NVML_SUCCESS for value in values):
            return None
        return sum(int(value.value.ullVal) for value in values)
