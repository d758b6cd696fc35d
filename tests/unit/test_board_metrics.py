"""What a coordinator exports is bounded: by jobs in use, not by all that were ever opened."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headrace.coordinator.admin_views import job_summary, job_view, worker_views
from headrace.coordinator.instruments import BoardCollector
from headrace.core.events import MOVE_REASONS, Progress
from headrace.telemetry.metrics import CATALOGUE
from tests.unit.session_world import S
from tests.unit.test_board import World, idle


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
    await idle(world, 8)  # the first passes after a time without any are blind
    assert world.board.job("job") is not None
    assert not [labels for series in exported(world).values() for labels in series if "job" in labels]
    await world.beat("ab")
    await world.ledger.update("job", waited, rank=0)
    await world.board.refresh("job")  # as its hint has it done
    assert "headrace_rank_wait_seconds_total" in exported(world)


async def test_what_it_exports_is_in_the_catalogue_with_these_labels() -> None:
    world = World()
    await world.form()
    found = exported(world)
    assert found
    for name, series in found.items():
        assert {frozenset(labels) for labels in series} == {frozenset(CATALOGUE[name].labels)}


async def test_moves_of_lanes_are_counted_from_zero_while_their_job_is_used() -> None:
    """Prometheus sees no increase in a counter that is there first as 3: a worker's death was on no panel."""
    world = World()
    await world.form()
    moves = world.ledger._instruments.moves
    registry = CollectorRegistry()
    registry.register(BoardCollector(world.board, moves))

    def counted() -> dict[str, float | None]:
        value = registry.get_sample_value
        return {reason: value("headrace_lane_moves_total", {"job": "job", "reason": reason}) for reason in MOVE_REASONS}

    before = counted()
    assert before.keys() == set(MOVE_REASONS)
    assert before["lost"] == 0
    await world.go(5, "a")
    assert world.owners() == {"a"}
    after = counted()
    assert (after["lost"] or 0) > 0
    assert sum(number or 0 for number in after.values()) == world.moved()
    moves["a job that nobody uses"] = Counter(lost=1)
    assert counted() == after
    assert moves.keys() == {"job"}


async def test_the_stores_clock_is_held_against_ours() -> None:
    world = World()
    assert "headrace_store_clock_skew_seconds" not in exported(world)  # nothing was read yet
    await world.form()
    registry = CollectorRegistry()
    registry.register(BoardCollector(world.board))
    skew = registry.get_sample_value("headrace_store_clock_skew_seconds")
    assert skew is not None
    assert skew < -1e6  # the store of this test lives in 2023


# Of a replica that cannot read the store, these are of its own doing.
OWN = {"headrace_store_failing_seconds"}


@pytest.mark.parametrize("failing_s", [0.5, 9.5, 10.5, 3600.0])
async def test_a_replica_cut_off_from_the_store_counts_nobody_dead_and_is_soon_silent(
    failing_s: float,
) -> None:
    """Its clock runs on beside a snapshot that stands still: all leases look lost, and no worker and no rank alive."""
    world = World()
    await world.form()
    before = values(world)
    assert before["headrace_workers_live"] == 2
    assert before["headrace_lanes_unowned"] == 0
    assert before["headrace_job_ranks_live"] == 1
    assert before["headrace_desired_workers"] > 0
    await cut_off(world)
    world.now_us += int(failing_s * S)
    world.own_us += int(failing_s * S)
    after = values(world)
    assert after.pop("headrace_store_failing_seconds") == failing_s
    if failing_s > 10:
        assert not after
    else:
        assert after.keys() | OWN == before.keys()
        same = after.keys() - {"headrace_store_clock_skew_seconds"}
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
    world.down = False
    await world.board._pass_or_tell()  # the first that can read again: nobody has had the time to say anything
    after = values(world)
    assert after.keys() == before.keys()
    same = after.keys() - {"headrace_store_clock_skew_seconds"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


async def test_a_replica_that_never_read_the_store_exports_for_how_long() -> None:
    world = World()
    await cut_off(world)
    world.own_us += 5 * S
    assert values(world)["headrace_store_failing_seconds"] == 5


async def test_the_views_judge_by_what_was_read_while_the_store_is_away() -> None:
    world = World()
    await world.form()
    board = world.board
    await cut_off(world)
    world.now_us += 3600 * S
    world.down = False  # but no pass has found out: only the list of bad samples is read for the view
    state = board.job("job")
    assert state is not None
    summary, view = job_summary(board, state), await job_view(board, world.ledger, state)
    assert (summary.ranks_live, summary.lanes_unowned) == (1, 0)
    assert summary.verdict == view.verdict
    assert [rank.live for rank in view.ranks] == [True]
    assert [worker.live for worker in worker_views(board)] == [True, True]
    for _ in range(8):  # and who says nothing after it is dead
        world.now_us += S // 2
        await board.refresh()
    state = board.job("job")
    assert state is not None
    summary = job_summary(board, state)
    assert summary.ranks_live == 0
    assert summary.lanes_unowned == summary.lanes
    assert [worker.live for worker in worker_views(board)] == [False, False]


async def cut_off(world: World) -> None:
    """The store goes away, and a pass finds out."""
    world.down = True
    await world.board._pass_or_tell()


def values(world: World) -> dict[str, float]:
    """Sums of all series, by metric."""
    registry = CollectorRegistry()
    registry.register(BoardCollector(world.board))
    found = dict[str, float]()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
