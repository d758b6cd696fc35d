"""A whole fleet of real processes: it starts, survives what is done to it, and leaves nothing behind."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry.metrics import CATALOGUE
from headrace.testing.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A store, two coordinators, two workers."""
    with Cluster(tmp_path, coordinators=2, workers=2) as running:
        yield running


def _scrape(address: str) -> dict[str, str]:
    """Names and types of our metrics at an address."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {family.name: family.type for family in families if family.name.startswith("headrace_")}


def test_everything_can_be_killed_and_comes_back(cluster: Cluster) -> None:
    pids = {member.running.pid for member in cluster.members()}
    cluster.kill_worker(0)
    assert not cluster.workers[0].running.alive
    cluster.workers[0].start()
    cluster.workers[0].wait_ready()
    cluster.restart_coordinator(1)
    cluster.restart_store()
    assert cluster.add_worker() == "worker-2"
    with cluster.paused_worker(1):
        hanging = cluster.workers[1].running
        hanging.wait_until(lambda: psutil.Process(hanging.pid).status() == psutil.STATUS_STOPPED, "stopped", 30)
    assert all(member.running.alive for member in cluster.members())
    assert (
        len({member.running.pid for member in cluster.members()} & pids) == 2
    )  # one coordinator and one worker were left alone
    assert set(cluster.logs()) == {"store", "coordinator-0", "coordinator-1", "worker-0", "worker-1", "worker-2"}


def test_services_end_orderly_when_asked(cluster: Cluster) -> None:
    for member in [*cluster.workers, *cluster.coordinators]:
        member.kill(signal.SIGTERM)
        assert member.running.wait(30) == 0, member.running.log_tail()
        assert "Traceback" not in member.log.read_text()


def test_every_metric_served_is_in_the_catalogue(cluster: Cluster) -> None:
    for member in [*cluster.coordinators, *cluster.workers]:
        served = _scrape(member.admin_address)
        assert served, f"{member.name} serves no metric"
        for name, kind in served.items():
            known = CATALOGUE.get(f"{name}_total" if kind == "counter" else name)
            assert known is not None, f"{member.name} serves {name}, which the catalogue lacks"
            assert known.type == kind
            assert known.by == member.name.partition("-")[0]


def test_nothing_is_left_when_a_start_fails(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    broken = Cluster(tmp_path, coordinators=1, workers=1, worker_args=["--no-such-flag"])
    with pytest.raises(Exception, match=r"worker-0 ended with code \d+ before it listened"):
        broken.start()
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before
