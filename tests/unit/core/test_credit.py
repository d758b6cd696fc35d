"""The credit rule against a model that keeps the whole history."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.credit import MAX_WINDOW, CreditWindow
from headrace.core.errors import ProtocolMismatch


class CreditMachine(RuleBasedStateMachine):
    """A producer and a rank whose NEXT messages are lost, repeated and reordered at will.

    A slot is in use from the time that its index is made until the rank releases it; the rule must never let two in-use
    indexes share `index % window`, and must always let the rank's lowest needed index be made.
    """

    @initialize(start=st.integers(0, 20), window=st.integers(1, 6), have=st.sets(st.integers(0, 40), max_size=6))
    def connect(self, start: int, window: int, have: set[int]) -> None:
        self.released = start  # the rank's truth
        self.have = {index for index in have if start <= index < start + window}
        self.made: set[int] = set()
        self.in_flight: list[int] = []
        self.credit = CreditWindow(start, window, set(have))

    @precondition(
        lambda self: any(self.credit.wants(i) for i in range(self.credit.next, self.credit.next + self.credit.window))
    )
    @rule(data=st.data())
    def make(self, data: st.DataObject) -> None:
        span = range(self.credit.next, self.credit.next + self.credit.window)
        index = data.draw(st.sampled_from([i for i in span if self.credit.wants(i)]))
        assert index not in self.made and index not in self.have
        in_use = {i % self.credit.window for i in self.made if i >= self.released}
        assert index % self.credit.window not in in_use, "two batches in one slot"
        self.credit.mark_made(index)
        self.made.add(index)

    @precondition(lambda self: self.released in self.made | self.have)
    @rule()
    def release(self) -> None:
        self.released += 1
        self.in_flight.append(self.released)

    @rule(step=st.integers(1, 9))
    def jump(self, step: int) -> None:
        """The rank was served by others meanwhile."""
        self.released += step
        self.in_flight.append(self.released)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), lose=st.booleans(), repeat=st.booleans())
    def deliver(self, data: st.DataObject, lose: bool, repeat: bool) -> None:
        message = data.draw(st.sampled_from(self.in_flight))
        if not repeat:
            self.in_flight.remove(message)
        if lose:
            return
        before = self.credit.next
        assert self.credit.advance(message) == (message > before)
        assert self.credit.next == max(before, message)

    @invariant()
    def bounded_and_inside(self) -> None:
        if not hasattr(self, "credit"):
            return
        low, high = self.credit.next, self.credit.next + self.credit.window
        assert low <= self.released
        assert all(low <= i < high for i in self.credit.have | self.credit.made)
        assert not any(self.credit.wants(i) for i in (low - 1, high, high + 5))

    @invariant()
    def the_lowest_needed_is_makeable(self) -> None:
        if not hasattr(self, "credit") or self.credit.next != self.released:
            return
        needed = self.released
        while needed in self.have or needed in self.made:
            needed += 1
        assert self.credit.wants(needed) or needed >= self.released + self.credit.window


TestCredit = CreditMachine.TestCase


def test_have_above_the_window_is_forgotten() -> None:
    assert CreditWindow(5, 3, {4, 5, 7, 8, 10**9}).have == {5, 7}


def test_made_above_the_window_is_refused_below_it_ignored() -> None:
    credit = CreditWindow(5, 3)
    credit.mark_made(4)
    assert credit.made == set()
    with pytest.raises(ProtocolMismatch, match="above the window"):
        credit.mark_made(8)


@pytest.mark.parametrize(("start", "window"), [(-1, 1), (2**64, 1), (0, 0), (0, -1), (0, MAX_WINDOW + 1)])
def test_impossible_windows_are_refused(start: int, window: int) -> None:
    with pytest.raises(ProtocolMismatch):
        CreditWindow(start, window)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_impossible_next_is_refused(number: int) -> None:
    with pytest.raises(ProtocolMismatch):
        CreditWindow(0, 1).advance(number)
