"""Settings of the coordinator that promise something."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.coordinator.settings import CoordinatorSettings
from headrace.core.job import Endpoint
from headrace.core.records import WorkerRecord


def test_lag_s_is_no_less_than_what_workers_and_ranks_tell() -> None:
    assert CoordinatorSettings(lag_s=1).rules.lag_s == 1
    with pytest.raises(ValidationError, match="lag_s"):
        CoordinatorSettings(lag_s=0.9)


@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_a_worker_may_lose_two_heartbeats(late_s: float) -> None:
    settings = CoordinatorSettings()
    record = WorkerRecord(Endpoint("w", "i", "n", "g", ""), "fp", (), 0.0, 1, False, settings.rules.worker_ttl_us)
    assert record.alive(int(1e6 * (3 * settings.heartbeat_s + late_s)))


def test_a_ttl_that_one_lost_heartbeat_would_end_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"2\.5 times heartbeat_s"):
        CoordinatorSettings(heartbeat_s=1.0, worker_ttl_s=2.4)
    assert CoordinatorSettings(heartbeat_s=1.0, worker_ttl_s=2.5).rules.worker_ttl_us == 2_500_000
