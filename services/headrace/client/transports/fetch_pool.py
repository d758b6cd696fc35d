"""Keeps the one fetcher process of a rank alive while remote workers need it."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable, Iterator

from headrace.client.logs import log
from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.fetch_host import FetchHost
from headrace.client.transports.mapping import Slab
from headrace.client.transports.peers import backoff_s
from headrace.core.arrivals import Arrivals
from headrace.core.errors import TransportUnavailable
from headrace.wire.messages import Next
from headrace.wire.tls import ClientTls

# So long a killed process may take to die before its slab is given up for another one; slabs are large.
_DYING_S = 1.0
# So long all that were killed are waited for at the end.
_REAP_S = 5.0
# Starts in a row whose process ended before it delivered anything: then something is wrong with the installation.
_MOST_STARTS = 8


class FetchPool:
    """Used under the intake's lock; `running` by the thread `headrace-intake` only, see FetchHost.

    number: gives a slab its number. add_slab: where a new one is announced.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        arrivals: Arrivals,
        slot_bytes: int,
        number: Callable[[], int],
        add_slab: Callable[[Slab], None],
        *,
        tls: ClientTls | None = None,
    ) -> None:
        self._selector = selector
        self._arrivals = arrivals
        self._slot_bytes = slot_bytes
        self._number = number
        self._add_slab = add_slab
        self._tls = tls
        self._retry_at_s = 0.0
        self._failures = 0
        self._dying_until_s = 0.0
        self.trouble = ""  # why there is no process now, for a message
        self._dying: list[FetchHost] = []  # given up, their processes not known to be dead
        self.host: FetchHost | None = None

    @property
    def retry_at_s(self) -> float:
        """When a new process may be started."""
        return self._retry_at_s

    def running(self, now_s: float) -> FetchHost | None:
        """The host with a process, started if need be; None while a new one must wait.

        Raises TransportUnavailable if there is no memory, or processes keep ending at once.
        """
        if self.host is not None and not self.host.gone():
            if now_s < self._dying_until_s:
                self._retry_at_s = max(self._retry_at_s, now_s + backoff_s(0))
                return None
            log.warning(
                "fetcher_lingers", pid=self.host.killed_pid, reason="it was killed and is not dead; another slab is used"
            )
            self.retire()
        if self.host is None:
            self.host = FetchHost(self._number(), self._arrivals.window, self._slot_bytes, self._tls)
            self._add_slab(self.host.slab)
        if self.host.socket is None:
            if now_s < self._retry_at_s:
                return None
            try:
                ours = self.host.start(self._arrivals.next, self._arrivals.have())
            except OSError as error:
                self.ended(f"it cannot be started: {error}", now_s)
                return None
            self._selector.register(ours, selectors.EVENT_READ, self)
        return self.host

    def receive(self) -> Iterator[protocol.FetchMessage]:
        """See FetchHost."""
        if self.host is not None:
            yield from self.host.receive()

    def check(self, now_s: float) -> None:
        """See FetchHost; reaps what was killed."""
        self._dying = [host for host in self._dying if not host.gone()]
        if self.host is not None:
            self.host.gone()
            self.host.check(now_s)

    @property
    def works_since_s(self) -> float:
        """See FetchHost."""
        return self.host.works_since_s if self.host is not None else math.inf

    @property
    def wants_write(self) -> bool:
        """True while commands wait for room in the socket."""
        return self.host is not None and self.host.wants_write

    def watch_writes(self) -> None:
        """Have the selector wake when commands that wait can be sent."""
        if self.host is not None and self.host.socket is not None:
            self.host.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.host.wants_write else 0)
            if self._selector.get_key(self.host.socket).events != events:
                self._selector.modify(self.host.socket, events, self)

    def delivered(self) -> None:
        """A batch came: the process works."""
        self._failures = 0

    def send_next(self, index: int) -> None:
        """Tell all remote workers what is released."""
        if self.host is not None:
            self.host.send(protocol.Forward(0, Next(index)))

    def drop(self, link: int, index: int) -> None:
        """Let the slot of a refused batch be written again."""
        if self.host is not None:
            self.host.send(protocol.Drop(link, index))

    def ended(self, reason: str, now_s: float) -> None:
        """The process is dead or broke the rules: end it, pause before the next.

        Raises TransportUnavailable after too many in a row.
        """
        status = self._stop()
        self._dying_until_s = now_s + _DYING_S
        self._failures += 1
        self.trouble = f"the fetcher process ended: {reason}"
        self._retry_at_s = now_s + backoff_s(self._failures)
        log.warning("fetcher_end", reason=reason, exit_status="none" if status is None else status, failures=self._failures)
        if self._failures >= _MOST_STARTS:
            raise TransportUnavailable(
                f"the fetcher process ended {self._failures} times in a row (last: {reason}, exit status {status}); "
                "its own words are on stderr; try `python -m headrace.client.fetcher`",
                reason=reason,
            )

    def retire(self) -> None:
        """End the process and let go of the slab: its owner unmaps it when its batches are done with."""
        if self.host is not None:
            self._stop()
            self.host.close()
            self.host.slab.in_use = False
            self._dying.append(self.host)
        self.host = None

    def close(self) -> None:
        """End the process and reap all; one that cannot be killed is told and left."""
        self.retire()
        end_s = time.monotonic() + _REAP_S
        for host in self._dying:
            if not host.gone(max(0.0, end_s - time.monotonic())):
                log.warning("fetcher_lingers", pid=host.killed_pid, reason="it was killed and is not dead; it is left")
        self._dying.clear()

    def _stop(self) -> int | None:
        if self.host is None:
            return None
        if self.host.socket is not None:
            self._selector.unregister(self.host.socket)
        return self.host.stop()
