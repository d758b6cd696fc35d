"""`headrace status` as a person meets it, over a real admin API."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace.cli import status
from headrace.cli.main import cli
from headrace.cli.status_view import BAR_CELLS, BARS, bar, worst_first
from headrace.core.errors import CoordinatorUnavailable
from headrace.core.events import BadSample
from headrace.core.starvation import CAUSES
from headrace.core.verdict import VERDICTS
from tests.unit.session_world import World, in_all_states
from tests.unit.test_cli_quarantine import ESCAPE, Away, Coordinator


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator()
    yield running
    running.close()


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["status", *map(str, arguments)])


def training(coordinator: Coordinator) -> World:
    """A job of two ranks of which one starves."""
    world = World()
    world.now_us = coordinator.board.now_us()
    world.open()
    world.add("a", unable=(ESCAPE,))
    world.form()
    world.tick()
    waits = (("decode", 9.0), ("read", 1.0)), (("copy", 0.1),)
    ranks = {
        rank: replace(record, elapsed_s=40.0, wait_s=sum(seconds for _, seconds in waits[rank]), waits=waits[rank], consumed=7)
        for rank, record in world.state.ranks.items()
    }
    world.state = replace(world.state, ranks=ranks)
    coordinator.run(show(coordinator, world))
    return world


async def show(coordinator: Coordinator, world: World) -> None:
    board = coordinator.board
    board._jobs[world.state.name] = world.state
    board._fleet = replace(board._fleet, workers=world.state.workers)
    board.loaded = True
    for rank, record in world.state.ranks.items():
        begun = replace(record, elapsed_s=0.001, wait_s=0.0, waits=(), consumed=1)
        board.recent.note(world.state.name, rank, begun)
        board.recent.note(world.state.name, rank, record)
    await coordinator.ledger.quarantine.record("job", [BadSample(0, 4, ESCAPE, "corrupt")])
    coordinator.ledger.events.add("lane_trouble", ESCAPE, job="job", level="warning")
    coordinator.ledger.events.add("lane_trouble", "of another job", job="other")


def test_a_worker_that_drained_has_left_and_only_one_that_did_not_is_silent(coordinator: Coordinator) -> None:
    board = coordinator.board
    board._fleet, board.loaded = replace(board._fleet, workers=in_all_states(board.now_us())), True
    lines = run("--admin", coordinator.admin).output.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if "samples/s" in line) + 1 :]
    shown = {line.split()[0]: line[len(line.split()[0]) :].split(" n0")[0].strip() for line in table if " n0 " in line}
    assert shown == {"serves": "serves", "drains": "drains", "has-left": "has left", "silent": "silent"}


def test_all_jobs_and_one_job_are_shown_in_plain_words(coordinator: Coordinator) -> None:
    training(coordinator)
    result = run("--admin", coordinator.admin)
    assert result.exit_code == 0, result.output
    row = next(line for line in result.output.splitlines() if line.startswith("job  ") and "input-bound" in line)
    assert row.split()[:7] == ["job", "input-bound", "0", "25%", "decode", "2/2", "12/12"]
    assert "add workers or threads" in row
    assert "\x1b" not in result.output and r"cannot open \x1b[31mred" in result.output
    one = run("job", "--admin", coordinator.admin, "--once").output
    assert "rank 0 starves" in one.lower() and "What to do: Add workers or threads" in one
    lines = one.splitlines()
    heads = next(i for i, line in enumerate(lines) if line.startswith("rank "))
    assert lines[heads + 1].split()[0] == "0" and lines[heads + 2].split()[0] == "1", "worst first"
    assert "decode 23%, read 2.5%" in lines[heads + 1] and "DDDDDD" in lines[heads + 1]
    assert "headrace quarantine job" in one and "a has 12" in one
    assert r"\x1b[31mred" in one and "of another job" not in one


def test_json_is_what_the_api_says(coordinator: Coordinator) -> None:
    training(coordinator)
    found = json.loads(run("--admin", coordinator.admin, "--json").output)
    assert set(found) == {"replica", "jobs", "workers", "scaling"}
    assert [job["job"] for job in found["jobs"]] == ["job"]
    one = json.loads(run("job", "--admin", coordinator.admin, "--json").output)
    shares = one["job"]["ranks"][0]["recent_share_by_cause"]
    assert shares == pytest.approx({"decode": 0.225, "read": 0.025}, rel=1e-3)
    assert sum(shares.values()) == pytest.approx(one["job"]["ranks"][0]["recent_starvation_ratio"])


def test_what_is_wrong_with_the_replica_comes_first(coordinator: Coordinator) -> None:
    training(coordinator)
    coordinator.board.store_error = "no store at 127.0.0.1:1"
    first = run("--admin", coordinator.admin).output.splitlines()[0]
    assert first.startswith("! the store has failed for 0 s: no store at 127.0.0.1:1")


@pytest.mark.parametrize("loaded", [True, False])
def test_what_was_never_read_is_not_said_to_be_shown(coordinator: Coordinator, loaded: bool) -> None:
    coordinator.board.store_error, coordinator.board.loaded = "no store at 127.0.0.1:1", loaded
    (trouble,) = json.loads(run("--admin", coordinator.admin, "--json").output)["replica"]["troubles"]
    assert ("What is shown was read before" in trouble) is loaded
    assert ("Nothing was read from it yet" in trouble) is not loaded


def test_an_empty_fleet_says_what_to_do_next(coordinator: Coordinator) -> None:
    output = run("--admin", coordinator.admin).output
    assert "No job is open" in output and "No worker is known: start some" in output


def test_a_coordinator_that_has_not_read_the_store_says_that_it_knows_nothing() -> None:
    """Rather than that there is nothing."""
    coordinator = Coordinator(Away())
    try:
        lines = run("--admin", coordinator.admin).output.splitlines()
        whole = "\n".join(lines)
        assert lines[0].startswith(
            "! nothing is known yet of jobs and workers: this coordinator has not read the store since it"
        )
        assert "the store at 127.0.0.1:1 cannot be used: refused" in whole and "does not answer" in lines[-1]
        assert "Which jobs are open is not known yet." in lines and "Which workers there are is not known yet." in lines
        for wrong in ("No job is open", "No worker is known", "was read before"):
            assert wrong not in whole
        for command in (["status", "train"], ["quarantine", "train"]):
            result = CliRunner().invoke(cli, [*command, "--admin", coordinator.admin])
            assert result.exit_code == 1 and "whether job train is open is not known yet: " in result.output
            assert "store_unavailable" in result.output
        coordinator.board.store_error = ""  # it began a moment ago
        output = run("--admin", coordinator.admin).output
        assert "Which jobs are open is not known yet." in output and "store not read yet" in output
    finally:
        coordinator.close()


@pytest.mark.parametrize("how", [[], ["--json"], ["--once"]], ids=str)
def test_what_cannot_be_asked_is_told_in_a_line(coordinator: Coordinator, how: list[str]) -> None:
    for arguments, said in (
        (["other", "--admin", coordinator.admin], "no job other is open"),
        (["--admin", "127.0.0.1:1"], "no admin API answers at 127.0.0.1:1"),
    ):
        result = run(*arguments, *how)
        assert result.exit_code == 1 and said in result.output and len(result.output.splitlines()) == 1


def test_live_goes_on_over_a_coordinator_that_is_away(coordinator: Coordinator) -> None:
    training(coordinator)
    looks = 0

    def look() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise CoordinatorUnavailable("nobody there")
        if looks == 4:
            raise KeyboardInterrupt
        return status.ask(coordinator.admin, None)

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140, height=60)
    with pytest.raises(KeyboardInterrupt):
        status._live(console, look, 0.01)
    frames = screen.getvalue()
    assert "nobody there" in frames and frames.rindex("input-bound") > frames.rindex("nobody there")


@given(st.dictionaries(st.sampled_from(CAUSES), st.floats(0, 1)))
def test_a_bar_is_as_long_as_its_rank_waited(parts: dict[str, float]) -> None:
    whole = max(1.0, sum(parts.values()))
    shares = {cause: part / whole for cause, part in parts.items()}
    text = bar(shares).plain
    assert len(text) == BAR_CELLS
    assert abs(BAR_CELLS - text.count("·") - BAR_CELLS * sum(shares.values())) <= 0.51
    for cause, share in shares.items():
        assert abs(text.count(BARS[cause][0]) - BAR_CELLS * share) <= 1.01


@given(st.lists(st.tuples(st.sampled_from(VERDICTS), st.floats(0, 1), st.integers(0, 3)), max_size=20))
def test_jobs_that_starve_come_before_those_that_do_not_and_those_that_nobody_trains_last(
    drawn: list[tuple[str, float, int]],
) -> None:
    jobs = [
        {"job": f"j{i}", "verdict": verdict, "starvation_ratio": ratio, "ranks_live": live}
        for i, (verdict, ratio, live) in enumerate(drawn)
    ]
    places = [
        (job["ranks_live"] == 0, {"input-bound": 0, "balanced": 1, "compute-bound": 2, "unknown": 3}[str(job["verdict"])])
        for job in worst_first(jobs)
    ]
    assert places == sorted(places)
