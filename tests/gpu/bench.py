"""The tables of the proof: `python -m tests.gpu.bench TABLE --out FILE.json [--quick]`.

`throughput` decode, decode + augment, end to end to a second process, against DALI; `parity` against Pillow; `handoff` the time
from pixels that are there to the other process's hands; `pcie` the bytes that cross to and from the host meanwhile.
Contestants of a table take turns, so that what else the machine does meets them all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.telemetry import logging
from tests.gpu import contestants as c
from tests.gpu import devices, photos
from tests.gpu.contestants import Absent, Contestant
from tests.gpu.made import Order
from tests.gpu.peers import TAKE_S, taking, working
from tests.gpu.report import Row

GPU_KINDS = ("vmm", "legacy")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. rounds: of all contestants in turn. seconds: of one contestant in one round."""

    batch: int
    threads: int
    rounds: int
    seconds: float

    @classmethod
    def of(cls, quick: bool) -> Size:
        """Small, to try; or what the report is made with."""
        cores = len(os.sched_getaffinity(0))
        return cls(8, min(2, cores), 1, 0.2) if quick else cls(256, min(16, cores), 3, 0.8)


Make = Callable[[], Contestant]


def interleaved(table: str, makes: list[tuple[str, Make]], size: Size) -> list[Row]:
    """img/s of each contestant: the median of its rounds, and the least and most."""
    rows, ready = [], list[Contestant]()
    for name, make in makes:
        try:
            made = make()
            made.batch()  # builds, allocates, caches
            made.settle()
            ready.append(made)
        except Absent as absent:
            rows.append(Row(table, name, "not run", reason=str(absent)))
        except Exception as error:  # noqa: BLE001 - one that fails must not end the others
            rows.append(Row(table, name, "failed", reason=repr(error)[-400:]))
    rates: dict[str, list[float]] = {one.name: [] for one in ready}
    for _ in range(size.rounds):
        for one in ready:
            rates[one.name].append(_rate(one, size.seconds))
            one.settle()
    for one in ready:
        one.close()
        found = sorted(rates[one.name])
        figures = {"img_s": round(statistics.median(found), 1), "least": round(found[0], 1), "most": round(found[-1], 1)}
        rows.append(Row(table, one.name, "passed", figures=figures))
    return rows


def _rate(one: Contestant, seconds: float) -> float:
    for _ in range(one.ahead):
        one.batch()
    done, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds or not done:
        one.batch()
        done += one.images
    return done / took


def engines(size: Size) -> Iterator[Row]:
    """Each engine of the registry: its fingerprint, or why it cannot be made here."""
    from headrace.worker.engines import registry

    for name in (*registry.NAMES, "cvcuda-on-numpy"):
        try:
            with c.absence(f"engine {name}"):
                made = c.make_engine(name, size.threads)
        except Absent as absent:
            yield Row("engines", name, "not run", reason=str(absent))
            continue
        made.close()
        yield Row("engines", name, "passed", reason=made.fingerprint)


# --- throughput -------------------------------------------------------------------------------------------------------------


def throughput(size: Size) -> Iterator[Row]:
    """Three tables."""
    jpegs, threads = photos.jpegs(size.batch), size.threads
    decode: list[tuple[str, Make]] = [("simplejpeg", lambda: c.decode_libraries(jpegs, threads))]
    decode += [(f"nvimgcodec, {r}", lambda r=r: c.decode_nvimgcodec(jpegs, threads, r)) for r in ("cpu", "hardware", "cuda")]
    for device in ("cpu", "mixed"):
        decode.append((f"DALI decode, {device}", lambda device=device: c.decode_dali(jpegs, threads, device)))
    augment: list[tuple[str, Make]] = []
    for name, memory in (("cpu", ""), ("nvimgcodec", ""), ("dali", ""), ("dali-gpu", "vmm"), ("cvcuda", "vmm")):
        title = f"engine {name}" + (f", slot on the GPU ({memory})" if memory else "")
        augment.append((title, lambda name=name, memory=memory: c.augment_engine(name, jpegs, threads, memory)))
    plain = _plain_dali(jpegs, threads)
    # What the targets are about first: the part may be ended at its limit.
    yield from end_to_end(size, plain)
    yield from interleaved("decode + augment", augment + plain, size)
    yield from interleaved("decode", decode, size)


