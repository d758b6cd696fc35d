"""A driver's process, as the harness starts it, hears it and ends it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

STOP_S = 10.0
_SLICE_S = 0.25


class DriverFailed(Exception):
    """A driver ended before it should, or said nothing for too long; the text holds what it wrote last."""


class Driver:
    """Runs a script with the task as its argument; a context manager that ends it."""

    def __init__(self, python: Path, script: Path, task: dict[str, Any], log: Path) -> None:
        self._log = log
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [python, script, json.dumps(task)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
            )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the consuming process."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"peers"'):
                self._events.put(json.loads(line))
        self._events.put(None)

    def wait_for(self, event: str, deadline_s: float, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next event, which must be this one. meanwhile: called several times a second. Raises DriverFailed."""
        end_s = time.monotonic() + deadline_s
        while True:
            try:
                said = self._events.get(timeout=_SLICE_S)
            except queue.Empty:
                if time.monotonic() > end_s:
                    raise DriverFailed(f"no `{event}` within {deadline_s:g} s; {self._tail()}") from None
                meanwhile()
                continue
            if said is None or said["peers"] != event:
                raise DriverFailed(f"{said or 'its end'} instead of `{event}`; {self._tail()}")
            return said

    def finish(self, deadline_s: float) -> None:
        """Wait for its end. Raises DriverFailed."""
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise DriverFailed(f"has not ended within {deadline_s:g} s; {self._tail()}") from None
        if code:
            raise DriverFailed(f"ended with {code}; {self._tail()}")

    def _tail(self) -> str:
        return "its last line: " + (self._log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:200]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Tell it to stop; kill it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment() -> dict[str, str]:
    """Of a driver: no Python path of ours, no GPU."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEADRACE_"))}
    return {**kept, "CUDA_VISIBLE_DEVICES": ""}
