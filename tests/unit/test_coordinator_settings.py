"""Settings of the coordinator that promise something."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.coordinator.settings import CoordinatorSettings


def test_lag_s_is_no_less_than_what_workers_and_ranks_tell() -> None:
    assert CoordinatorSettings(lag_s=1).rules.lag_s == 1
    with pytest.raises(ValidationError, match="lag_s"):
        CoordinatorSettings(lag_s=0.9)
