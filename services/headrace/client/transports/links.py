"""Makes and ends the links of one rank, walks the ladder, and keeps the slabs that they brought.

Runs under the intake's lock, on any thread; only `connect` is bound to `headrace-intake`, since it may start the fetcher, which
ends with the thread that started it. Nothing here blocks but `close`.
"""

from __future__ import annotations

import errno
import itertools
import selectors
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.client.gpu import Gpu
from headrace.client.logs import log
from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.fetch_host import RemoteLink
from headrace.client.transports.fetch_pool import FetchPool
from headrace.client.transports.ladder import walk
from headrace.client.transports.local import LocalLink
from headrace.client.transports.mapping import Slab
from headrace.client.transports.peers import SHM_TRIES, Peer
from headrace.client.transports.protocol import TransportChoice
from headrace.core.arrivals import Arrivals
from headrace.core.errors import ConfigInvalid, HeadraceError, PeerGone, TransportUnavailable
from headrace.core.job import LaneTable, Session
from headrace.wire import messages, slot_format
from headrace.wire.calls import Calls
from headrace.wire.device_memory import Device
from headrace.wire.messages import Hello

# A socket's path that gives these will not begin to work by itself; another errno may be a worker that starts or has died.
_NEVER_THERE = frozenset({errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.ENAMETOOLONG, None})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are to workers. node: this host's; calls: TLS, and the token that authenticates us."""

    session: Session
    rank: int
    nonce: str
    node: str
    calls: Calls
    gpu: Gpu


