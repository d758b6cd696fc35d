"""docs/errors.md: every class is on it as it is, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from headrace.core import errors
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import BY_CODE, HeadraceError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
ROWS = {cells[1].strip("` "): [cell.strip() for cell in cells[1:-1]] for cells in (
    line.split("|") for line in PAGE.splitlines() if line.startswith("| `")
)}  # fmt: skip
CLASSES = [cls for cls in BY_CODE.values() if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_every_class_is_on_the_page_as_it_is(cls: type[HeadraceError]) -> None:
    _, name, status, retriable, when, what_to_do, tests = ROWS[cls.code]
    assert (name, status, retriable) == (f"`{cls.__name__}`", cls.grpc_status, "yes" if cls.retriable else "no")
    assert len(when) > 20 and len(what_to_do) > 10
    assert "::test_" in tests


def test_nothing_else_is_on_the_page() -> None:
    assert set(ROWS) == {cls.code for cls in CLASSES}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(tests/[a-z_/]+\.py)::(\w+)`", PAGE))
    assert len(named) > 30
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{path} has no {name}"


def test_every_reason_of_a_bad_sample_is_on_the_page() -> None:
    for reason in BAD_REASONS[1:]:
        assert f"`{reason}`" in PAGE