def _plain_dali(jpegs: list[bytes], threads: int) -> list[tuple[str, Make]]:
    return [
        ("plain DALI pipeline, cpu", lambda: c.augment_dali(jpegs, threads, "cpu")),
        ("plain DALI pipeline, mixed", lambda: c.augment_dali(jpegs, threads, "mixed")),
        ("plain DALI pipeline, mixed, image_random_crop", lambda: c.augment_dali(jpegs, threads, "mixed", region=True)),
    ]


def end_to_end(size: Size, plain: list[tuple[str, Make]]) -> list[Row]:
    """From bytes in a worker's memory to augmented pixels in this process; DALI's own pipeline runs in this process alone."""
    wanted = [("cpu", ""), ("cpu", "memfd"), ("dali", ""), ("dali-gpu", "vmm"), ("cvcuda", "vmm"), ("cvcuda", "legacy")]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-")))
        makes: list[tuple[str, Make]] = []
        for number, (engine, memory) in enumerate(wanted):
            order = Order(str(directory / f"{number}.sock"), memory, engine, size.batch, c.SIDE, threads=size.threads,
                          photos=size.batch)  # fmt: skip
            title = f"engine {engine} -> second process by {memory or 'shm'}"
            makes.append((title, lambda order=order, title=title: second_process(order, title, stack)))
        return interleaved("end to end", makes + plain, size)


def second_process(order: Order, title: str, stack: ExitStack) -> Contestant:
    """A worker's process; its batches are taken here and, on a GPU, copied to memory of this process. Ended with the stack."""
    if order.memory in GPU_KINDS:
        c.need_gpu()
    with c.absence(title):
        device = devices.open_kind(order.memory) if order.memory else None
        worker = stack.enter_context(working(order))
        session = order.session(1_000_000)
        intake = stack.enter_context(taking(order, session, device))
    keep = Keeper(order, stack)
    state = {"next": 0}

    def batch() -> None:
        taken = intake.take(state["next"], TAKE_S)
        if taken.device is not None:
            keep(taken.device.pointer)
        state["next"] += 1
        del taken
        intake.release(state["next"])

    def settle() -> None:
        """Its window is filled again, which would cost the next one time."""
        until = time.monotonic() + TAKE_S
        while worker.ask()["in_flight"] and time.monotonic() < until:
            time.sleep(0.02)

    return Contestant(title, order.batch, batch, ahead=order.window + 3, settle=settle)  # the window, and the engine's


class Keeper:
    """Copies a batch on the GPU to memory of this process, as a trainer's iterator does, and waits; elsewhere does nothing."""

    def __init__(self, order: Order, stack: ExitStack) -> None:
        self._bytes = order.spec.pixel_bytes(order.batch)
        self._gpu = order.memory in GPU_KINDS
        if self._gpu:
            from headrace.worker.engines import cuda_runtime

            cuda_runtime.use(0)
            self._buffer = cuda_runtime.DeviceBuffer()
            self._buffer.at_least(self._bytes)
            stack.callback(self._buffer.free)

    def __call__(self, pointer: int) -> None:
        if self._gpu:
            from cuda.bindings import runtime

            from headrace.worker.engines.cuda_runtime import checked

            kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
            checked(runtime.cudaMemcpyAsync(self._buffer.pointer, pointer, self._bytes, kind, 0), "copy on the GPU")
            checked(runtime.cudaStreamSynchronize(0), "wait for a copy")


def main() -> None:
    """Make one table."""
    from tests.gpu import handoff, parity

    tables: dict[str, Callable[[Size], Iterator[Row]]] = {
        "engines": engines, "throughput": throughput, "parity": parity.table, "handoff": handoff.times, "pcie": handoff.pcie,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=tables)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.configure("proof", "console", "warning")
    found: list[dict[str, Any]] = []
    for row in tables[options.table](Size.of(options.quick)):
        print(row, flush=True)
        found.append(row.as_dict())
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
