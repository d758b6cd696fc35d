"""Whether the work and the memory of a call are bounded: lines of our own code executed, and bytes allocated at the peak.

Lines and bytes, not seconds: they are the same on a busy machine. What loops inside a C function counts as one line; the
runner's limit of CPU time ends regular expressions, and nothing but the process's own end other C code.
"""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH120, PTH100


class Unbounded(Exception):
    """More lines or bytes than the input may cost."""


def measured(call: Callable[[bytes], object], data: bytes, most_lines: int, most_bytes: int) -> None:
    """Call, and raise what it raises, or Unbounded. For one thread; the lines of this package alone are counted."""
    lines = 0

    def line(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines > most_lines:
                raise Unbounded(f"more than {most_lines} lines executed for {len(data)} bytes")
        return line

    def enter(frame: FrameType, _event: str, _arg: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    tracemalloc.start()
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call(data)
    finally:
        sys.settrace(before)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak > most_bytes:
        raise Unbounded(f"{peak} bytes allocated for {len(data)} bytes, more than {most_bytes}")
