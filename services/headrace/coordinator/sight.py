"""Whether a worker's silence says anything: not after a time in which this replica or the store heard nobody."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.core.errors import StoreUnavailable
from headrace.core.lease import heartbeat_patience_s

# A beat that took nearly as long as its worker waits for it was likely recorded for nobody.
_LATE = 0.9
# Where more than that share of the beats of a worker's life was late, this replica hears too little: a look at a large fleet
# makes some late, a hiccup makes many so at one moment.
_LATE_SHARE = 0.25
_LEAST_LATE = 3
_FEEL_S = 0.1
_STRAINED_US = 60_000_000


@dataclass(slots=True)
class _Beats:
    """Of half a worker's life: heartbeats, and how long the loop answered nobody. Times by this process's clock."""

    begun_us: float = -math.inf
    all: int = 0
    late: int = 0
    refused: int = 0  # by the store
    overslept_us: float = 0.0
    first_late_us: float = math.inf
    last_late_us: float = -math.inf

    def late_at(self, now_us: float) -> None:
        self.first_late_us = min(self.first_late_us, now_us)
        self.last_late_us = now_us


class Sight:
    """One event loop, on which `feel` must run. ttl_us: a worker's life after a heartbeat. clock_us: this process's own.

    answered_us: when the store answered last, by that clock.
    """

    def __init__(
        self, ttl_us: int, tick_s: float, clock_us: Callable[[], int], answered_us: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._ttl_us = ttl_us
        self._late_us = _LATE * heartbeat_patience_s(ttl_us / 1e6) * 1e6
        self._tick_us = tick_s * 1e6
        self._clock_us = clock_us
        self._answered_us = answered_us
        self._now_us = 0
        self._ended_us = 0
        self._blind_until_us = 0
        self._before, self._beats = _Beats(), _Beats()
        self.seen_us = 0  # the store's clock at the last look that was not blind
        self._strained_until_us = -math.inf

    @contextmanager
    def hearing(self, waited_s: float = 0.0) -> Iterator[None]:
        """Around the recording of a heartbeat. waited_s: how long it had waited for us to begin with it.

        While all of them take longer than their workers wait, workers seem to fall silent one by one; to move their lanes would
        make a replica that is late already later still, without an end.
        """
        sent_us, refused = self._clock_us() - waited_s * 1e6, False
        try:
            yield
        except StoreUnavailable:
            refused = True
            raise
        except asyncio.CancelledError:
            refused = self._answered_us() < sent_us  # a store that hangs: the worker gave up before we could
            raise
        finally:
            now_us = self._clock_us()
            beats = self._now(now_us)
            beats.all += 1
            late = not refused and now_us - sent_us >= self._late_us
            beats.late += late
            beats.refused += refused
            if late or refused:
                beats.late_at(now_us)

    async def feel(self) -> None:
        """Measure for ever how late this loop does what is due.

        A heartbeat whose worker gave up while it was blocked never gets as far as to be counted.
        """
        while True:
            due_us = self._clock_us() + _FEEL_S * 1e6
            await asyncio.sleep(_FEEL_S)
            now_us = self._clock_us()
            if now_us - due_us >= self._late_us / 2:
                beats = self._now(now_us)
                beats.overslept_us += now_us - due_us
                beats.late_at(now_us)

    def _now(self, now_us: int) -> _Beats:
        if now_us - self._beats.begun_us >= self._ttl_us / 2:
            self._before, self._beats = self._beats, _Beats(now_us)
        return self._beats

    @property
    def deaf(self) -> bool:
        """True while heartbeats come too late to be heard, or the store does not take them."""
        return self._unheard(refused=True)

    def _unheard(self, refused: bool) -> bool:
        now_us = self._clock_us()
        found = [beats for beats in (self._before, self._beats) if now_us - beats.begun_us < 1.5 * self._ttl_us]
        late = sum(beats.late + beats.refused * refused for beats in found)
        many = late >= _LEAST_LATE and late > _LATE_SHARE * sum(beats.all for beats in found)
        if not many and sum(beats.overslept_us for beats in found) < _LATE_SHARE * self._ttl_us:
            return False
        first_us, last_us = min(beats.first_late_us for beats in found), max(beats.last_late_us for beats in found)
        return last_us - first_us >= self._ttl_us / 4

    def look(self, now_us: int, stall_us: int) -> None:
        """A look begins. now_us: the store's clock. stall_us: how long the store answered nothing since the last one.

        Time without looking is counted from the end of one look to the begin of the next: looks that take long must not leave
        us blind for ever. But in their midst, too, the store may have answered nobody: then it took no heartbeat either.
        """
        self._now_us = now_us
        away = now_us - self._ended_us > self._tick_us + self._ttl_us / 4
        if self._unheard(refused=False):  # a store that was away is no reason to ask for fewer
            self._strained_until_us = self._clock_us() + _STRAINED_US
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
