"""Page and plot of fleet_load.py's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_page(found: dict[str, Any], numbers: Path) -> None:
    """Write the page, and print it."""
    print(json_rows(found))


def json_rows(found: dict[str, Any]) -> str:
    return str(len(found["steps"]))
