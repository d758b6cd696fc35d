"""Panels drawn without Grafana: figures in their units, axes that hold what they show, names that cannot become markup."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import panel_draw
from headrace.testing.panel_draw import Series, amount
from headrace.testing.panel_page import filled, page_of
from tests.chart.promql import DASHBOARDS


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.031, "percentunit", "3.1%"), (0.5, "percentunit", "50%"), (0.0021, "s", "2.1 ms"), (90, "s", "1.5 min"),
        (-0.0098, "s", "-9.8 ms"), (864000, "s", "10 days"), (0, "s", "0 s"), (3 * 2**20, "bytes", "3 MiB"),
        (1536, "binBps", "1.5 KiB/s"), (12, "reqps", "12 req/s"), (350, "watt", "350 W"),
        (61, "celsius", "61 °C"), (1500, "suffix: images/s", "1.5 K images/s"),
        (math.nan, "short", "-"),
    ],
)  # fmt: skip
def test_amounts_are_for_people(value: float, unit: str, shown: str) -> None:
    assert amount(value, unit) == shown


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.sampled_from(["short", "bytes", "s"]))
def test_an_axis_holds_its_values_in_few_steps(one: float, other: float, unit: str) -> None:
    low, high = min(one, other), max(one, other)
    least, most, step = panel_draw._axis(low, high, None, unit)
    assert least <= min(low, 0)
    assert most >= high * (1 - 1e-9)
    assert least < most
    assert 1 <= round((most - least) / step) <= 6


def board() -> dict[str, Any]:
    return dict(json.loads(DASHBOARDS[0].read_text()))


def test_names_cannot_become_markup_and_nothing_is_loaded() -> None:
    hostile = "<script>alert(1)</script>\"'&"

    def ask(expr: str, over_time: bool) -> list[dict[str, Any]]:
        labels = dict.fromkeys(
            ("job", "rank", "cause", "instance", "worker", "reason", "verdict", "pool", "transport"), hostile
        )
        return [
            {"metric": labels, "values": [[1.0, "0.2"], [2.0, "0.3"]]}
            if over_time
            else {"metric": labels, "value": [2.0, "0.3"]}
        ]

    panels = [panel for row in board()["panels"] for panel in (row["panels"] if row["type"] == "row" else [row])]
    page = page_of("all", panels, ask, (1.0, 2.0))
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_variables_are_put_in() -> None:
    expr = 'rate(a{namespace=~"$namespace", job=~"$job", rank=~"$rank"}[$__rate_interval])'
    assert filled(expr, "1m") == 'rate(a{namespace=~".*", job=~".*", rank=~".*"}[1m])'
    assert "$" not in filled(json.dumps(board()["panels"])).replace("${datasource}", "")


def test_a_stack_adds_up() -> None:
    a, b = Series("a", ((1.0, 1.0), (2.0, 2.0))), Series("b", ((2.0, 3.0),))
    (_, first), (floor, top) = panel_draw._stacks([a, b])
    assert floor.points == first.points == ((1.0, 1.0), (2.0, 2.0))
    assert top.points == ((1.0, 1.0), (2.0, 5.0))
