"""What a coordinator exports is bounded: by jobs in use, not by all that were ever opened."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.coordinator.instruments import BoardCollector
from headrace.core.events import Progress
from headrace.telemetry.metrics import CATALOGUE
from tests.unit.session_world import S
from tests.unit.test_board import World


def exported(world: World) -> dict[str, list[dict[str, str]]]:
    """Labels of all series, by metric."""
    registry = CollectorRegistry()
    registry.register(BoardCollector(world.board))
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


async def test_jobs_that_nobody_uses_are_no_series_and_come_back_with_a_rank() -> None:
    world = World()
    await world.form()
    waited = Progress(1, 0, "n0", None, 5, 0, 1.0, (("read", 1.0),), 4.0)
    await world.ledger.update("job", waited, rank=0)
    await world.board.refresh()
    of_jobs = {name for name, series in exported(world).items() if any("job" in labels for labels in series)}
    assert of_jobs >= {"headrace_lanes", "headrace_rank_wait_seconds_total", "headrace_job_verdict"}
    world.now_us += 300 * S
    await world.board.refresh()
    assert "headrace_lanes" in exported(world)
    world.now_us += 400 * S
    await world.board.refresh()
    assert world.board.job("job") is not None
    assert not [labels for series in exported(world).values() for labels in series if "job" in labels]
    await world.beat("ab")
    await world.ledger.update("job", waited, rank=0)
    await world.board.refresh()
    assert "headrace_rank_wait_seconds_total" in exported(world)


async def test_what_it_exports_is_in_the_catalogue_with_these_labels() -> None:
    world = World()
    await world.form()
    found = exported(world)
    assert found
    for name, series in found.items():
        assert {frozenset(labels) for labels in series} == {frozenset(CATALOGUE[name].labels)}


async def test_the_stores_clock_is_held_against_ours() -> None:
    world = World()
    assert "headrace_store_clock_skew_seconds" not in exported(world)  # nothing was read yet
    await world.form()
    registry = CollectorRegistry()
    registry.register(BoardCollector(world.board))
    skew = registry.get_sample_value("headrace_store_clock_skew_seconds")
    assert skew is not None
    assert skew < -1e6  # the store of this test lives in 2023
