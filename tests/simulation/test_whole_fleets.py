"""Whole fleets under simulated time, network, store and faults: fresh seeds each time.

`make simulate SEED=` plays one again.
"""

from __future__ import annotations

import pytest

from headrace.testing.simulation.run import Result, run
from tests.conftest import SEED

SHARES = 10
SEEDS_A_SHARE = 20


def told(result: Result) -> str:
    """For a person: what broke, what went before, how to see it again."""
    last = "\n".join(result.last)
    return f"\n{last}\n{result.text}\nplay it again: make simulate SEED={result.seed}"


@pytest.mark.timeout(600)  # ten times what an idle machine takes
@pytest.mark.parametrize("share", range(SHARES))
def test_no_promise_breaks(share: int) -> None:
    """Some hundred lives of a fleet, none of which any other run of the tests has seen."""
    first = SEED * 1000 + share * SEEDS_A_SHARE
    kinds: set[str] = set()
    for seed in range(first, first + SEEDS_A_SHARE):
        result = run(seed)
        assert not result.invariant, told(result)
        kinds |= result.faults.keys()
    assert len(kinds) > 10, f"hardly any faults were injected: {sorted(kinds)}"
