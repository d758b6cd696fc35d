"""core.arrivals rule by rule; histories are in tests/simulation."""

from __future__ import annotations

import pytest

from headrace.core.arrivals import Arrival, Arrivals, Failure, Verdict
from headrace.core.lease import TOKEN_AHEAD_US

LANES = 4
NOW_US = 1_790_000_000_000_000


@pytest.fixture
def arrivals() -> Arrivals:
    """Window 3, lane = index mod 4, 100 batches; lanes of w1 under token 5."""
    made = Arrivals(lambda index: index % LANES if index < 100 else None, LANES, 3)
    assert not made.table(["w1"] * LANES, [5] * LANES, 3, 0.0)
    return made


def batch(index: int, token: int = 5, link: int = 1, worker: str = "w1") -> Arrival:
    return Arrival(index, token, link, worker, place=link, total_bytes=1, at_s=1.0)


def failed(index: int, worker: str = "w1") -> Failure:
    return Failure(index, 0, worker, "batch_failed", "all bad", {})


def test_first_of_duplicates_stays(arrivals: Arrivals) -> None:
    assert arrivals.ready(batch(0, link=1)) is Verdict.ACCEPTED
    assert arrivals.ready(batch(0, link=2)) is Verdict.DUPLICATE
    assert arrivals.get(0) == batch(0, link=1)
    assert arrivals.duplicates == 1


def say(arrivals: Arrivals, kind: str, token: int, worker: str = "w1", link: int = 1) -> Verdict:
    """One producer's word on index 0."""
    if kind == "started":
        return arrivals.started(link, worker, 0, token, 0.0)
    return arrivals.ready(batch(0, token, link, worker))


@pytest.mark.parametrize("kind", ["started", "ready"])
def test_a_lower_token_than_the_newest_tables_is_stale(arrivals: Arrivals, kind: str) -> None:
    assert say(arrivals, kind, 4) is Verdict.STALE
    arrivals.table(["w2"] * LANES, [9] * LANES, 3, 0.0)
    arrivals.table(["w1"] * LANES, [8] * LANES, 3, 0.0)
    assert say(arrivals, kind, 8) is Verdict.STALE
    assert say(arrivals, kind, 9, "w2") is Verdict.ACCEPTED
    assert arrivals.refused == (2 if kind == "ready" else 0)


@pytest.mark.parametrize("kind", ["started", "ready"])
@pytest.mark.parametrize("ahead", [1, TOKEN_AHEAD_US, TOKEN_AHEAD_US + 1, 2**64 - 1 - NOW_US])
def test_no_word_of_a_producer_shuts_out_the_owner_that_the_table_names(arrivals: Arrivals, kind: str, ahead: int) -> None:
    """Whoever says it, however high the token is, before and after the next table."""
    arrivals.table(["w1"] * LANES, [NOW_US] * LANES, 3, 0.0, NOW_US)
    never_issued = ahead > TOKEN_AHEAD_US
    assert (say(arrivals, kind, NOW_US + ahead, "w2", 2) is Verdict.AHEAD) == never_issued
    if not never_issued and kind == "ready":
        arrivals.discard(0)
    for token in (NOW_US, NOW_US + 7):
        arrivals.table(["w1"] * LANES, [token] * LANES, 3, 1.0, token)
        say(arrivals, "started", token - 7 + ahead, "w2", 2)
        assert arrivals.started(1, "w1", 0, token, 1.0) is Verdict.ACCEPTED
        assert arrivals.rolled_back() == []
        assert arrivals.ready(batch(0, token)) is Verdict.ACCEPTED
        arrivals.discard(0)


def test_a_token_is_possible_for_a_day_beyond_the_stores_clock_and_the_newest_token(arrivals: Arrivals) -> None:
    """Leases may be days old when a lane moves; and the store's clock may have been put back since they were given."""
    arrivals.table(["w1"] * LANES, [5] * LANES, 3, 0.0, NOW_US)
    assert say(arrivals, "started", NOW_US + TOKEN_AHEAD_US) is Verdict.ACCEPTED
    assert say(arrivals, "started", NOW_US + TOKEN_AHEAD_US + 1) is Verdict.AHEAD
    arrivals.table(["w1"] * LANES, [2 * NOW_US] * LANES, 3, 0.0, 7)
    arrivals.table(["w1"] * LANES, [2 * NOW_US] * LANES, 3, 0.0, 8)
    assert say(arrivals, "ready", 2 * NOW_US + TOKEN_AHEAD_US) is Verdict.ACCEPTED
    assert say(arrivals, "ready", 2 * NOW_US + TOKEN_AHEAD_US + 1) is Verdict.AHEAD
    assert not arrivals.withheld(1, 0), "its link ends, nothing is to be asked again on it"


