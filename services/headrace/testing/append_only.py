"""Takes a store back in time: cuts the tail off its append-only file, as a crash of its machine would."""

from __future__ import annotations

import re
from pathlib import Path

# Valkey writes the time before the first command of each second (aof-timestamp-enabled).
_STAMP = re.compile(rb"(?:^|(?<=\r\n))#TS:(\d+)\r\n")


def cut_since(data_dir: Path, since_s: int) -> int:
    """Drop what was written in or after the Unix second `since_s`; returns the number of bytes dropped.

    data_dir: of a store that does not run. Commands stay whole: the cut is at a time stamp.
    """
    dropped = 0
    for path in sorted((data_dir / "appendonlydir").glob("*.incr.aof")):
        data = path.read_bytes()
        keep = next((match.start() for match in _STAMP.finditer(data) if int(match[1]) >= since_s), len(data))
        dropped += len(data) - keep
        path.write_bytes(data[:keep])
    return dropped
