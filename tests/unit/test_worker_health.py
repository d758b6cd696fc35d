"""What a worker's probes answer: over HTTP, as a kubelet asks."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from headrace.worker.health import STUCK_S, Health
from headrace.worker.metrics_http import MetricsServer


class World:
    """A clock to turn, and why the worker is to get no work."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.why_not_ready = ""
        self.health = Health(lambda: self.why_not_ready, lambda: self.now_s)
        registry = CollectorRegistry()
        Gauge("is_there", "for a scrape", registry=registry).set(1)
        self.server = MetricsServer("127.0.0.1:0", registry, None, self.health)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.close()


def test_a_worker_that_is_heard_is_alive_and_ready(world: World) -> None:
    assert world.get("/healthz") == (200, "ok\n")
    assert world.get("/readyz") == (200, "ok\n")
    assert "is_there 1.0" in world.get("/metrics")[1]


def test_a_coordinator_that_is_away_is_no_reason_to_end_a_worker(world: World) -> None:
    world.why_not_ready = "no coordinator answers its heartbeats: its log says why"
    assert world.get("/healthz")[0] == 200
    status, text = world.get("/readyz")
    assert status == 503
    assert "no coordinator answers" in text


def test_a_loop_that_stands_still_is(world: World) -> None:
    world.now_s += STUCK_S + 1
    assert world.get("/healthz") == (503, "the event loop has been standing still for 31 s\n")
    assert world.get("/readyz")[0] == 503
    assert world.get("/metrics")[0] == 200


async def test_a_loop_that_turns_is_not_stuck(world: World) -> None:
    world.now_s += STUCK_S + 1
    beat = asyncio.create_task(world.health.beat())
    await asyncio.sleep(0)
    assert world.health.not_alive() == ""
    beat.cancel()


def test_another_path_is_told_what_there_is(world: World) -> None:
    status, text = world.get("/health")
    assert status == 404
    assert "/healthz" in text
