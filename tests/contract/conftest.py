"""Fixtures of the suites that run over every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.worker.engines.protocol import Engine
from tests.contract import engine_entries
from tests.contract.engine_entries import Entry


@pytest.fixture(params=engine_entries.ENTRIES, ids=lambda entry: entry.name, scope="module")
def entry(request: pytest.FixtureRequest) -> Entry:
    """Each engine of the registry; one that does not run here is skipped with its reason."""
    if reason := engine_entries.why_not(request.param.name):
        pytest.skip(f"engine {request.param.name} does not run here: {reason}")
    return request.param


@pytest.fixture(scope="module")
def engine(entry: Entry) -> Iterator[Engine]:
    """The engine of `entry`."""
    made = engine_entries.make(entry)
    yield made
    made.close()
