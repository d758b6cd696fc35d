"""The two sides of a hand-over: a worker's process (tests.gpu.made), and a rank in this process or in one of its own.

python -m tests.gpu.peers JSON      a rank that takes batches until it is killed
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from headrace.client.gpu import Gpu
from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TakenSlot
from headrace.core.job import Session
from headrace.telemetry import logging
from headrace.telemetry.parent import PARENT_VARIABLE, exit_with_parent
from headrace.testing.null_producer import pattern
from headrace.wire.device_memory import Device
from headrace.wire.slot_format import PIXEL_OFFSET
from tests.gpu import devices
from tests.gpu.made import NODE, Order

ROOT = Path(__file__).parents[2]
START_S, TAKE_S = 60.0, 60.0


class Process:
    """One of our modules with a JSON argument; its lines of JSON can be waited for. It ends with this process."""

    def __init__(self, module: str, argument: dict[str, Any]) -> None:
        paths = os.pathsep.join(filter(None, [str(ROOT / "services"), str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(argument)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, PARENT_VARIABLE: str(os.getpid())},
        )  # fmt: skip
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
            else:  # what a library prints
                sys.stderr.write(line)
        self._lines.put(None)

    def line(self, deadline_s: float = START_S) -> dict[str, Any]:
        """Its next line. Raises RuntimeError if it ended, or said that it failed, or says nothing for so long."""
        try:
            found = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise RuntimeError(f"a process said nothing for {deadline_s:.0f} s") from None
        if found is None or "error" in found:
            raise RuntimeError(f"a process failed: {found and found['error']}, exit code {self.popen.poll()}")
        return found

    def ask(self) -> dict[str, Any]:
        """What it holds (tests.gpu.made)."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("memory\n")
        self.popen.stdin.flush()
        return self.line()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.popen.kill()
        self.popen.wait(30)

    def close(self) -> None:
        """Ask it to end, by the end of its input; kill it if it does not."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


def start_worker(order: Order) -> Process:
    """A worker that listens. Raises RuntimeError."""
    worker = Process("tests.gpu.made", asdict(order))
    try:
        worker.line()
    except BaseException:
        worker.kill()
        raise
    return worker


@contextmanager
def working(order: Order) -> Iterator[Process]:
    """A worker that listens, and is ended."""
    worker = start_worker(order)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def taking(order: Order, session: Session, device: Device | None, rank: int = 0) -> Iterator[ThreadIntake]:
    """A rank of this process that is told of the worker, by cuda_ipc if it has a device and else by shm."""
    transport, gpu = ("cuda_ipc", Gpu(device)) if device else ("shm", Gpu())
    intake = ThreadIntake(session, rank, f"n{rank}-{os.getpid()}", NODE, transport=transport, gpu=gpu)  # type: ignore[arg-type]
    try:
        intake.update(order.table(session))
        yield intake
    finally:
        intake.close()


def pixels_of(taken: TakenSlot) -> np.ndarray[Any, Any]:
    """The batch's bytes on the host; a copy from the GPU where they lie there."""
    if taken.device is not None:
        return taken.device.to_host(np.dtype(np.uint8)).reshape(-1)
    return np.frombuffer(taken.slot, np.uint8, taken.header.pixel_bytes, PIXEL_OFFSET)


def check(taken: TakenSlot, index: int) -> None:
    """Raise AssertionError unless the batch is whole and index's own (engine `pattern`)."""
    assert pixels_of(taken).tobytes() == pattern(index, taken.header.pixel_bytes), f"index {index} came with other pixels"


def main() -> None:
    """A rank: {"order": ..., "rank", "world", "batches", "pause_s", "release"}; a line for each batch taken."""
    exit_with_parent()
    logging.configure("rank", "json", "warning")
    told = json.loads(sys.argv[1])
    order = Order(**told["order"])
    session = order.session(100_000, told["world"])
    device = devices.open_kind(order.memory) if order.memory else None
    with taking(order, session, device, told["rank"]) as intake:
        for index in range(told["batches"]):
            taken = intake.take(index, TAKE_S)
            check(taken, index)
            print(json.dumps({"took": index}), flush=True)
            time.sleep(told.get("pause_s", 0.0))
            if index < told["batches"] - 1:
                intake.release(index + 1)
        time.sleep(1000)  # holds its last batch until it is killed


if __name__ == "__main__":
    main()
