"""The data plane without sockets: the real rules (core.arrivals, core.credit), every schedule and loss that a test wants.

A worker makes one batch at a time, the lowest in the plan's order first, for ranks connected to it, in lanes that it
believes to hold. Messages of a link arrive in order or not at all. Slots are written when a batch is begun, so that a
batch that is overwritten before it was consumed is seen.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from headrace.core.arrivals import Arrival, Arrivals, Verdict
from headrace.core.credit import CreditWindow


@dataclass
class Link:
    """A connection between a rank and a worker."""

    number: int
    rank: int
    worker: str
    credit: CreditWindow
    slots: list[tuple[int, int]]
    to_rank: deque[tuple[str, int, int]] = field(default_factory=deque)
    alive: bool = True


@dataclass
class Worker:
    """lanes: lane -> token that it believes to hold. busy: the batch in its engine."""

    name: str
    lanes: dict[int, int] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    busy: tuple[Link, int, int] | None = None
    alive: bool = True


@dataclass
class Rank:
    """consumed: indexes handed over, in order. places: all links, for their slots."""

    number: int
    arrivals: Arrivals
    links: dict[str, Link] = field(default_factory=dict)
    places: dict[int, Link] = field(default_factory=dict)
    consumed: list[int] = field(default_factory=list)


class Plane:
    """All of it. window: S. Batch of (rank, index) is k = index * world + rank, in lane k mod lanes."""

    def __init__(self, *, world: int, lanes: int, window: int, workers: int) -> None:
        self.world = world
        self.lanes = lanes
        self.window = window
        self.numbers = itertools.count(1)
        self.owners = [""] * lanes
        self.tokens = [0] * lanes
        self.workers = {f"w{i}": Worker(f"w{i}") for i in range(workers)}
        self.ranks = [Rank(r, Arrivals(lambda i, r=r: (i * world + r) % lanes, lanes, window)) for r in range(world)]
        self.clock_s = 0.0

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def lease(self, lane: int, name: str) -> None:
        """Give a lane away; nobody hears of it yet."""
        self.owners[lane] = name
        self.tokens[lane] += bool(name)

    def tell_worker(self, name: str) -> None:
        """A heartbeat's answer."""
        self.workers[name].lanes = {lane: self.tokens[lane] for lane in range(self.lanes) if self.owners[lane] == name}

    def tell_rank(self, number: int) -> None:
        """A watch's snapshot; the rank mends its links."""
        rank = self.ranks[number]
        self.clock_s += 1.0
        rank.arrivals.table(self.owners, self.tokens, self.window, self.clock_s)
        self.mend(number)

    # --- workers -----------------------------------------------------------------------------------------------------

    def kill(self, name: str, *, deliver: int = 10**9) -> None:
        """SIGKILL: of what was sent, the first `deliver` messages of each link still arrive."""
        worker = self.workers[name]
        worker.alive = False
        worker.busy = None
        for link in list(worker.links.values()):
            for _ in range(min(deliver, len(link.to_rank))):
                self.deliver(link)
            self.cut(link)
        worker.links.clear()
        worker.lanes.clear()

    def wanted(self, name: str) -> list[tuple[Link, int]]:
        """What a worker may make, lowest batch first."""
        worker = self.workers[name]
        found = [
            (index * self.world + link.rank, link, index)
            for link in worker.links.values()
            if link.alive
            for index in range(link.credit.next, link.credit.next + link.credit.window)
            if link.credit.wants(index) and (index * self.world + link.rank) % self.lanes in worker.lanes
        ]
        return [(link, index) for _, link, index in sorted(found, key=lambda item: item[0])]

    def begin(self, name: str) -> bool:
        """Start the lowest wanted batch, if the engine is free."""
        worker = self.workers[name]
        wanted = self.wanted(name)
        if worker.busy is not None or not wanted:
            return False
        link, index = wanted[0]
        token = worker.lanes[(index * self.world + link.rank) % self.lanes]
        worker.busy = (link, index, token)
        link.slots[index % len(link.slots)] = (index, token)
        link.to_rank.append(("started", index, token))
        return True

    def finish(self, name: str) -> bool:
        """The engine is through."""
        worker = self.workers[name]
        if worker.busy is None:
            return False
        (link, index, token), worker.busy = worker.busy, None
        if link.alive and link.credit.wants(index):
            link.credit.mark_made(index)
            link.to_rank.append(("ready", index, token))
        return True

    # --- ranks -------------------------------------------------------------------------------------------------------

    def deliver(self, link: Link) -> bool:
        """The next message of a link arrives."""
        if not link.alive or not link.to_rank:
            return False
        kind, index, token = link.to_rank.popleft()
        arrivals = self.ranks[link.rank].arrivals
        newest = arrivals.tokens[(index * self.world + link.rank) % self.lanes]
        if kind == "started":
            verdict = arrivals.started(link.number, link.worker, index, token, self.clock_s)
        else:
            verdict = arrivals.ready(Arrival(index, token, link.number, link.worker, link.number, 1, self.clock_s))
        assert verdict is not Verdict.OUTSIDE
        assert verdict is not Verdict.ACCEPTED or token >= newest, "a lease that was lost delivered"
        return True

    def lie(self, link: Link, lane: int, ahead: int) -> bool:
        """STARTED under a token above the newest of any lane, its own or not. False: a token that was never issued.

        That ends its connection, as the intake would.
        """
        arrivals = self.ranks[link.rank].arrivals
        window = range(arrivals.next, arrivals.next + self.window)
        index = next((i for i in window if (i * self.world + link.rank) % self.lanes == lane), None)
        if index is not None:
            token = self.tokens[lane] + ahead
            if arrivals.started(link.number, link.worker, index, token, self.clock_s) is Verdict.AHEAD:
                self.cut(link)
                return False
        return True

    def cut(self, link: Link) -> None:
        """A connection ends; what is on the way is lost."""
        if link.alive:
            link.alive = False
            link.to_rank.clear()
            rank = self.ranks[link.rank]
            rank.arrivals.link_gone(link.number)
            if rank.links.get(link.worker) is link:
                del rank.links[link.worker]
            worker = self.workers[link.worker]
            if worker.links.get(link.rank) is link:
                del worker.links[link.rank]

    def connect(self, rank: Rank, name: str) -> None:
        number = next(self.numbers)
        next_index, have = rank.arrivals.hello(number)
        credit = CreditWindow(next_index, self.window, set(have))
        link = Link(number, rank.number, name, credit, [(-1, -1)] * self.window)
        rank.links[name] = rank.places[number] = self.workers[name].links[rank.number] = link

    def mend(self, number: int) -> None:
        """Connect to owners, leave others, start over where needed: what the intake does after every event."""
        rank = self.ranks[number]
        owners = {name for name in rank.arrivals.owners if name and self.workers[name].alive}
        for name, link in list(rank.links.items()):
            leave = name not in owners and not rank.arrivals.pending(link.number)
            if leave or rank.arrivals.must_restart(link.number, name):
                self.cut(link)
        for name in owners - set(rank.links):
            self.connect(rank, name)

    def ready(self, number: int) -> bool:
        """The rank's next batch is here."""
        rank = self.ranks[number]
        return isinstance(rank.arrivals.get(rank.arrivals.next), Arrival)

    def consume(self, number: int) -> bool:
        """Hand the next batch over, if it is here, and release it."""
        rank = self.ranks[number]
        index = rank.arrivals.next
        arrival = rank.arrivals.get(index)
        if not isinstance(arrival, Arrival):
            return False
        slots = rank.places[arrival.place].slots
        assert slots[index % len(slots)] == (index, arrival.token), "its slot was written again before it was consumed"
        assert rank.consumed == list(range(index))
        rank.consumed.append(index)
        rank.arrivals.release(index + 1)
        for link in rank.links.values():
            link.credit.advance(index + 1)
        return True
