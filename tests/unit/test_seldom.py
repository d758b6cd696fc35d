"""What may happen thousands of times has a line now and then, which says how many it stands for."""

from __future__ import annotations

import pytest

from headrace.telemetry import seldom as seldom_module
from headrace.telemetry.seldom import Seldom


def test_the_first_and_then_one_in_a_while_with_the_number_of_those_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 5.0
    monkeypatch.setattr(seldom_module.time, "monotonic", lambda: now_s)
    seldom = Seldom(30.0)
    assert seldom.due("a") == 0
    assert [seldom.due("a") for _ in range(3)] == [None] * 3
    assert seldom.due("b") == 0, "each kind by itself"
    now_s += 29.9
    assert seldom.due("a") is None
    now_s += 0.2
    assert seldom.due("a") == 4
    assert seldom.due("a") is None
    now_s += 1000
    assert seldom.due("a") == 1


def test_kinds_without_end_take_no_memory_without_end() -> None:
    seldom = Seldom(30.0, most=10)
    for number in range(1000):
        assert seldom.due(number) == 0
        assert len(seldom._seen) <= 10
