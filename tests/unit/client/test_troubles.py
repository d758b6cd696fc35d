"""What a rank tells the coordinator of lanes that it does not get."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.client.transports.fetch_host import FetchHost, RemoteLink
from headrace.client.transports.ladder import Rung
from headrace.client.transports.peers import Peer
from headrace.client.transports.protocol import LaneTrouble
from headrace.client.transports.troubles import MOST_TOLD, Lack, troubles
from headrace.client.transports.waiting import milestones
from headrace.core.arrivals import Arrival, Arrivals
from headrace.core.job import Endpoint
from headrace.core.starvation import split_wait

LANES = 4


def peer(worker: str, since_s: float = 0.0, incarnation: str = "1", **state: Any) -> Peer:
    """A worker without a connection."""
    return Peer(Endpoint(worker, incarnation, "node", "host:1", ""), since_s, **state)


@pytest.fixture
def link() -> RemoteLink:
    """The trainer's end of a stream."""
    return RemoteLink(1, "w", FetchHost.__new__(FetchHost))


@pytest.fixture
def arrivals() -> Arrivals:
    """Window 3, lane = index mod 4; lanes in turn to `good` and `bad`, since 10 s."""
    made = Arrivals(lambda index: index % LANES, LANES, 3)
    made.table(["good", "bad"] * 2, [5] * LANES, 3, 10.0)
    return made


def test_nothing_is_told_of_a_rank_that_is_served(arrivals: Arrivals, link: RemoteLink) -> None:
    peers = [peer("good"), peer("bad")]
    assert troubles(arrivals, peers, None, 0.0, 99.0) == (), "nobody waits"
    assert troubles(arrivals, peers, Lack(0, 98.5), 0.0, 99.0) == (), "not for long"
    peers = [peer("good", link=link, welcomed=True), peer("bad", link=link, welcomed=True)]
    assert troubles(arrivals, peers, Lack(0, 20.0), 0.0, 99.0) == (), "a slow batch is no trouble"


def test_lanes_of_unconnected_owners_are_told_in_the_order_in_which_they_are_needed(
    arrivals: Arrivals, link: RemoteLink
) -> None:
    refused = peer("bad", link=link, last_error="no such data set here")
    peers = [peer("good", link=link, welcomed=True), refused]
    arrivals.release(1)
    told = troubles(arrivals, peers, Lack(1, 20.0), 0.0, 22.0)
    assert told == tuple(LaneTrouble(lane, "bad", 5, 2.0, False, "no such data set here") for lane in (1, 3))
    arrivals.ready(Arrival(1, 5, 1, "bad", 1, 1, 0.0))
    assert [trouble.lane for trouble in troubles(arrivals, peers, Lack(2, 20.0), 0.0, 22.0)] == [3]
    (unknown, _) = troubles(arrivals, [], Lack(2, 20.0), 0.0, 22.0)
    assert (unknown.worker, unknown.reason) == ("good", "no connection yet")


def test_a_new_owner_gets_its_time_and_nobody_is_no_ones_fault(arrivals: Arrivals) -> None:
    arrivals.table(["new", "", "good", "bad"], [6, 6, 5, 5], 3, 30.0)
    assert [t.lane for t in troubles(arrivals, [], Lack(0, 20.0), 0.0, 30.5)] == [2]
    assert [(t.lane, t.waited_s) for t in troubles(arrivals, [], Lack(0, 20.0), 0.0, 32.0)] == [(0, 2.0), (2, 12.0)]


def test_a_workers_newest_incarnation_counts(arrivals: Arrivals, link: RemoteLink) -> None:
    peers = [peer("good", link=link, welcomed=True), peer("good", incarnation="2", last_error="refused")]
    assert [t.reason for t in troubles(arrivals, peers, Lack(0, 20.0), 0.0, 30.0) if t.worker == "good"] == ["refused"] * 2


def test_a_fetcher_that_starts_is_no_workers_fault(arrivals: Arrivals) -> None:
    peers = [peer("good", rung=Rung("grpc", "another node")), peer("bad", rung=Rung("shm", "same node"))]
    assert [t.worker for t in troubles(arrivals, peers, Lack(0, 20.0), math.inf, 30.0)] == ["bad"]
    assert {(t.worker, t.waited_s) for t in troubles(arrivals, peers, Lack(0, 20.0), 27.0, 30.0)} == {
        ("good", 3.0),
        ("bad", 10.0),
    }


def test_a_worker_that_opens_the_session_gets_more_time(arrivals: Arrivals) -> None:
    peers = [peer("good", opening=True), peer("bad")]
    assert [t.worker for t in troubles(arrivals, peers, Lack(0, 20.0), 0.0, 35.0)] == ["bad"]
    assert [t.waited_s for t in troubles(arrivals, peers, Lack(0, 20.0), 0.0, 36.0)] == [1.0, 16.0, 1.0]


def test_forgotten_leases_are_told_at_once_with_the_newest_token_and_at_most_so_many() -> None:
    arrivals = Arrivals(lambda index: index % 100, 100, 3)
    arrivals.table(["a"] * 100, [7] * 100, 3, 0.0)
    arrivals.table(["b"] * 100, [6] * 100, 3, 1.0)
    told = troubles(arrivals, [], None, 0.0, 1.0)
    assert len(told) == MOST_TOLD
    assert {(trouble.token, trouble.waited_s) for trouble in told} == {(7, 0.0)}


def test_the_running_wait_is_split_by_what_is_known_of_the_batch(arrivals: Arrivals, link: RemoteLink) -> None:
    def cause(peers: list[Peer]) -> dict[str, float]:
        parts = split_wait(20.0, 30.0, milestones(arrivals.awaited(0), peers))
        assert sum(parts.values()) == pytest.approx(10.0)
        return {cause: seconds for cause, seconds in parts.items() if seconds}

    assert cause([]) == cause([peer("good")]) == {"lane_wait": 10.0}
    connected = [peer("good", since_s=23.0, link=link, welcomed=True)]
    assert cause(connected) == {"lane_wait": 3.0, "worker_busy": 7.0}
    arrivals.started(1, "good", 0, 5, 26.0)
    assert cause(connected) == {"worker_busy": 6.0, "transfer": 4.0}