def test_an_accepted_batch_stays_when_the_token_rises_or_its_link_ends(arrivals: Arrivals) -> None:
    arrivals.ready(batch(0))
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    arrivals.link_gone(1)
    assert arrivals.get(0) == batch(0)
    assert arrivals.places() == {1}


def test_late_and_outside(arrivals: Arrivals) -> None:
    arrivals.release(2)
    assert arrivals.ready(batch(1)) is Verdict.LATE
    assert arrivals.ready(batch(4)) is Verdict.ACCEPTED
    assert arrivals.ready(batch(5)) is Verdict.OUTSIDE
    arrivals.release(99)
    assert arrivals.ready(batch(100)) is Verdict.OUTSIDE


def test_a_refused_index_restarts_the_link_once_its_producer_owns_the_lane(arrivals: Arrivals) -> None:
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    assert arrivals.ready(batch(0)) is Verdict.STALE
    assert not arrivals.must_restart(1, "w1")
    arrivals.table(["w1"] * LANES, [7] * LANES, 3, 2.0)
    assert arrivals.must_restart(1, "w1")
    arrivals.ready(batch(0, 7, link=2, worker="w2"))
    assert not arrivals.must_restart(1, "w1"), "it came from elsewhere"


def test_an_index_told_as_had_and_then_discarded_restarts_the_owners_link(arrivals: Arrivals) -> None:
    arrivals.ready(batch(1))
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    assert arrivals.hello(2) == (0, (1,))
    assert not arrivals.must_restart(2, "w2")
    assert arrivals.discard(1) == batch(1)
    assert arrivals.get(1) is None
    assert arrivals.must_restart(2, "w2")
    arrivals.link_gone(2)
    assert arrivals.hello(3) == (0, ())
    assert not arrivals.must_restart(3, "w2")


def test_remade_counts_batches_begun_under_one_lease_and_delivered_under_another(arrivals: Arrivals) -> None:
    arrivals.started(1, "w1", 0, 5, 0.0)
    arrivals.started(1, "w1", 1, 5, 0.0)
    arrivals.link_gone(1)
    arrivals.ready(batch(0, 6, link=2, worker="w2"))
    arrivals.ready(batch(1, 5, link=3))
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    assert arrivals.started(4, "w1", 2, 5, 0.0) is Verdict.STALE, "but it was begun"
    arrivals.ready(batch(2, 6, link=2, worker="w2"))
    assert arrivals.remade == 2


@pytest.mark.parametrize("released", [False, True])
def test_remade_counts_what_is_read_of_only_after_the_batch_was_taken_by_its_mark(arrivals: Arrivals, released: bool) -> None:
    """By the lease that delivered, or by another: once each."""
    for index in range(3):
        arrivals.ready(batch(index))
    if released:
        arrivals.release(3)
    for index, token in ((0, 4), (0, 3), (0, 5), (1, 5), (2, 6), (2, 6)):
        arrivals.started(2, "w2", index, token, 2.0)
    assert arrivals.remade == 2


def test_past_batches_are_not_remembered_for_ever() -> None:
    arrivals = Arrivals(lambda index: index % LANES, LANES, 3)
    arrivals.table(["w1"] * LANES, [5] * LANES, 3, 0.0)
    for index in range(5000):
        arrivals.ready(batch(index))
        arrivals.release(index + 1)
    assert len(arrivals._past) <= 1024
    arrivals.started(2, "w2", 10, 4, 2.0)
    arrivals.started(2, "w2", 4990, 4, 2.0)
    assert arrivals.remade == 1


def test_ready_after_its_mark_is_known_though_the_lane_moved_on_between(arrivals: Arrivals) -> None:
    assert arrivals.ready(batch(0)) is Verdict.ACCEPTED
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    assert arrivals.ready(batch(0)) is Verdict.KNOWN
    assert arrivals.ready(batch(0, link=2)) is Verdict.STALE, "another copy"
    assert (arrivals.refused, arrivals.duplicates, arrivals.withheld(1, 0)) == (1, 0, False)


def test_a_failure_counts_under_its_starts_token_and_until_that_is_outdated(arrivals: Arrivals) -> None:
    assert arrivals.failed(2, failed(0, "w2")) is Verdict.STALE, "neither started nor owned by w2"
    arrivals.started(1, "w1", 0, 5, 0.0)
    assert arrivals.failed(1, failed(0)) is Verdict.ACCEPTED
    assert isinstance(arrivals.get(0), Failure)
    assert arrivals.failed(1, failed(1)) is Verdict.ACCEPTED, "the lane's owner need not have started"
    arrivals.table(["w1"] * LANES, [6] * LANES, 3, 1.0)
    assert arrivals.get(0) is None
    assert arrivals.must_restart(1, "w1"), "under a new lease it is tried again"
    arrivals.ready(batch(2, 6))
    assert arrivals.failed(1, failed(2)) is Verdict.DUPLICATE, "what is here stays"


