"""Which lanes their owners do not serve this rank, as it sees it: what it tells the coordinator, which moves them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.client.transports.peers import Peer
from headrace.client.transports.protocol import LaneTrouble
from headrace.core.arrivals import Arrivals

# A connection that is lost is mended, or its lane moved, within less; only what lasts longer is told.
TELL_AFTER_S = 1.0
# A worker that answers, but has yet to open the session's data set, gets so much more time.
OPENING_S = 15.0
MOST_TOLD = 64
_MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Lack:
    """The index that the trainer asked for and did not get, since when."""

    index: int
    since_s: float


def troubles(
    arrivals: Arrivals, peers: Iterable[Peer], lack: Lack | None, fetcher_since_s: float, now_s: float
) -> tuple[LaneTrouble, ...]:
    """At most MOST_TOLD: lanes with a forgotten lease, at once; then, while the trainer lacks a batch, lanes whose owner has no
    working connection to it, in the order in which it needs them.

    peers: all incarnations; a worker's newest counts. fetcher_since_s: since when the fetcher process works, infinite while it
    does not: until then nobody could be reached through it, and that is no worker's fault.
    """
    newest = {peer.worker: peer for peer in peers}
    found: dict[int, LaneTrouble] = {}

    def tell(lane: int, waited_s: float, reason: str) -> None:
        worker = arrivals.owners[lane]
        peer = newest.get(worker)
        connected = peer is not None and peer.connected
        found[lane] = LaneTrouble(lane, worker, arrivals.tokens[lane], waited_s, connected, reason[:_MOST_CHARS])

    for lane in arrivals.rolled_back():
        tell(lane, 0.0, "the last lane table has an older token than the newest that this rank knows")
    for _, lane in arrivals.missing() if lack else ():
        peer = newest.get(arrivals.owners[lane])
        since_s = max(lack.since_s if lack else now_s, arrivals.owner_since_s(lane))
        if peer is not None and peer.rung is not None and peer.rung.name == "grpc":
            since_s = max(since_s, fetcher_since_s)
        waited_s = now_s - since_s - (OPENING_S if peer and peer.opening else 0.0)
        if arrivals.owners[lane] and waited_s >= TELL_AFTER_S and not (peer and peer.connected) and lane not in found:
            tell(lane, waited_s, (peer.last_error or peer.describe(now_s)) if peer else "no connection yet")
    return tuple(found.values())[:MOST_TOLD]
