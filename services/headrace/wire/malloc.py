"""Tunes glibc's allocator for streams of messages of some MiB; called once at process start, before threads.

By default glibc maps and unmaps large blocks, and each new mapping costs a page fault a page: more CPU than everything
else on the gRPC path together (facts and numbers: docs/dataplane.md). Elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_MMAP_THRESHOLDS = (1 << 30, 32 << 20)  # older glibc refuses more than 32 MiB


def tune_malloc(*, single_arena: bool = False) -> bool:
    """Keep freed blocks of up to 1 GiB for reuse. Returns False where there is no mallopt.

    single_arena: one heap for all threads, so that blocks freed by one thread are reused by another; right for a
    process that moves bytes (the fetcher), wrong for one whose threads decode in parallel.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    results = [
        any(mallopt(_M_MMAP_THRESHOLD, threshold) == 1 for threshold in _MMAP_THRESHOLDS),
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) == 1,
        mallopt(_M_TOP_PAD, 64 << 20) == 1,
        not single_arena or mallopt(_M_ARENA_MAX, 1) == 1,
    ]
    return all(results)
