"""What crosses between trainers, workers, coordinators and their store: calls, answers, records, specs, states."""

from __future__ import annotations

from headrace.testing.fuzz.runner import Target


def targets() -> list[Target]:
    """All targets of this file."""
    return []
