"""What all drivers share: task, consumer of batches, words said to the harness. Standard library and numpy only.

A driver is a small program that imports its loader and calls `main(batches, pixels)`: `batches(task)` yields uint8[B, S, S, 3]
without end, `pixels(task, cuts)` makes the given cuts by the loader's own code. The harness starts it with the task as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

# One row of the check: number of the photo, box (top, left, height, width), mirrored or not.
Cut = tuple[int, int, int, int, int, int]
Batches = Callable[[SimpleNamespace], Iterator[np.ndarray]]
Pixels = Callable[[SimpleNamespace, list[Cut]], np.ndarray]


def main(batches: Batches, pixels: Pixels | None = None) -> None:
    """Do the task that the first argument holds: consume batches under the harness's clock, or make the check's pixels."""
    task = SimpleNamespace(**json.loads(sys.argv[1]))
    if task.cuts:
        if pixels is None:
            raise SystemExit("this driver makes no given cuts")
        cuts = [tuple(cut) for cut in np.load(task.cuts).tolist()]
        for kind, out in task.outs.items():
            task.work = kind
            np.save(out, pixels(task, cuts))
        return
    _consume(task, batches(task))


def say(event: str, **fields: object) -> None:
    """A line for the harness; whatever else loaders print is ignored there."""
    sys.stdout.write(json.dumps({"peers": event, **fields}) + "\n")
    sys.stdout.flush()


def touch(batch: np.ndarray) -> int:
    """Read every byte."""
    return int(batch.reshape(-1).view(np.uint64).sum())


def _consume(task: SimpleNamespace, batches: Iterator[np.ndarray]) -> None:
    """Warm up, then count for as many images or seconds as the task says; go on until the harness says to stop."""
    stopped = _stop_when_told()
    shape = (task.batch, task.size, task.size, 3)
    started_s = begun_s = time.monotonic()
    measured = 0
    state = "cold"
    for count, batch in enumerate(batches, 1):
        assert batch.shape == shape, batch.shape
        assert batch.dtype == np.uint8
        touch(batch)
        now_s = time.monotonic()
        if state == "cold":
            say("first")
            started_s, state = now_s, "warm"
        elif state == "warm" and count > task.warm_batches and now_s - started_s >= task.warm_s:
            say("begin")
            begun_s, state = now_s, "measured"
        elif state == "measured":
            measured += task.batch
            if measured >= task.images or now_s - begun_s >= task.seconds:
                say("end", images=measured, seconds=now_s - begun_s)
                state = "over"
        if stopped.is_set():
            break
    batches.close()  # type: ignore[attr-defined]


def _stop_when_told() -> threading.Event:
    """Set when the harness closes this process's input."""
    stopped = threading.Event()

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        stopped.set()

    threading.Thread(target=read, daemon=True).start()
    return stopped


def photo_paths(task: SimpleNamespace) -> list[str]:
    """The photos as plain files, by number."""
    return [str(Path(task.files) / f"{number:07d}.jpg") for number in range(task.photos)]
