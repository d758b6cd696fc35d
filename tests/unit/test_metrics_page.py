"""docs/metrics.md says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from headrace.telemetry import metrics_page
from headrace.telemetry.metrics import CATALOGUE, LABELS

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def test_the_page_is_what_the_catalogue_makes() -> None:
    assert PAGE.read_text() == metrics_page.text(), "run: python -m headrace.telemetry.metrics_page"


def test_every_metric_and_label_is_on_it() -> None:
    text = metrics_page.text()
    assert all(f"| `{name}` |" in text for name in CATALOGUE)
    assert metrics_page.LABEL_MEANING.keys() == LABELS