class Links:
    """See the module. fail: called with what ends the session for this rank."""

    def __init__(
        self,
        identity: Identity,
        choice: TransportChoice,
        arrivals: Arrivals,
        selector: selectors.BaseSelector,
        fail: Callable[[HeadraceError], None],
    ) -> None:
        self._me = identity
        self._arrivals = arrivals
        self._selector = selector
        self._fail = fail
        self._numbers = itertools.count(1)
        self._sent_next = arrivals.next
        self._by_number: dict[int, Peer] = {}
        self.choice = choice
        self.peers: dict[tuple[str, str], Peer] = {}
        self.slabs: dict[int, Slab] = {}
        self.local: dict[str, LocalLink] = {}  # by worker: those that are welcomed
        slot_bytes = slot_format.job_slot_bytes(identity.session.job)
        tls = identity.calls.tls
        self.fetch = FetchPool(selector, arrivals, slot_bytes, lambda: next(self._numbers), self.add_slab, tls=tls)

    def table(self, table: LaneTable, now_s: float) -> None:
        """Note who owns lanes now."""
        wanted = {owner: table.endpoints[owner] for owner in table.owners if owner in table.endpoints}
        for peer in self.peers.values():
            newest = wanted.get(peer.worker)
            peer.wanted = newest is not None and newest.incarnation == peer.endpoint.incarnation
        for worker, endpoint in wanted.items():
            self.peers.setdefault((worker, endpoint.incarnation), Peer(endpoint, since_s=now_s))

    def by_number(self, number: int) -> Peer | None:
        """The peer of a link, or None if that was given up."""
        return self._by_number.get(number)

    def add_slab(self, slab: Slab) -> None:
        """Keep a slab until it is out of use and its batches are done with; pin it where a GPU is to copy from it."""
        pinner = self._me.gpu.pinner
        if pinner is not None and slab.device is None and slab.number not in self.slabs:
            try:
                slab.pin(pinner)
            except TransportUnavailable as error:
                log.info("slab_not_pinned", transport=slab.transport, reason=error.message)
        self.slabs[slab.number] = slab

    def connect(self, peer: Peer, now_s: float) -> None:
        """Begin a connection by the rung that the ladder gives."""
        try:
            peer.rung = walk(self.choice, peer.endpoint, self._me.node, peer.shm_failure, self._why_no_device(peer))
            if peer.rung.name == "grpc":
                self._connect_remote(peer, now_s)
            else:
                self._connect_local(peer, now_s, self._me.gpu.device if peer.rung.name == "cuda_ipc" else None)
        except (TransportUnavailable, ConfigInvalid) as error:
            peer.unlinked(str(error), now_s)
            self._fail(error)

    def _kinds(self, peer: Peer) -> list[str]:
        """Ways to share device memory that are still to be tried with a worker."""
        device = self._me.gpu.device
        return [] if device is None else [way.kind for way in device.memories if way.kind not in peer.device_failures]

    def _why_no_device(self, peer: Peer) -> str:
        if self._kinds(peer):
            return ""
        return "; ".join(peer.device_failures.values()) or self._me.gpu.why_not

    def _connect_local(self, peer: Peer, now_s: float, device: Device | None) -> None:
        number = next(self._numbers)
        hello = self._hello(number, self._arrivals.window)
        if device is not None:
            hello = replace(hello, gpu=device.uuid, memories=",".join(self._kinds(peer)))
        try:
            link = LocalLink(number, peer.worker, peer.endpoint.socket, hello, device)
        except OSError as error:
            self._arrivals.link_gone(number)
            self._shm_failed(peer, error, now_s)
            return
        self._selector.register(link.socket, selectors.EVENT_READ, peer)
        self._by_number[number] = peer
        peer.linked(link, now_s)

    def _shm_failed(self, peer: Peer, error: OSError, now_s: float) -> None:
        text = f"{peer.endpoint.socket}: {error.strerror or error}"
        peer.unlinked(text, now_s)
        patient = peer.failures < SHM_TRIES
        hopeless = error.errno in _NEVER_THERE and not peer.shm_worked
        if self.choice == "auto":
            # Where gRPC works shared memory is only looked at anew: one try, since the trainer may be waiting.
            if hopeless or not patient or (peer.grpc_worked and not peer.shm_worked):
                peer.shm_failure = text
                peer.retry_at_s = now_s
        elif hopeless and not patient:
            peer.shm_failure = text  # a demanded rung: the ladder refuses with this reason at the next try

    def device_failed(self, peer: Peer, link: LocalLink, reason: str, now_s: float) -> None:
        """What the worker offered on the GPU cannot be used, or it refused a rank that asked for it: without it, next time."""
        log.warning("device_memory_refused", worker=peer.worker, memory=link.offered, reason=reason)
        for kind in [link.offered] if link.offered else self._kinds(peer):
            peer.device_failures[kind] = reason
        self.unlink(peer, reason, now_s, pause=False)

    def handshake_failed(self, peer: Peer, reason: str, now_s: float) -> None:
        """A link got no further than HELLO: next time take the next rung, if we may."""
        if isinstance(peer.link, LocalLink) and self.choice == "auto" and not peer.shm_worked:
            peer.shm_failure = reason
        self.down(peer, PeerGone(reason), now_s)

    def _connect_remote(self, peer: Peer, now_s: float) -> None:
        host = self.fetch.running(now_s)
        if host is None:
            peer.retry_at_s = self.fetch.retry_at_s
            peer.last_error = self.fetch.trouble
            return
        self._me.calls.check_plaintext(peer.endpoint.grpc)
        number = next(self._numbers)
        host.send(protocol.Connect(number, peer.endpoint.grpc, peer.worker, self._hello(number, host.slab.slots)))
        self._by_number[number] = peer
        peer.linked(RemoteLink(number, peer.worker, host), now_s)

    def _hello(self, number: int, window: int) -> Hello:
        job = self._me.session.job
        next_index, have = self._arrivals.hello(number)
        return Hello(
            messages.PROTOCOL,
            job.name,
            self._me.session.attempt,
            self._me.rank,
            self._me.nonce,
            next_index,
            window,
            have,
            self._me.calls.hello_token,
        )

    def down(self, peer: Peer, error: Exception, now_s: float, tell: bool = True) -> None:
        """A link ended or is ended for a reason that may pass."""
        log.info("worker_disconnected", worker=peer.worker, transport=peer.rung and peer.rung.name, reason=str(error))
        self.unlink(peer, str(error), now_s, tell=tell)

    def unlink(self, peer: Peer, reason: str, now_s: float, pause: bool = True, tell: bool = True) -> None:
        """End a link. tell: the other side does not know yet; pause: wait before the next try."""
        link = peer.link
        if link is None:
            return
        self._by_number.pop(link.number, None)
        self._arrivals.link_gone(link.number)
        if isinstance(link, LocalLink):
            self._selector.unregister(link.socket)
            if self.local.get(link.worker) is link:
                del self.local[link.worker]
            if link.slab is not None:
                self.add_slab(link.slab)  # anew where it was mapped, but its WELCOME refused
                link.slab.in_use = False
                if link.slab.device is not None and link.slab.device.worker_gone():
                    for index in self._arrivals.place_lost(link.slab.number):
                        self.fetch.drop(0, index)  # else it throws away what comes to replace a batch that it was told of
            link.close()
        else:
            peer.shm_failure = ""  # walk the ladder from its top again
            if tell:
                link.close()
        peer.unlinked(reason, now_s, pause)

    def settled(self) -> bool:
        """True where all peers are connected by local sockets, all is read, and nothing waits to be sent."""
        return all(
            peer.welcomed and isinstance(peer.link, LocalLink) and not (peer.link.wants_write or peer.link.more)
            for peer in self.peers.values()
        )

    def send_next(self) -> bool:
        """Tell all producers what is released. False if there is more to do: `watch_writes`."""
        sent = True
        if self._arrivals.next > self._sent_next:
            self._sent_next = self._arrivals.next
            for link in self.local.values():
                sent = link.send_next(self._sent_next) and sent
            self.fetch.send_next(self._sent_next)
        return sent and not self.fetch.wants_write

    def watch_writes(self) -> None:
        """Have the selector wake when what waits can be sent."""
        self.fetch.watch_writes()
        for peer in self.peers.values():
            if isinstance(peer.link, LocalLink):
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.link.wants_write else 0)
                if self._selector.get_key(peer.link.socket).events != events:
                    self._selector.modify(peer.link.socket, events, peer)

    def close(self) -> None:
        """End everything; a mapping that arrays of the trainer still hold goes with the last of them."""
        for peer in self.peers.values():
            if peer.link is not None:
                self.unlink(peer, "closed", 0.0)
        self.fetch.close()
        for slab in self.slabs.values():
            slab.close(below=2**64)
        self.slabs.clear()

    def free_slabs(self) -> None:
        """Unmap what nobody needs."""
        needed = self._arrivals.places()
        for number, slab in list(self.slabs.items()):
            if not slab.in_use and number not in needed and slab.close(self._arrivals.next):
                del self.slabs[number]
