"""All links of one rank: who must be connected, what their messages mean, when to try again.

Runs under the intake's lock: on the thread `headrace-intake`, and `read_local` on the one that takes. `core.arrivals` decides,
this does. Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.logs import log
from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.fetch_host import RemoteLink
from headrace.client.transports.fetch_pool import FetchPool
from headrace.client.transports.ladder import answered
from headrace.client.transports.links import Links
from headrace.client.transports.local import LocalLink
from headrace.client.transports.peers import HANDSHAKE_S, Peer
from headrace.client.transports.troubles import Lack
from headrace.core.arrivals import Arrival, Arrivals, Failure, Verdict
from headrace.core.errors import HeadraceError, PeerGone, ProtocolMismatch, TransportUnavailable, from_code
from headrace.wire import messages, slot_format
from headrace.wire.messages import Drain, Failed, Message, Ready, Refuse, Started, Welcome

# Refusals that concern shared memory alone: the next rung may work.
_SHM_ONLY = frozenset({"transport_unavailable", "disk_full", "protocol_mismatch", "internal"})
# To a rank that asked for device memory: a probe that failed, or a worker too old to know the words.
_DEVICE_FIRST = frozenset({"transport_unavailable", "protocol_mismatch"})
# A worker's own trouble: it may free memory or be replaced; until then the wait's message says why.
_MAY_PASS = frozenset({"disk_full", "internal"})
# So many batches are taken from a link by their marks before its messages are read, by the thread that takes. Each batch sends
# two, and a read takes up to 64: the rank keeps up with them at any rate, whoever else rests.
_MOST_MARKS = 16
# What every worker would say: it ends the session for this rank.
_FOR_ALL = frozenset(
    {
        "session_superseded",
        "rank_claimed",
        "world_mismatch",
        "state_mismatch",
        "job_mismatch",
        "spec_invalid",
        "no_steps",
        "unauthenticated",
    }
)
# All other refusals may be one worker's: so long the lane that the trainer waits for has to go to another one.
GRACE_S = 10.0
# So long in all, where lanes go from one such worker to the next.
_LONGEST_S = 30.0


class Connections:
    """See the module.

    changed: called when a batch or failure was noted. fail: called with what ends the session. lack: what the trainer lacks.
    """

    def __init__(
        self,
        links: Links,
        arrivals: Arrivals,
        changed: Callable[[], None],
        fail: Callable[[HeadraceError], None],
        lack: Callable[[], Lack | None],
    ) -> None:
        self._links = links
        self._lack = lack
        self._arrivals = arrivals
        self._changed = changed
        self._fail = fail

    def window_grew(self, now_s: float) -> None:
        """All workers must learn of the larger window, and the fetcher needs a larger slab; without one, remote ones stay."""
        grown = self._links.fetch.grow()
        for peer in self._links.peers.values():
            if grown or not isinstance(peer.link, RemoteLink):
                self._links.unlink(peer, "the window grew", now_s, pause=False)

    def reject(self, arrival: Arrival) -> None:
        """A batch that was taken for complete is not what it should be: its slot may be written again."""
        self._links.fetch.drop(arrival.link, arrival.index)

    def mend(self, now_s: float) -> float:
        """Make, renew and drop links as needed, send NEXT, free slabs; returns when to be called again at the latest."""
        due_s = now_s + 1.0
        try:
            self._links.fetch.check(now_s)
        except PeerGone as error:
            self._fetcher_ended(error, now_s)
        for key, peer in list(self._links.peers.items()):
            self._mend(peer, now_s)
            if peer.link is None and not peer.wanted:
                del self._links.peers[key]
            elif peer.link is None:
                due_s = min(due_s, peer.retry_at_s)
        self._links.send_next()
        self._links.watch_writes()
        self._links.free_slabs()
        return max(due_s, now_s)

    def _mend(self, peer: Peer, now_s: float) -> None:
        if peer.link is None:
            if peer.wanted and peer.retry_at_s <= now_s:
                self._links.connect(peer, now_s)
        elif not peer.wanted and not self._arrivals.pending(peer.link.number):
            log.info("worker_dropped", worker=peer.worker, reason="it owns no lane of this session")
            self._links.unlink(peer, "it owns no lane", now_s)
        elif self._arrivals.must_restart(peer.link.number, peer.worker):
            self._links.down(peer, PeerGone("an index that it believes delivered is needed"), now_s)
        elif not peer.welcomed and now_s > peer.since_s + HANDSHAKE_S:
            self._links.handshake_failed(peer, f"no WELCOME in {HANDSHAKE_S:.0f} s", now_s)

    # --- events ------------------------------------------------------------------------------------------------------

    def readable(self, source: Peer | FetchPool, now_s: float) -> None:
        """The selector says that a socket has something, or has room again."""
        if isinstance(source, FetchPool):
            self._fetch_readable(now_s)
        elif isinstance(source.link, LocalLink):
            link = source.link
            if link.wants_write:
                link.flush()
            try:
                for message in link.receive():
                    self._message(source, message, now_s)
                    if source.link is not link:
                        return
            except TimeoutError:
                raise  # no socket of ours gives it: a signal handler's
            except TransportUnavailable as error:
                self._links.device_failed(source, link, error.message, now_s)
            except (HeadraceError, OSError) as error:
                self._links.down(source, error, now_s)

    def look(self, index: int, now_s: float) -> bool:
        """Take note of a batch whose slot is marked as published, unread READY or not. For the thread that takes.

        True if it was news. Only its lane's owner is looked at: whoever made it before says so by READY.
        """
        lane = self._arrivals.lane_of(index) if self._arrivals.get(index) is None else None
        link = None if lane is None else self._links.local.get(self._arrivals.owners[lane])
        if lane is None or link is None or link.slab is None:
            return False
        peer = self._links.by_number(link.number)
        found = slot_format.read_mark(link.slab.view(index))
        if found is None or found[0] != index or found[1] < self._arrivals.tokens[lane]:
            return False
        if not slot_format.PIXEL_OFFSET <= found[2] <= link.slab.slot_bytes:
            return False
        if self._arrivals.withheld(link.number, index):
            return False
        arrival = Arrival(index, found[1], link.number, link.worker, link.slab.number, found[2], now_s)
        verdict = self._arrivals.ready(arrival)
        link.marks += 1
        if peer is not None and link.marks >= _MOST_MARKS:
            self._read(peer, now_s)
        if peer is not None and verdict is Verdict.AHEAD:
            self._links.down(peer, ProtocolMismatch("a mark under a token that no coordinator can have issued"), now_s)
        return verdict is Verdict.ACCEPTED

    def read_local(self, now_s: float) -> None:
        """What local workers have sent is looked at now; for the thread that takes."""
        for peer in list(self._links.peers.values()):
            if peer.welcomed:
                self._read(peer, now_s)

    def _read(self, peer: Peer, now_s: float) -> None:
        if isinstance(peer.link, LocalLink):
            try:
                self.readable(peer, now_s)
            except BaseException:  # a signal handler's, perhaps between a message and its meaning: HELLO asks for it again
                self._links.down(peer, PeerGone("interrupted while reading"), now_s)
                raise

    def _fetch_readable(self, now_s: float) -> None:
        try:
            for message in self._links.fetch.receive():
                peer = self._links.by_number(getattr(message, "link", 0))
                if peer is None:
                    self._forget(message)
                    continue
                if isinstance(message, protocol.Down):
                    self._links.down(peer, from_code(message.code, message.message, {}), now_s, tell=False)
                elif isinstance(message, protocol.Forward):
                    try:
                        self._message(peer, message.message, now_s)
                    except ProtocolMismatch as error:
                        self._forget(message)
                        self._links.down(peer, error, now_s)
        except (HeadraceError, OSError) as error:
            self._fetcher_ended(error, now_s)

    def _forget(self, message: protocol.FetchMessage) -> None:
        """A message that counts for nothing: of a link that was given up, or malformed. What it completed is not had here."""
        if isinstance(message, protocol.Forward) and isinstance(message.message, Ready):
            self._links.fetch.drop(message.link, message.message.index)

    def _fetcher_ended(self, error: Exception, now_s: float) -> None:
        for peer in list(self._links.peers.values()):
            if isinstance(peer.link, RemoteLink):
                self._links.unlink(peer, f"the fetcher process ended: {error}", now_s)
        try:
            self._links.fetch.ended(str(error), now_s)
        except TransportUnavailable as final:
            self._fail(final)

    def _message(self, peer: Peer, message: Message, now_s: float) -> None:
        link = peer.link
        if link is None:
            return
        match message:
            case Ready():
                self._ready(peer, link, message, now_s)
            case Started(index, token):
                self._refuse_impossible(self._arrivals.started(link.number, peer.worker, index, token, now_s), message)
            case Welcome():
                self._welcome(peer, message, now_s)
            case Failed(index, code, text, ids):
                failure = Failure(index, 0, peer.worker, code, text, ids)
                verdict = self._arrivals.failed(link.number, failure)
                log.warning("batch_failed", worker=peer.worker, index=index, code=code, message=text, verdict=verdict.value)
                self._refuse_impossible(verdict, message)
                self._changed()
            case Refuse(code, text, ids):
                self._refused(peer, from_code(code, text, ids), now_s)
            case Drain():
                peer.draining = True
                log.info("worker_drains", worker=peer.worker)
            case _:
                raise ProtocolMismatch(f"worker {peer.worker} sent a {type(message).__name__}", worker=peer.worker)

    def _welcome(self, peer: Peer, message: Welcome, now_s: float) -> None:
        messages.check_protocol(message.protocol, f"worker {peer.worker}")
        link = peer.link
        if isinstance(link, LocalLink) and link.slab is not None:
            if link.device is not None and link.slab.device is None:
                try:
                    peer.rung = answered(self._links.choice, peer.endpoint, link.why_no_device)
                except TransportUnavailable as error:
                    self._links.unlink(peer, str(error), now_s)
                    self._fail(error)
                    return
            self._links.add_slab(link.slab)
            self._links.local[peer.worker] = link
            peer.shm_worked = True
            link.send_next(self._arrivals.next)
        elif isinstance(link, RemoteLink):
            peer.grpc_worked = True
        peer.welcomed = True
        peer.slots = message.slots
        peer.refused_since_s, peer.opening = None, False
        peer.since_s = now_s
        rung = peer.rung
        log.info("worker_connected", worker=peer.worker, transport=rung and rung.name, reason=rung and rung.reason)

    def _ready(self, peer: Peer, link: LocalLink | RemoteLink, message: Ready, now_s: float) -> None:
        slab = link.slab
        if slab is None or not slot_format.PIXEL_OFFSET <= message.total_bytes <= slab.slot_bytes:
            raise ProtocolMismatch(f"worker {peer.worker} sent READY before WELCOME or oversize", index=message.index)
        local = isinstance(link, LocalLink)
        if local and (message.generation != slab.generation or message.index >= self._arrivals.next + slab.slots):
            raise ProtocolMismatch(f"worker {peer.worker} sent READY for another slab or slot", index=message.index)
        if local and self._arrivals.withheld(link.number, message.index):
            return  # what was taken by its mark and thrown away
        arrival = Arrival(message.index, message.token, link.number, peer.worker, slab.number, message.total_bytes, now_s)
        verdict = self._arrivals.ready(arrival)
        self._refuse_impossible(verdict, message)
        if verdict is Verdict.ACCEPTED:
            peer.failures = 0
            if not local:
                self._links.fetch.delivered()
            self._changed()
            return
        if verdict is Verdict.KNOWN or (verdict is Verdict.LATE and local):
            peer.failures = 0
            return  # by its mark it was here before
        log.info("batch_refused", worker=peer.worker, index=message.index, token=message.token, reason=verdict.value)
        if (
            not local
        ):  # also a second copy: were the first one rejected, the fetcher would throw away all that come to replace it
            self._links.fetch.drop(link.number, message.index)

    @staticmethod
    def _refuse_impossible(verdict: Verdict, message: Started | Ready | Failed) -> None:
        name = type(message).__name__.upper()
        if verdict is Verdict.OUTSIDE:
            raise ProtocolMismatch(f"{name} of an index beyond the window or the session", index=message.index)
        if verdict is Verdict.AHEAD:
            raise ProtocolMismatch(f"{name} under a token that no coordinator can have issued", index=message.index)

    def _refused(self, peer: Peer, error: HeadraceError, now_s: float) -> None:
        peer.opening = error.code == "session_unknown"
        if str(error) != peer.last_error:  # it is asked again each second
            tell = log.info if peer.opening else log.warning  # that it has not heard of the session yet is no fault
            tell("worker_refuses", worker=peer.worker, error=str(error))
        if isinstance(peer.link, LocalLink) and peer.link.device is not None and error.code in _DEVICE_FIRST:
            old = "the worker's version shares no GPU memory: " if error.code == "protocol_mismatch" else ""
            self._links.device_failed(peer, peer.link, old + error.message, now_s)
        elif isinstance(peer.link, LocalLink) and self._links.choice == "auto" and error.code in _SHM_ONLY:
            self._links.handshake_failed(peer, str(error), now_s)
        elif error.retriable or error.code in _MAY_PASS:
            self._links.down(peer, error, now_s)
        elif error.code in _FOR_ALL:
            self._links.unlink(peer, str(error), now_s)
            self._fail(error)
        else:
            peer.refused_since_s = peer.refused_since_s or now_s
            self._links.down(peer, error, now_s)
            if self._given_up(peer, now_s):
                self._fail(error)

    def _given_up(self, peer: Peer, now_s: float) -> bool:
        """True if the trainer has waited too long for a lane that nobody takes from a worker that refuses us."""
        lack = self._lack()
        awaited = self._arrivals.awaited(lack.index) if lack else None
        if lack is None or awaited is None or awaited.worker != peer.worker or peer.refused_since_s is None:
            return False
        here_s = now_s - max(lack.since_s, awaited.owner_since_s, peer.refused_since_s)
        return here_s >= GRACE_S or now_s - lack.since_s >= _LONGEST_S
