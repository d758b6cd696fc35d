"""The status page in a real Chromium: over a real fleet, on a phone, with a token, with hostile names, with the store away."""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.coordinator import status_page
from headrace.coordinator.board import Board
from headrace.core.errors import PeerGone
from headrace.core.events import BadSample
from headrace.core.job import JobSpec
from headrace.core.records import RankRecord
from headrace.core.starvation import CAUSES
from headrace.testing.browser import Browser, Page
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.job_run import RankTask, start_rank
from headrace.wire.secret import Secret
from tests.unit.session_world import SPEC, World, in_all_states
from tests.unit.test_cli_quarantine import Away, Coordinator

DEADLINE_S = 90.0
PHONE = 390
FILES = Path(status_page.__file__).parent / "page"
SHOWN = "document.documentElement?.dataset.shown !== undefined"
HOSTILE = "<script>window.ran=1<img src=x onerror='window.ran=1'>"

needs_browser = pytest.mark.skipif(bool(Browser.missing()), reason=Browser.missing() or "there is one")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as running:
        yield running


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator()
    yield running
    running.close()


# --- a real fleet ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A starving job of two ranks and a worker that died."""
    tmp = tmp_path_factory.mktemp("status")
    dataset = make_demo_dataset(tmp / "data", samples=200, shards=2)
    job = JobSpec("train", str(dataset), 16, seed=1)
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    with Cluster(tmp / "fleet", workers=2) as cluster:
        tasks = [
            RankTask(cluster.addresses, job.to_dict(), rank, 2, 0, choice, "", step_s=0.02, read_barcodes=False)
            for rank, choice in enumerate(("auto", "grpc"))
        ]
        ranks = [start_rank(task, tmp / f"rank-{task.rank}.log", heard) for task in tasks]
        end = time.monotonic() + DEADLINE_S
        while heard.get(timeout=max(0.0, end - time.monotonic())).get("step", 0) < 3:
            pass
        cluster.kill_worker(0)
        yield cluster
        for rank in ranks:
            rank.kill()
            rank.wait()


def open_page(browser: Browser, address: str, **how: Any) -> Page:
    page = browser.open(f"http://{address}/", **how)
    page.wait(SHOWN, "the page shows what the API says")
    return page


def answers(page: Page) -> tuple[dict[str, Any], dict[str, Any], str, dict[str, float]]:
    """The replica's and the job's answer of the poll that is shown now; the page's text; the first bar's parts in percent.

    Of the job what its card's head shows is from the list of jobs, which is asked for a moment before its details.
    """
    parts = "[...document.querySelector('.rank .bar').children].map((part) => [part.className, part.style.width])"
    shown, text, widths = page.value(f"[document.documentElement.dataset.shown, document.body.innerText, {parts}]")
    paths = ["/".join(url.split("/")[3:]) for url in page.requests]
    for at in reversed([i for i, path in enumerate(paths) if path == "api/replica"]):
        try:
            replica = json.loads(page.body(at))
        except PeerGone:
            continue  # of a poll that is still under way
        if replica["now_s"] == float(shown):
            job = next(i for i in range(at, len(paths)) if paths[i] == "api/jobs/train")
            (listed,) = json.loads(page.body(paths.index("api/jobs", at)))
            details = {**json.loads(page.body(job)), "verdict": listed["verdict"], "why": listed["why"]}
            return replica, details, text, {cause: float(width.rstrip("%")) for cause, width in widths}
    raise AssertionError("what is shown is no answer of the API")


