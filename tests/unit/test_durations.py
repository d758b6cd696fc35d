"""Times of a command line."""

from __future__ import annotations

import click
import pytest

from headrace.cli.durations import DURATION


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120ms", 0.12), ("0.12s", 0.12), ("0.12", 0.12), ("90us", 9e-5), ("20s", 20.0), ("0", 0.0), (" 5 ms ", 0.005)],
)
def test_times_with_a_unit_or_below_a_second(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "1", "120", "1.5"])
def test_a_bare_number_of_seconds_and_more_was_mostly_meant_otherwise(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"write {text}ms or {text}s"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize("text", ["", "-5ms", "5 minutes", "nan", "1e3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time"):
        DURATION.convert(text, None, None)
