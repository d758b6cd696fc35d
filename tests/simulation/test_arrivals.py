"""core.arrivals under all histories that hypothesis thinks of: in order, each once, and whatever is wanted can be made."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.arrivals import Arrival
from headrace.core.lease import TOKEN_AHEAD_US
from tests.simulation.data_plane import Plane

NAMES = ["w0", "w1", "w2"]
some_name = st.sampled_from(NAMES)
some_rank = st.integers(0, 1)
some_lane = st.integers(0, 4)


class ArrivalsMachine(RuleBasedStateMachine):
    """Two ranks, three workers, five lanes."""

    @initialize(window=st.integers(1, 4))
    def start(self, window: int) -> None:
        self.plane = Plane(world=2, lanes=5, window=window, workers=3)
        self.lies: list[tuple[str, int, int]] = []

    @rule(lane=some_lane, name=st.sampled_from([*NAMES, ""]))
    def lease(self, lane: int, name: str) -> None:
        self.plane.lease(lane, name)

    @rule(name=some_name)
    def heartbeat(self, name: str) -> None:
        self.plane.tell_worker(name)

    @rule(rank=some_rank)
    def watch(self, rank: int) -> None:
        self.plane.tell_rank(rank)

    @rule(rank=some_rank)
    def watch_an_old_snapshot(self, rank: int) -> None:
        arrivals = self.plane.ranks[rank].arrivals
        owners, tokens = list(arrivals.owners), list(arrivals.tokens)
        arrivals.table(["someone else"] * 5, [-1] * 5, 1, 0.0)
        assert (arrivals.owners, arrivals.tokens) == (owners, tokens)

    @rule(rank=some_rank)
    def mend(self, rank: int) -> None:
        self.plane.mend(rank)

    @rule(name=some_name, finish=st.booleans())
    def work(self, name: str, finish: bool) -> None:
        self.plane.begin(name)
        if finish:
            self.plane.finish(name)

    @rule(name=some_name, rank=some_rank, count=st.integers(1, 8))
    def deliver(self, name: str, rank: int, count: int) -> None:
        link = self.plane.ranks[rank].links.get(name)
        for _ in range(count if link else 0):
            self.plane.deliver(link)

    @rule(name=some_name, rank=some_rank)
    def cut(self, name: str, rank: int) -> None:
        link = self.plane.ranks[rank].links.get(name)
        if link:
            self.plane.cut(link)

    @rule(name=some_name, lane=some_lane, ahead=st.sampled_from([1, 2, 1000, 2**60]))
    def lie(self, name: str, lane: int, ahead: int) -> None:
        """Under a token that may yet be issued it goes on with that for ever; of a lane that it may own or not."""
        heard = [self.plane.lie(rank.links[name], lane, ahead) for rank in self.plane.ranks if name in rank.links]
        if all(heard):
            self.lies.append((name, lane, ahead))

    @rule(name=some_name, deliver=st.integers(0, 5))
    def kill_and_restart(self, name: str, deliver: int) -> None:
        self.plane.kill(name, deliver=deliver)
        self.plane.workers[name].alive = True

    @rule(rank=some_rank, ahead=st.integers(0, 3))
    def discard(self, rank: int, ahead: int) -> None:
        arrivals = self.plane.ranks[rank].arrivals
        index = arrivals.next + ahead
        was_here = isinstance(arrivals.get(index), Arrival)
        assert (arrivals.discard(index) is not None) == was_here

    @rule(rank=some_rank)
    def consume(self, rank: int) -> None:
        self.plane.consume(rank)

    @precondition(lambda self: hasattr(self, "plane"))
    @rule()
    def settle(self) -> None:
        """Faults stop, lies do not: with one owner a lane and all told, every rank goes on, however odd the past was."""
        plane = self.plane
        for lane in range(plane.lanes):
            if not plane.owners[lane]:
                plane.lease(lane, NAMES[lane % 3])
        for name in NAMES:
            plane.tell_worker(name)
        goals = [len(rank.consumed) + 2 * plane.window + 2 for rank in plane.ranks]
        for _ in range(40 * max(plane.window, 1)):
            for number in (0, 1):
                plane.tell_rank(number)
                links = plane.ranks[number].links
                for name, lane, ahead in self.lies:
                    if ahead < TOKEN_AHEAD_US and name in links:
                        plane.lie(links[name], lane, ahead)
                for link in list(links.values()):
                    while plane.deliver(link):
                        pass
                plane.mend(number)
                plane.consume(number)
            for name in NAMES:
                plane.finish(name)
                plane.begin(name)
        assert all(len(rank.consumed) >= goal for rank, goal in zip(plane.ranks, goals, strict=True)), "it hangs"

    @invariant()
    def nothing_grows(self) -> None:
        if hasattr(self, "plane"):
            for rank in self.plane.ranks:
                assert len(rank.arrivals.have()) <= self.plane.window
                assert rank.arrivals.places() <= set(rank.places)


TestArrivals = ArrivalsMachine.TestCase
