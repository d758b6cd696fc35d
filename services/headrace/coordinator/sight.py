"""Whether a worker's silence says anything: not after a time in which this replica or the store heard nobody. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.core.lease import heartbeat_patience_s

# A beat that took nearly as long as its worker waits for it was likely recorded for nobody.
_LATE = 0.9
# Where more than that share of all beats was late, this replica hears too little. Some are late behind a look at a large fleet.
_LATE_SHARE = 0.25
# Twice within so long is no hiccup; it is taken to last for a while.
_AGAIN_US = 5_000_000
_STRAINED_US = 60_000_000


class Sight:
    """One event loop. ttl_us: a worker's life after a heartbeat. clock_us: this process's own clock, which nobody sets."""

    def __init__(self, ttl_us: int, tick_s: float, clock_us: Callable[[], int]) -> None:
        self._ttl_us = ttl_us
        self._late_us = _LATE * heartbeat_patience_s(ttl_us / 1e6) * 1e6
        self._tick_us = tick_s * 1e6
        self._clock_us = clock_us
        self._now_us = 0
        self._ended_us = 0
        self._blind_until_us = 0
        self._beats = 0
        self._late = 0
        self.seen_us = 0  # the store's clock at the last look that was not blind
        self.deaf = False  # heartbeats came too late to be heard, before the last look
        self._deaf_us = -math.inf
        self._strained_until_us = -math.inf

    @contextmanager
    def hearing(self, waited_s: float = 0.0) -> Iterator[None]:
        """Around the recording of a heartbeat. waited_s: how long it had waited for us to begin with it.

        While all of them take longer than their workers wait, workers seem to fall silent one by one; to move their lanes would
        make a replica that is late already later still, without an end.
        """
        sent_us = self._clock_us() - waited_s * 1e6
        try:
            yield
        finally:
            self._beats += 1
            self._late += self._clock_us() - sent_us >= self._late_us

    def look(self, now_us: int, stall_us: int) -> None:
        """A look begins. now_us: the store's clock. stall_us: how long the store answered nothing since the last one.

        Time without looking is counted from the end of one look to the begin of the next: looks that take long must not leave
        us blind for ever. But in their midst, too, the store may have answered nobody: then it took no heartbeat either.
        """
        self._now_us = now_us
        away = now_us - self._ended_us > self._tick_us + self._ttl_us / 4
        self.deaf = self._late > self._beats * _LATE_SHARE
        self._beats = self._late = 0
        if self.deaf:
            own_us = self._clock_us()
            if own_us - self._deaf_us < _AGAIN_US:
                self._strained_until_us = own_us + _STRAINED_US
            self._deaf_us = own_us
        if away or self.deaf or stall_us > self._ttl_us / 4:
            self._blind_until_us = now_us + self._ttl_us

    def looked(self, now_us: int) -> None:
        """The look ended. now_us: the store's clock, carried on."""
        self._ended_us = now_us
        if not self.blind or not self.seen_us:
            self.seen_us = self._now_us

    @property
    def strained(self) -> bool:
        """True from when heartbeats kept coming too late until a while after: as many are not to be asked for."""
        return self._clock_us() < self._strained_until_us

    @property
    def blind(self) -> bool:
        """For one ttl. The store's clock may have been put back meanwhile."""
        return self._now_us < self._blind_until_us <= self._now_us + self._ttl_us
