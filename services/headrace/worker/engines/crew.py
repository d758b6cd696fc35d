"""Threads of an engine, and what they took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

# Chunks a thread: enough that one slow row doesn't leave the other threads idle, few enough that handing out costs nothing.
CHUNKS_PER_THREAD = 6

T = TypeVar("T")


class Crew:
    """`threads` that share work; with one the caller does it. Any thread."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-pixels") if threads > 1 else None

    def map(self, function: Callable[..., T], *columns: Iterable[Any]) -> tuple[list[T], float]:
        """function of each row of the columns, in order; and the thread-seconds that all took. Raises what it raises."""
        todo = list(zip(*columns, strict=True))
        size = max(1, -(-len(todo) // (self._threads * CHUNKS_PER_THREAD)))
        chunks = [todo[start : start + size] for start in range(0, len(todo), size)]

        def some(chunk: Sequence[tuple[Any, ...]]) -> tuple[list[T], float]:
            started = time.thread_time()
            return [function(*row) for row in chunk], time.thread_time() - started

        parts = (
            [some(chunk) for chunk in chunks] if self._pool is None or len(chunks) < 2 else list(self._pool.map(some, chunks))
        )
        return [made for part, _ in parts for made in part], sum(seconds for _, seconds in parts)

    def close(self) -> None:
        """End the threads; idempotent."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