def test_pending(arrivals: Arrivals) -> None:
    assert not arrivals.pending(1)
    arrivals.started(1, "w1", 0, 5, 0.0)
    assert arrivals.pending(1)
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    assert not arrivals.pending(1), "its delivery would be refused"
    arrivals.ready(batch(1, 6, link=1))
    assert arrivals.pending(1)
    arrivals.release(2)
    assert not arrivals.pending(1)


def test_awaited_names_owner_and_start_with_their_times(arrivals: Arrivals) -> None:
    arrivals.table(["", "w2", "w1", "w1"], [5, 6, 5, 5], 3, 10.0)
    arrivals.started(2, "w2", 1, 6, 12.0)
    free, begun = arrivals.awaited(0), arrivals.awaited(1)
    assert (free.lane, free.worker, free.owner_since_s, free.started_by) == (0, "", 10.0, "")
    assert (begun.worker, begun.token, begun.owner_since_s) == ("w2", 6, 10.0)
    assert (begun.started_by, begun.started_since_s) == ("w2", 12.0)
    assert arrivals.awaited(2).owner_since_s == 0.0


def test_the_window_grows_and_never_shrinks(arrivals: Arrivals) -> None:
    assert arrivals.table(["w1"] * LANES, [5] * LANES, 5, 0.0)
    assert not arrivals.table(["w1"] * LANES, [5] * LANES, 2, 0.0)
    assert arrivals.ready(batch(4)) is Verdict.ACCEPTED


def test_what_failed_is_asked_for_once_more_after_it_was_told(arrivals: Arrivals) -> None:
    arrivals.ready(batch(0))
    assert arrivals.failed(1, failed(1)) is Verdict.ACCEPTED
    assert not arrivals.must_restart(1, "w1")
    arrivals.try_again()
    assert arrivals.get(1) is None and arrivals.get(0) == batch(0)
    assert arrivals.must_restart(1, "w1"), "on this connection its producer thinks that all is said"
    arrivals.link_gone(1)
    assert arrivals.hello(2) == (0, (0,))
    assert arrivals.ready(batch(1, link=2)) is Verdict.ACCEPTED


def test_a_lane_whose_lease_the_store_forgot_is_named_until_it_is_leased_anew(arrivals: Arrivals) -> None:
    assert arrivals.rolled_back() == []
    arrivals.table(["w2"] * LANES, [6] * LANES, 3, 1.0)
    arrivals.table(["w1", "w2", "", "w2"], [5, 6, 0, 6], 3, 2.0)
    assert arrivals.rolled_back() == [0, 2]
    assert arrivals.owners == ["w2"] * LANES, "the older lease is not believed"
    arrivals.table(["w1", "w2", "w1", "w2"], [7, 6, 8, 6], 3, 3.0)
    assert arrivals.rolled_back() == []
    assert arrivals.owner_since_s(0) == 3.0


def test_a_token_that_only_a_producer_has_told_is_no_lease_that_was_forgotten(arrivals: Arrivals) -> None:
    assert arrivals.started(1, "w2", 1, 9, 1.0) is Verdict.ACCEPTED
    assert arrivals.rolled_back() == []
    arrivals.table(["w1", "w2", "w1", "w1"], [5, 9, 5, 5], 3, 2.0)
    assert arrivals.rolled_back() == []
    assert arrivals.ready(batch(1)) is Verdict.STALE


def test_missing_is_what_the_window_lacks(arrivals: Arrivals) -> None:
    assert arrivals.missing() == [(0, 0), (1, 1), (2, 2)]
    arrivals.ready(batch(1))
    arrivals.started(1, "w1", 2, 5, 0.0)
    arrivals.failed(1, failed(2))
    assert arrivals.missing() == [(0, 0)]
    arrivals.release(98)
    assert arrivals.missing() == [(98, 2), (99, 3)], "nothing past the session's end"


def test_what_lay_in_memory_that_is_lost_is_wanted_again_and_named(arrivals: Arrivals) -> None:
    for index, link in ((0, 1), (1, 2), (2, 1)):
        assert arrivals.ready(batch(index, link=link)) is Verdict.ACCEPTED
    assert arrivals.place_lost(1) == [0, 2]
    assert arrivals.have() == (1,)
    assert arrivals.place_lost(1) == []
    assert arrivals.ready(batch(0, link=3)) is Verdict.ACCEPTED
