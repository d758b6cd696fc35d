"""All fuzz targets by name."""

from __future__ import annotations

import headrace.testing.fuzz.targets_control as control
import headrace.testing.fuzz.targets_data as data
import headrace.testing.fuzz.targets_wire as wire
from headrace.testing.fuzz.runner import Target


def all_targets() -> dict[str, Target]:
    """Made anew, with their seeds: takes about a second."""
    made = [*wire.targets(), *control.targets(), *data.targets()]
    return {target.name: target for target in made}
