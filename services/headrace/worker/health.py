"""What /healthz and /readyz say of a worker: whether its event loop turns, and whether a coordinator hears it.

`beat` runs on the event loop; the answers are read by the threads of the metrics server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_BEAT_S = 1.0
# A loop that stood still for so long is stuck, on a mount that hangs, say: nothing in it may take more than milliseconds, and
# a machine that is short of memory or CPU may take seconds.
STUCK_S = 30.0


class Health:
    """why_not_ready: why the worker is to get no work, empty while it is. clock: seconds, monotonic."""

    def __init__(self, why_not_ready: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._why_not_ready = why_not_ready
        self._clock = clock
        self._beaten_s = clock()

    async def beat(self) -> None:
        """Note for ever that the loop turns; ends when it is cancelled."""
        while True:
            self._beaten_s = self._clock()
            await asyncio.sleep(_BEAT_S)

    def not_alive(self) -> str:
        """Why this process should be ended; empty while it is well. A coordinator or store that is away is no reason."""
        silent_s = self._clock() - self._beaten_s
        return f"the event loop has been standing still for {silent_s:.0f} s" if silent_s > STUCK_S else ""

    def not_ready(self) -> str:
        """Why it does no work for anybody new; empty while it does."""
        return self.not_alive() or self._why_not_ready()
