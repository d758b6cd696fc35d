"""docs/metrics.md says what the catalogue says."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from headrace.client.transports.protocol import TransportChoice
from headrace.core.starvation import CAUSES
from headrace.telemetry import metrics_page
from headrace.telemetry.metrics import CATALOGUE, LABELS, STAGES

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def test_the_page_is_what_the_catalogue_makes() -> None:
    assert PAGE.read_text() == metrics_page.text(), "run: python -m headrace.telemetry.metrics_page"


def test_every_metric_and_label_is_on_it() -> None:
    text = metrics_page.text()
    assert all(f"| `{name}` |" in text for name in CATALOGUE)
    assert metrics_page.LABEL_MEANING.keys() == LABELS


def test_labels_of_few_values_list_them_all() -> None:
    listed = dict(metrics_page.LABEL_MEANING)
    assert set(listed["transport"].split(", ")) == set(get_args(TransportChoice)) - {"auto"}
    assert set(listed["stage"].split(", ")) == set(STAGES)
    assert all(f"| `{cause}` |" in metrics_page.text().partition("## Causes")[2] for cause in CAUSES)
