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
    """heard: whether the last heartbeat was answered, and the worker does not drain. clock: seconds, monotonic."""

    def __init__(self, heard: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._heard = heard
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
        if reason := self.not_alive():
            return reason
        return "" if self._heard() else "no coordinator answers its heartbeats yet, or it drains: its log says more"