@needs_browser
def test_the_page_says_what_the_api_says_of_a_real_fleet(browser: Browser, fleet: Cluster) -> None:
    page = open_page(browser, fleet.coordinators[0].admin_address)
    page.wait("document.body.innerText.includes('worker silent')", "the dead worker is told")
    page.wait("document.querySelector('.job .badge').innerText !== 'unknown'", "there is a verdict")
    page.wait("document.querySelectorAll('.rank').length === 2", "both ranks are shown")
    replica, job, text, drawn = answers(page)
    assert job["verdict"] in text and job["job"] in text
    assert job["why"][1:] in text
    for rank in job["ranks"]:
        whole = f"{rank['consumed']} batches taken, {rank['committed']} committed"
        assert f"{whole} · waited {rank['wait_s']:.1f} of {rank['elapsed_s']:.1f} s in all · by {rank['transport']}" in text
    worst = max(job["ranks"], key=lambda rank: rank["recent_starvation_ratio"])
    assert drawn == pytest.approx({cause: 100 * share for cause, share in worst["recent_share_by_cause"].items()}, abs=0.01)
    shares = sum(worst["recent_share_by_cause"].values())
    assert shares == pytest.approx(worst["recent_starvation_ratio"], abs=1e-6)
    assert all(event["text"] in text for event in replica["events"])
    assert page.problems == []
    origin = f"http://{fleet.coordinators[0].admin_address}/"
    assert [url for url in page.requests if not url.startswith(origin)] == []
    page.close()


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_on_a_phone(browser: Browser, fleet: Cluster, dark: bool, tmp_path: Path) -> None:
    page = open_page(browser, fleet.coordinators[0].admin_address, width=PHONE, height=844, dark=dark)
    page.wait("document.querySelectorAll('.rank').length === 2", "both ranks are shown")
    assert_fits(page)
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 300) is dark
    page.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000
    assert page.problems == []
    page.close()


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window, so that nobody scrolls sideways to read."""
    assert page.value("document.documentElement.scrollWidth") <= PHONE
    wide = f"[...document.body.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > {PHONE + 1})"
    assert page.value(f"{wide}.map((e) => e.outerHTML)") == []


@needs_browser
def test_a_card_that_was_closed_stays_closed(browser: Browser, fleet: Cluster) -> None:
    page = open_page(browser, fleet.coordinators[0].admin_address)
    page.wait("document.querySelectorAll('.rank').length === 2", "both ranks are shown")
    page.value("document.querySelector('.job summary').click()")
    before = page.value("document.documentElement.dataset.shown")
    page.wait(f"document.documentElement.dataset.shown !== '{before}'", "it has looked again")
    page.wait("document.querySelectorAll('.rank').length === 0", "the card is closed")
    assert page.value("document.querySelector('.job').open") is False
    page.close()


@needs_browser
def test_marked_text_stays_and_the_rest_goes_on(browser: Browser, fleet: Cluster) -> None:
    """Text that does not change stays marked for ever, text that does for some seconds; focus stays where it was."""
    page = open_page(browser, fleet.coordinators[0].admin_address)
    page.wait("document.querySelectorAll('.rank').length === 2", "both ranks are shown")
    more = "document.querySelector('.rank .more').innerText"
    page.value("document.querySelector('.job summary').focus()")
    page.value("getSelection().selectAllChildren(document.querySelector('.job .name'))")
    before = page.value(more)
    page.wait(f"{more} !== {json.dumps(before)}", "the rank's figures go on")
    assert page.value("getSelection().toString()") == "train"
    assert page.value("document.activeElement === document.querySelector('.job summary')") is True
    page.value("getSelection().selectAllChildren(document.querySelector('.rank .more'))")
    marked = page.value("getSelection().toString()")
    replica = page.value("document.querySelector('#replica').innerText")
    page.wait(f"document.querySelector('#replica').innerText !== {json.dumps(replica)}", "the rest goes on")
    assert page.value("getSelection().toString()") == marked
    page.wait(f"{more} !== {json.dumps(marked)}", "what is left marked goes on in the end")
    page.close()


@needs_browser
def test_cards_are_open_by_their_place_unless_somebody_said_so(browser: Browser, coordinator: Coordinator) -> None:
    """The page's own opening of a card must not pass for a person's: those that are no longer among the first close again."""

    def add(*names: str) -> None:
        for name in names:
            world = World(replace(SPEC, name=name))
            world.open(1)
            world.add("a")
            world.form(1)
            set_board(coordinator.board, world)

    def shown(names: str, what: str) -> None:
        found = "[...document.querySelectorAll('.job')].map((card) => card.dataset.key + (card.open ? '+' : '-')).join(' ')"
        page.wait(f"{found} === {json.dumps(names)}", what)

    add("b", "c", "d", "e")
    page = open_page(browser, coordinator.admin)
    shown("b+ c+ d+ e-", "the first three are open")
    add("a")
    shown("a+ b+ c+ d- e-", "one that is now among the first is, and the fourth no more")
    page.value("document.querySelector('.job[data-key=e] summary').click()")
    page.value("document.querySelector('.job[data-key=a] summary').click()")
    page.wait("document.querySelector('.job[data-key=e] .rank') !== null", "what was opened has its ranks")
    add("0")
    shown("0+ a- b+ c- d- e+", "what a person said stays")
    page.close()


@needs_browser
def test_a_store_that_is_away_is_told_and_what_was_read_stays(browser: Browser, fleet: Cluster) -> None:
    page = open_page(browser, fleet.coordinators[0].admin_address)
    fleet.kill_store()
    try:
        page.wait("document.querySelector('.trouble') !== null", "the trouble is told")
        text = page.text()
        assert "the store has failed for" in text and "store does not answer" in text
        assert "train" in text and "worker-1" in text
        fleet.restart_store()
        page.wait("document.querySelector('.trouble') === null", "it is over")
        page.wait("document.body.innerText.includes('store found')", "and remembered")
    finally:
        page.close()


@needs_browser
def test_a_coordinator_that_has_not_read_the_store_says_that_it_knows_nothing(browser: Browser) -> None:
    unread = Coordinator(Away())
    try:
        page = open_page(browser, unread.admin)
        page.wait("document.querySelector('.trouble') !== null", "the trouble is told")
        text = page.text()
        assert "nothing is known yet of jobs and workers" in text and "127.0.0.1:1 cannot be used" in text
        assert "Which jobs are open is not known yet." in text and "Which workers there are is not known yet." in text
        for wrong in ("No job is open", "No worker is known", "was read before"):
            assert wrong not in text
        page.close()
    finally:
        unread.close()


@needs_browser
def test_a_coordinator_that_went_is_told(browser: Browser, coordinator: Coordinator) -> None:
    page = open_page(browser, coordinator.admin)
    coordinator.run(coordinator.server.close())
    page.wait("document.body.innerText.includes('has not answered for')", "the silence is told")
    assert "what is shown is of then" in page.text()
    page.close()


# --- who may look, and what they get to see ----------------------------------------------------------------------------


@needs_browser
def test_the_token_is_asked_for_and_stays_in_the_tab(browser: Browser) -> None:
    class Guarded(Coordinator):
        token = Secret("admin_token", text="0123456789-admin-token")

    guarded = Guarded()
    try:
        page = browser.open(f"http://{guarded.admin}/")
        page.wait("!document.querySelector('#token').hidden", "the form is there")
        assert "admin token" in page.text() and "Jobs" not in page.text()
        give(page, "no token\u20ac")
        page.wait("document.body.innerText.includes('This is no token')", "what can be none is told")
        give(page, "wrong")
        page.wait("document.body.innerText.includes('does not know this token')", "a wrong one is told")
        give(page, "0123456789-admin-token")
        page.wait(SHOWN, "the status is shown")
        assert page.value("document.querySelector('#token').hidden") is True
        page.call("Page.reload")
        page.wait(SHOWN, "the status is shown again, without a question")
        assert not any("0123456789" in url for url in page.requests)
        assert page.value("localStorage.length + document.cookie.length") == 0
        page.value("document.querySelector('#forget').click()")
        page.wait("!document.querySelector('#token').hidden", "the form is there again")
        page.close()
    finally:
        guarded.close()


def give(page: Page, token: str) -> None:
    page.value(f"document.querySelector('#token-text').value = {json.dumps(token)}")
    page.value("document.querySelector('#token button').click()")


@needs_browser
def test_names_are_shown_and_never_run(browser: Browser, coordinator: Coordinator) -> None:
    """No such job or worker name gets through the coordinator's checks; keys of samples and messages may be anything."""
    world = World(replace(SPEC, dataset=f"/data/{HOSTILE}"))
    world.open(1)
    world.add("a", unable=(HOSTILE,))
    world.form(1)
    world.state = replace(world.state, name=HOSTILE)
    set_board(coordinator.board, world)
    coordinator.run(coordinator.ledger.quarantine.record(HOSTILE, [BadSample(0, 4, HOSTILE, "corrupt")]))
    coordinator.run(told(coordinator, HOSTILE))
    page = open_page(browser, coordinator.admin)
    page.wait("document.querySelectorAll('.rank').length === 1", "the job is shown")
    assert page.text().count(HOSTILE) >= 5, page.text()
    assert page.value("window.ran") is None
    assert page.value("document.querySelectorAll('img, script:not([src])').length") == 0
    assert page.problems == []
    # Should a name get in as HTML all the same, the policy still lets no script run.
    page.value("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.ran=1'>`)")
    page.wait("document.querySelector('img').complete", "the picture was looked for")
    assert page.value("window.ran") is None
    page.close()


