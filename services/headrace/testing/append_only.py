"""Takes a store back in time: cuts the tail off its append-only file, as a crash of its machine would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_STAMP = b"#TS:"  # Valkey writes the time before the first command of each second (aof-timestamp-enabled)


def cut_since(data_dir: Path, since_s: int) -> int:
    """Drop what was written in or after the Unix second `since_s`; returns the number of bytes dropped.

    data_dir: of a store that does not run. Commands stay whole: the cut is at a time stamp.
    """
    dropped = 0
    for path in sorted((data_dir / "appendonlydir").glob("*.incr.aof")):
        data = path.read_bytes()
        keep = next((offset for offset, second in _stamps(data) if second >= since_s), len(data))
        dropped += len(data) - keep
        path.write_bytes(data[:keep])
    return dropped


def _stamps(data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, Unix second) of each time stamp; reads the commands between them, since a value may look like a stamp."""
    offset = 0
    while (end := data.find(b"\r\n", offset)) != -1:
        line = data[offset:end]
        if line.startswith(_STAMP):
            yield offset, int(line[len(_STAMP) :])
        offset = end + 2
        if line.startswith(b"*"):
            for _ in range(int(line[1:])):
                end = data.find(b"\r\n", offset)
                if end == -1:  # the last command was cut short by the crash
                    return
                offset = end + 2 + int(data[offset + 1 : end]) + 2
