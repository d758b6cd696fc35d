"""Which batches a rank has, which producer may still deliver one, and who is awaited.

Pure: messages of producers, lane tables and times come in, verdicts come out; `client.transports.intake` does what they say.
A *link* is one connection to one producer and has a number that is never used again.

Why nothing is lost and nothing hangs:

- A message is accepted only under a token that is not lower than the newest that a lane table told for its lane (`STALE`
  otherwise), and the first complete copy of an index stays (`DUPLICATE` otherwise). An accepted batch stays accepted when the
  token rises.
- Lane tables alone raise that token. A producer may know of a newer lease before we do, so what it says under a higher one is
  taken, but it shuts nobody out: else anyone could, by a number, take a lane from its owner.
- A producer sends an index once on a connection, and never one that HELLO said we have. So each link's *withheld* indexes
  are remembered: told as had, or refused. If one of them is needed after all and the link's producer owns its lane,
  `must_restart` says to connect anew: a producer's belief never outlives its connection.
- The lowest index not yet released is always inside the credit window, so whoever owns its lane may make it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.core.errors import Ids
from headrace.core.lease import TOKEN_AHEAD_US


class Verdict(Enum):
    """What became of a message. LATE: below the lowest unreleased index. OUTSIDE: beyond the window or the session.

    KNOWN: said of the very copy that was accepted before, by its mark in the slot. AHEAD: under a token that was never issued.
    """

    ACCEPTED = "accepted"
    STALE = "stale"
    DUPLICATE = "duplicate"
    KNOWN = "known"
    LATE = "late"
    OUTSIDE = "outside"
    AHEAD = "ahead"


# So many delivered batches are remembered, for a STARTED that is read after they were taken by their marks.
_MOST_PAST = 1024


class Arrival(NamedTuple):
    """A complete batch. place: number of the slab that holds it (the caller's). at_s: when it was known to be complete."""

    index: int  # type: ignore[assignment]
    token: int
    link: int
    worker: str
    place: int
    total_bytes: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A producer's word that an index cannot be made; code, message and ids rebuild its error."""

    index: int
    token: int
    worker: str
    code: str
    message: str
    ids: Ids


@dataclass(frozen=True, slots=True)
class Awaited:
    """Who makes an index. worker: the lane's owner or empty. started_by: the producer at work on it or empty.

    Times are of the caller's clock.
    """

    index: int
    lane: int | None
    worker: str
    token: int
    owner_since_s: float
    started_by: str
    started_since_s: float


@dataclass(slots=True)
class _Begun:
    worker: str
    token: int
    at_s: float


@dataclass(slots=True)
class _Index:
    """What is known of one index that is not released. begun: link -> its STARTED. lowest, highest: tokens of all STARTED.

    remade: counted as such.
    """

    begun: dict[int, _Begun] = field(default_factory=dict)
    lowest: int | None = None
    highest: int | None = None
    arrival: Arrival | None = None
    failure: Failure | None = None
    remade: bool = False


class Arrivals:
    """The state of one rank's arrivals; one thread at a time.

    lane_of: index -> lane, None past the session's end. window: S. start: first index that this client wants.
    Counters: `refused` (stale), `duplicates`, `remade` (begun under one lease and delivered under another).
    """

    def __init__(self, lane_of: Callable[[int], int | None], lanes: int, window: int, start: int = 0) -> None:
        self.lane_of = lane_of
        self.next = start
        self.window = window
        self.owners: list[str] = [""] * lanes
        self.tokens: list[int] = [0] * lanes
        self._most_token = TOKEN_AHEAD_US
        self._told_tokens: Sequence[int] = ()
        self._owner_since_s: list[float] = [0.0] * lanes
        self._known: dict[int, _Index] = {}
        self._withheld: dict[int, set[int]] = {}
        self._past: dict[int, int] = {}
        self.refused = 0
        self.duplicates = 0
        self.remade = 0

    def table(self, owners: Sequence[str], tokens: Sequence[int], window: int, now_s: float, version: int = 0) -> bool:
        """Take in a lane table; entries older than the known ones are passed over. True if the window grew (connect anew).

        version: the store's time in microseconds, as tokens are.
        """
        self._told_tokens = tokens
        self._most_token = max(self._most_token, max(version, *tokens) + TOKEN_AHEAD_US)
        for lane, (owner, token) in enumerate(zip(owners, tokens, strict=True)):
            if token < self.tokens[lane]:
                continue
            if owner != self.owners[lane] or token > self.tokens[lane]:
                self._owner_since_s[lane] = now_s
            self.owners[lane] = owner
            self.tokens[lane] = token
        grew = window > self.window
        self.window = max(self.window, window)
        return grew

    def hello(self, link: int) -> tuple[int, tuple[int, ...]]:
        """(next, have) for a new link's HELLO; what is told as had is withheld by its producer from now on."""
        have = self.have()
        self._withheld[link] = set(have)
        return self.next, have

    def have(self) -> tuple[int, ...]:
        """Complete indexes that are not released, ascending."""
        return tuple(sorted(index for index, known in self._known.items() if known.arrival is not None))

    def started(self, link: int, worker: str, index: int, token: int, now_s: float) -> Verdict:
        """A producer began an index."""
        verdict = self._judge(index, token)
        if verdict is Verdict.ACCEPTED or verdict is Verdict.STALE:  # a word that came late still tells of work begun
            known = self._known.setdefault(index, _Index())
            known.lowest = token if known.lowest is None else min(token, known.lowest)
            known.highest = token if known.highest is None else max(token, known.highest)
            self._count_remade(known)
        if verdict is Verdict.ACCEPTED:
            known.begun[link] = _Begun(worker, token, now_s)
        if verdict is Verdict.LATE and self._past.get(index, token) != token:
            del self._past[index]
            self.remade += 1
        return verdict

    def ready(self, arrival: Arrival) -> Verdict:
        """A producer completed an index. Unless ACCEPTED the slot's content is not to be used."""
        here = self._known[arrival.index].arrival if arrival.index in self._known else None
        if here is not None and (here.link, here.token) == (arrival.link, arrival.token):
            return Verdict.KNOWN  # also where its lane has moved on since
        verdict = self._judge(arrival.index, arrival.token)
        if verdict is Verdict.ACCEPTED:
            if here is None:
                known = self._known.setdefault(arrival.index, _Index())
                known.arrival = arrival
                known.failure = None
                known.begun.pop(arrival.link, None)
                self._count_remade(known)
                return verdict
            verdict = Verdict.DUPLICATE
            self.duplicates += 1
        self.refused += verdict is Verdict.STALE
        self._withhold(arrival.link, arrival.index, verdict)
        return verdict

    def failed(self, link: int, failure: Failure) -> Verdict:
        """A producer cannot make an index.

        FAILED carries no token (failure.token is not read): that of its STARTED counts, else its producer must own the lane.
        """
        lane = self.lane_of(failure.index)
        known = self._known.get(failure.index)
        begun = known.begun.get(link) if known else None
        token = begun.token if begun else 0
        if begun is None and lane is not None and self.owners[lane] == failure.worker:
            token = self.tokens[lane]
        verdict = self._judge(failure.index, token)
        if verdict is Verdict.ACCEPTED:
            known = self._known.setdefault(failure.index, _Index())
            known.begun.pop(link, None)
            if known.arrival is None:
                known.failure = Failure(failure.index, token, failure.worker, failure.code, failure.message, failure.ids)
            else:
                verdict = Verdict.DUPLICATE
        self.refused += verdict is Verdict.STALE
        self._withhold(link, failure.index, verdict)
        return verdict

    def try_again(self) -> None:
        """The trainer was told of a failure: what failed is missing again, so that its producers are asked once more.

        Else a cause that was mended since (a shard put back) would be told for ever.
        """
        for known in self._known.values():
            known.failure = None

    def link_gone(self, link: int) -> None:
        """A connection ended: nothing more comes by it; what it delivered stays."""
        self._withheld.pop(link, None)
        for known in self._known.values():
            known.begun.pop(link, None)

    def discard(self, index: int) -> Arrival | None:
        """Un-accept a batch whose slot turned out to hold something else; it is wanted again."""
        known = self._known.get(index)
        arrival = known.arrival if known else None
        if known is not None and arrival is not None:
            known.arrival = None
            self._withhold(arrival.link, index, Verdict.ACCEPTED)
        return arrival

    def place_lost(self, place: int) -> list[int]:
        """A slab's memory went with its producer: what lies there is wanted again. Returns the indexes."""
        lost = [index for index, known in self._known.items() if known.arrival is not None and known.arrival.place == place]
        for index in lost:
            self._known[index].arrival = None
        return lost

    def release(self, next_index: int) -> list[Arrival]:
        """All indexes below `next_index` are done with; returns those that were here. A lower number changes nothing."""
        self.next = max(self.next, next_index)
        released = []
        for index in sorted(self._known):
            if index >= self.next:
                break
            known = self._known.pop(index)
            if known.arrival is not None:
                released.append(known.arrival)
                if not known.remade:
                    self._past[index] = known.arrival.token
        while len(self._past) > _MOST_PAST:
            del self._past[next(iter(self._past))]
        for withheld in self._withheld.values():
            if withheld:
                withheld.difference_update([index for index in withheld if index < self.next])
        return released

    def get(self, index: int) -> Arrival | Failure | None:
        """The batch, or why it cannot be made (as long as that was said under the newest token), or None: still awaited."""
        known = self._known.get(index)
        if known is None:
            return None
        if known.arrival is not None:
            return known.arrival
        lane = self.lane_of(index)
        if known.failure is not None and lane is not None and known.failure.token >= self.tokens[lane]:
            return known.failure
        return None

    def places(self) -> set[int]:
        """Slabs that hold a batch not yet released."""
        return {known.arrival.place for known in self._known.values() if known.arrival is not None}

    def pending(self, link: int) -> bool:
        """True while the link has a batch here that is not released, or one begun whose delivery would be accepted."""
        for index, known in self._known.items():
            if known.arrival is not None:
                if known.arrival.link == link:
                    return True
            elif link in known.begun and known.begun[link].token >= self._newest(index):
                return True
        return False

    def must_restart(self, link: int, worker: str) -> bool:
        """True if the link's producer owns the lane of a wanted index that it will not send on this connection."""
        return any(self._wanted_from(worker, index) for index in self._withheld.get(link, ()))

    def awaited(self, index: int) -> Awaited:
        """Who is to deliver `index`."""
        lane = self.lane_of(index)
        known = self._known.get(index, _Index())
        newest = max(known.begun.values(), key=lambda begun: begun.token, default=None)
        if newest is not None and newest.token < self._newest(index):
            newest = None
        return Awaited(
            index=index,
            lane=lane,
            worker="" if lane is None else self.owners[lane],
            token=self._newest(index),
            owner_since_s=0.0 if lane is None else self._owner_since_s[lane],
            started_by=newest.worker if newest else "",
            started_since_s=newest.at_s if newest else 0.0,
        )

    def rolled_back(self) -> list[int]:
        """Lanes whose token in the table that came last is lower than the newest known: the store forgot a lease.

        Its owner's batches are refused here, for ever if nobody leases the lane anew. An overtaken table looks the same for a
        moment.
        """
        return [lane for lane, token in enumerate(self._told_tokens) if token < self.tokens[lane]]

    def missing(self) -> list[tuple[int, int]]:
        """(index, lane) of the window's batches that are not here, ascending; one whose failure is known is not missing."""
        window = ((index, self.lane_of(index)) for index in range(self.next, self.next + self.window))
        return [(index, lane) for index, lane in window if lane is not None and self.get(index) is None]

    def withheld(self, link: int, index: int) -> bool:
        """True if the link's copy of an index counts for nothing any more: told as had, refused, or thrown away."""
        return index in self._withheld.get(link, ())

    def owner_since_s(self, lane: int) -> float:
        """When a lane's present lease was told."""
        return self._owner_since_s[lane]

    def _judge(self, index: int, token: int) -> Verdict:
        if token > self._most_token:
            return Verdict.AHEAD
        if index < self.next:
            return Verdict.LATE
        lane = self.lane_of(index) if index < self.next + self.window else None
        if lane is None:
            return Verdict.OUTSIDE
        return Verdict.STALE if token < self.tokens[lane] else Verdict.ACCEPTED

    def _count_remade(self, known: _Index) -> None:
        """Messages are read late where marks are taken: what was begun under another lease may be heard of afterwards."""
        if known.arrival is not None and not known.remade and not {known.lowest, known.highest} <= {None, known.arrival.token}:
            known.remade = True
            self.remade += 1

    def _newest(self, index: int) -> int:
        lane = self.lane_of(index)
        return 0 if lane is None else self.tokens[lane]

    def _withhold(self, link: int, index: int, verdict: Verdict) -> None:
        if verdict not in (Verdict.LATE, Verdict.OUTSIDE, Verdict.AHEAD):
            self._withheld.setdefault(link, set()).add(index)

    def _wanted_from(self, worker: str, index: int) -> bool:
        lane = self.lane_of(index)
        return lane is not None and index >= self.next and self.owners[lane] == worker and self.get(index) is None