@needs_browser
def test_a_worker_that_drained_has_left_and_only_one_that_did_not_is_silent(browser: Browser, coordinator: Coordinator) -> None:
    board = coordinator.board
    board._fleet, board.loaded = replace(board._fleet, workers=in_all_states(board.now_us())), True
    page = open_page(browser, coordinator.admin)
    page.wait("document.body.innerText.includes('has-left')", "the workers are shown")
    rows = page.value(
        "Object.fromEntries([...document.querySelectorAll('#workers tbody tr')].map((row) => "
        "[row.cells[0].innerText, row.cells[1].innerText + (row.cells[1].querySelector('.warning') ? '!' : '')]))"
    )
    assert rows == {"serves": "serves", "drains": "drains", "has-left": "has left", "silent": "silent!"}
    page.close()


async def told(coordinator: Coordinator, text: str) -> None:
    coordinator.ledger.events.add("lane_trouble", text, job="job", level="warning")
    coordinator.board.store_error = ""


def set_board(board: Board, world: World) -> None:
    board._jobs[world.state.name] = world.state
    board._fleet = replace(board._fleet, workers=world.state.workers)
    board.loaded = True


@needs_browser
def test_a_thousand_ranks_and_lanes_are_still_a_page(browser: Browser, coordinator: Coordinator) -> None:
    world = World(replace(SPEC, samples=1_000_000, batch_size=16))
    world.open(1000)
    world.add("a")
    session = world.form(1000)
    ranks = {
        rank: replace(record, elapsed_s=100.0, wait_s=rank / 20, waits=(("decode", rank / 20),))
        for rank, record in world.state.ranks.items()
    }
    assert isinstance(ranks[0], RankRecord) and session.lanes > 1000
    world.state = replace(world.state, ranks=ranks)
    world.tick()
    set_board(coordinator.board, world)
    page = open_page(browser, coordinator.admin, width=PHONE, height=844)
    page.wait("document.querySelectorAll('.rank').length > 0", "the job is shown")
    assert page.value("document.querySelectorAll('.rank').length") < 30
    assert page.value("document.querySelector('.rank').dataset.rank") == "999", "worst first"
    assert page.value("document.querySelectorAll('*').length") < 1500
    assert_fits(page)
    page.close()


