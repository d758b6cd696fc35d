"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.intake_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Workers and intakes, closed at the end."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()
