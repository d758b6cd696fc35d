"""What the status page says of callers that are turned away, of secrets that are gone, and of too many series."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from headrace.coordinator import refusals
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.refusals import Refusals
from headrace.coordinator.replica_view import _outside
from headrace.telemetry.metrics import MOST_SERIES
from headrace.wire.secret import Secret


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("unauthenticated", "10 calls of trainers or workers were refused in 5 minutes"),
        (refusals.ADMIN, "HEADRACE_ADMIN_TOKEN_FILE"),
        (refusals.TLS, "in 5 minutes (wrong version number)"),
    ],
)
def test_many_of_late_are_told_and_few_or_old_ones_are_not(code: str, words: str) -> None:
    clock = Clock()
    told = Refusals(clock)
    for _ in range(9):
        told.note(code, "wrong version number")
    assert told.troubles() == []
    told.note(code, "wrong version number")
    (sentence,) = told.troubles()
    assert words in sentence
    assert "{" not in sentence
    clock.now_s += refusals.RECENT_S + 1
    assert told.troubles() == []


def test_a_flood_is_held_in_bounds_and_what_concerns_nobody_is_not_told() -> None:
    told = Refusals(Clock())
    for _ in range(5000):
        told.note("rank_claimed")
        told.note(refusals.TLS, "x")
    (sentence,) = told.troubles()
    assert sentence.startswith("1000 connections")


def test_a_token_file_that_is_gone_or_of_no_use_is_told_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-that-is-long")
    instruments = Instruments(CollectorRegistry())
    instruments.secrets = (Secret("fleet_token_file", path=str(path)),)
    assert _outside(instruments) == []
    for spoil in (lambda: path.write_text("short"), path.unlink):
        spoil()
        (sentence,) = _outside(instruments)
        assert "fleet_token_file" in sentence
        assert str(path) in sentence
        assert "the token before stays in use" in sentence
        assert _outside(instruments) == [sentence]  # as long as it lasts
    path.write_text("another-token-that-is-long")
    assert _outside(instruments) == []


def test_a_label_explosion_is_told() -> None:
    instruments = Instruments(CollectorRegistry())
    gauge = Gauge("headrace_lanes", "Lanes.", ["job"], registry=instruments.registry)
    text = instruments.exposition().decode()
    assert instruments.series == sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    assert _outside(instruments) == []
    for number in range(MOST_SERIES + 1 - instruments.series):
        gauge.labels(f"run-{number}")
    instruments.exposition()
    (sentence,) = _outside(instruments)
    assert f"exports {MOST_SERIES + 1} series" in sentence
    assert "give trainings fixed names" in sentence
