"""Keeps the one fetcher process of a rank alive while remote workers need it."""

from __future__ import annotations

import errno
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
from headrace.core.errors import OutOfDescriptors, TransportUnavailable
from headrace.wire.messages import Next
from headrace.wire.tls import ClientTls

# So long a killed process may take to die before its slab is given up for another one; slabs are large.
_DYING_S = 1.0
# So long all that were killed are waited for at the end.
_REAP_S = 5.0
# Starts in a row whose process ended before it delivered anything: then something is wrong with the installation.
_MOST_STARTS = 8
# What the machine lacks for a start, and what to do: it passes, says nothing of the installation, and is waited for.
_LACKS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or that of the pod)",
    errno.ENOMEM: "give the trainer a larger memory limit",
}
_LACK_PAUSE_S = 1.0


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
        self._slots = 0  # of the slab that was had last
        self._dying_until_s = 0.0
        self._lacking = False
        self.trouble = ""  # why there is no process now, for a message
        self._dying: list[FetchHost] = []  # given up, their processes not known to be dead
        self.host: FetchHost | None = None

    @property
    def retry_at_s(self) -> float:
        """When a new process may be started."""
        return self._retry_at_s

    def running(self, now_s: float) -> FetchHost | None:
        """The host with a process, started if need be; None while a new one must wait.

        Raises TransportUnavailable if there is no memory for the first slab, or processes keep ending at once.
        """
        if self.host is not None and not self.host.gone():
            if now_s < self._dying_until_s:
                self._retry_at_s = max(self._retry_at_s, now_s + backoff_s(0))
                return None
            log.warning(
                "fetcher_lingers", pid=self.host.killed_pid, reason="it was killed and is not dead; another slab is used"
            )
            self.retire()
        if self.host is None or self.host.socket is None:
            return self._start(now_s) if now_s >= self._retry_at_s else None
        return self.host

    def _start(self, now_s: float) -> FetchHost | None:
        try:
            self.host = self.host or self._new_host(self._slots or self._arrivals.window)
            ours = self.host.start(self._arrivals.next, self._arrivals.have())
        except OutOfDescriptors as error:
            self._lacks(error.message, now_s)
        except TransportUnavailable as error:
            if not self._slots:
                raise
            self._lacks(error.message, now_s)  # there was memory for as much: the slab before is not given back yet
        except OSError as error:
            if error.errno in _LACKS:
                self._lacks(f"the fetcher process cannot be started: {error}; {_LACKS[error.errno]}", now_s)
            else:
                self.ended(f"it cannot be started: {error}", now_s)
        else:
            self.trouble, self._lacking = "", False
            self._selector.register(ours, selectors.EVENT_READ, self)
            return self.host
        return None

    def grow(self) -> bool:
        """Take a slab for the larger window in place of the one in use, and end its process.

        False if there is no memory for it beside the one in use: then all goes on with that, and its smaller window.
        """
        if not self._slots:
            return True
        try:
            host = self._new_host(self._arrivals.window)
        except (OutOfDescriptors, TransportUnavailable) as error:
            what = f"a window of {self._arrivals.window} cannot be had, remote batches go on with {self._slots}"
            log.warning("window_kept", slots=self._slots, window=self._arrivals.window, reason=f"{what}: {error.message}")
            return False
        self.retire()
        self.host = host
        return True

    def _new_host(self, slots: int) -> FetchHost:
        host = FetchHost(self._number(), slots, self._slot_bytes, self._tls)
        self._add_slab(host.slab)
        self._slots = slots
        return host

    def _lacks(self, what: str, now_s: float) -> None:
        """Something is lacking that may be there later: say so once, and wait."""
        if not self._lacking:
            log.warning("fetcher_waits", reason=what)
        self._lacking = True
        self.trouble = what
        self._retry_at_s = now_s + _LACK_PAUSE_S

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
        """Let the slot of a refused batch be written again. link: 0 for one that was told as had and is lost."""
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