# --- the files -------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere_and_makes_no_html_of_text() -> None:
    """What a browser would only show where it comes by: also without one."""
    for path in FILES.iterdir():
        text = path.read_text()
        assert not re.findall(r"(?:src|href)=\"(?:https?:)?//|@import|url\(|https?://(?!www\.w3\.org)", text), path.name
        assert not re.findall(r"(?:src|href|from|ask\() ?=?\"/", text), "relative, or it fails behind a path prefix"
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|\.on[a-z]+ *=", text)
        assert not re.findall(r"<[^>]* (?:style|on\w+)=|<style|<script(?! type=\"module\" src)", text), path.name


def test_the_page_knows_every_cause() -> None:
    named = re.findall(
        r"^  (\w+): \"", (FILES / "parts.js").read_text().partition("CAUSES = {")[2].partition("}")[0], re.MULTILINE
    )
    assert tuple(named) == CAUSES
    assert set(CAUSES) <= set(re.findall(r"\.([a-z_]+) \{ background", (FILES / "status.css").read_text()))


def test_every_file_is_served_with_the_policy(coordinator: Coordinator) -> None:
    import urllib.request

    for path in status_page.PATHS:
        with urllib.request.urlopen(f"http://{coordinator.admin}{path}", timeout=20) as answer:
            assert answer.headers["content-security-policy"] == status_page.POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert len(answer.read()) > 100
    assert {name.name for name in FILES.iterdir()} == {name for name, _ in status_page._FILES.values()}
