"""A cheap hash that notices most rewrites of a shard: of its first and last 16 KiB."""

from __future__ import annotations

from headrace.datasets.manifest import hash_bytes

EDGE_BYTES = 16 << 10


def edge_ranges(size: int) -> list[tuple[int, int]]:
    """(start, length) of what is hashed of a file of `size` bytes."""
    if size <= 2 * EDGE_BYTES:
        return [(0, size)]
    return [(0, EDGE_BYTES), (size - EDGE_BYTES, EDGE_BYTES)]


def edge_hash(*edges: bytes | memoryview) -> str:
    """Hash of the contents of `edge_ranges`."""
    return hash_bytes(b"".join(edges))
