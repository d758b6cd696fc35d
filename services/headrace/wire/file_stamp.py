"""Tells whether a file is still the one that was read: certificates and tokens are swapped under running programs."""

from __future__ import annotations

import os
from pathlib import Path

FileStamp = tuple[int, int, int]
# Of a file that cannot be looked at.
NO_FILE: FileStamp = (0, 0, 0)


def stamp_of(status: os.stat_result) -> FileStamp:
    """Changes when the file does, also where another is put in its place."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def file_stamp(path: Path | str) -> FileStamp:
    """The same of a path. Raises OSError."""
    return stamp_of(Path(path).stat())
