"""Ends asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN_S = 0.2


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until all have ended; their outcomes stay with them. If the caller is cancelled meanwhile, they end first.

    One `cancel()` is not enough: Redis's client loses one that comes while it connects, and the caller would wait for ever.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
