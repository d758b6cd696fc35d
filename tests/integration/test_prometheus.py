"""A real fleet, a real Prometheus and a real Alertmanager: every expression finds figures, and starvation reaches a webhook.

The rules are the chart's own, with windows of seconds in place of minutes. Expressions that find nothing here are listed with
the reason; the list is checked, too.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.demo_prometheus import targets
from headrace.core.errors import WaitTimeout
from headrace.core.job import JobSpec
from headrace.telemetry.panels_gpus import GPUS
from headrace.testing.browser import Browser
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.demo_rank import RankTask
from headrace.testing.job_run import start_rank
from headrace.testing.panel_page import draw, filled
from headrace.testing.processes import is_listening
from headrace.testing.prometheus import Alertmanager, Prometheus, wait_for
from tests.chart.promql import DASHBOARDS, RULES, panels, queries, rules

MISSING = [name for name in ("prometheus", "prometheus-alertmanager") if shutil.which(name) is None]
needs_prometheus = pytest.mark.skipif(
    bool(MISSING), reason=f"{' and '.join(MISSING)} not installed; tools/prometheus.sh installs them where apt may"
)
pytestmark = [needs_prometheus, pytest.mark.timeout(300)]

DEADLINE_S = 90.0
STEP_S = 0.5
OPEN = "this fleet speaks no TLS"
NO_GPU = "no worker has a GPU here"
WELL = "nothing of the kind goes wrong here"

# Panels and rules that find no series here, and why. What is not listed must find some.
NOTHING_HERE = {
    **dict.fromkeys((panel.title for panel in GPUS.panels if panel.nothing), NO_GPU),
    "HeadraceGpuMemoryNearlyFull": NO_GPU,
    "HeadraceJpegDecoderUnused": NO_GPU,
    "Batches that could not be made, by why": WELL,
    "Requests that the store failed, by why": WELL,
    "Calls refused, by why": WELL,
    "Certificates: time left": OPEN,
    "Certificates read again": OPEN,
    "Share of samples replaced, by why": WELL,
    "Bad samples handed over": WELL,
    "HeadraceBadSamples": WELL,
    "HeadraceCallsRefused": WELL,
    "HeadraceCoordinatorAbsent": "a coordinator is there",
    "HeadraceCertificateExpires": OPEN,
}
# Those that find some at times. The first two must while ranks starve.
AT_TIMES = {
    "What to do first": "a rank waits long",
    "Alerts": "an alert fires",
    "Batches made in vain": "a lane moved while a batch was made",
    "Heartbeats not answered, by why": "a worker was stopped in the middle of one",
}


@dataclass(slots=True)
class Webhook:
    """Takes what Alertmanager sends. notes: (status, alert's name, labels), oldest first."""

    notes: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        notes = self.notes

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                notes.extend((alert["status"], alert["labels"]["alertname"], alert["labels"]) for alert in said["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def heard(self, status: str, name: str) -> list[dict[str, str]]:
        return [labels for said, alert, labels in self.notes if (said, alert) == (status, name)]


@dataclass(slots=True)
class Live:
    cluster: Cluster
    prometheus: Prometheus
    webhook: Webhook

    def ratios(self) -> list[float]:
        """Share of time that each rank waits, by the recording rule."""
        found = self.prometheus.query("namespace_job_rank:headrace_rank_wait:ratio5m")
        return [float(one["value"][1]) for one in found]


def hurried(text: str) -> str:
    """Rules with seconds for minutes."""
    return re.sub(r"for: \d+m", "for: 2s", re.sub(r"\[\d+m\]", "[15s]", text))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    directory = tmp_path_factory.mktemp("live")
    job = JobSpec("resnet", str(make_demo_dataset(directory / "set", samples=96, shards=2)), 8, seed=3)
    (directory / "rules.yaml").write_text(hurried(RULES[0].read_text()))
    webhook = Webhook()
    with Cluster(directory / "fleet", workers=2) as cluster, Alertmanager(directory, webhook=webhook.url) as manager:
        said: queue.Queue[dict[str, Any]] = queue.Queue()
        ranks = []
        try:
            for rank, transport in enumerate(("auto", "grpc")):
                task = RankTask(
                    cluster.addresses, job.to_dict(), rank, 2, 0, transport, "", step_s=STEP_S, read_barcodes=False
                )  # fmt: skip
                ranks.append(start_rank(task, directory / f"rank-{rank}.log", said))
            with Prometheus(
                directory, targets=targets(cluster), rules=[directory / "rules.yaml"], alertmanager=manager.address
            ) as prometheus:
                yield Live(cluster, prometheus, webhook)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    webhook.server.shutdown()
    webhook.server.server_close()


def test_starvation_reaches_the_webhook_and_its_end_does(live: Live) -> None:
    name = "HeadraceTrainerStarving"
    fed = lambda: len(live.ratios()) == 2 and max(live.ratios()) < 0.1  # noqa: E731
    wait_for(lambda: fed() and not live.prometheus.alerts(), "a fleet that feeds its ranks, and no alert", DEADLINE_S)
    before = len(live.webhook.heard("firing", name))
    for worker in (0, 1):
        live.cluster.kill_worker(worker, signal.SIGSTOP)
    try:
        wait_for(lambda: len(live.webhook.heard("firing", name)) > before, f"{name} at the webhook", DEADLINE_S)
        wait_for(lambda: bool(live.webhook.heard("firing", "HeadraceLaneWithoutWorker")), "the other alert", DEADLINE_S)
        shown = [expr for title, expr in expressions() if title in ("What to do first", "Alerts")]
        wait_for(
            lambda: all(live.prometheus.query(expr) for expr in shown),
            "what to do, and the alert, on the dashboard",
            DEADLINE_S,
        )
    finally:
        for worker in (0, 1):
            live.cluster.kill_worker(worker, signal.SIGCONT)
    assert live.webhook.heard("firing", name)[-1].items() >= {"job": "resnet", "namespace": "local"}.items()
    wait_for(lambda: bool(live.webhook.heard("resolved", name)), f"the end of {name} at the webhook", DEADLINE_S)
    wait_for(lambda: not live.prometheus.alerts(), "no alert any more", DEADLINE_S)


def expressions() -> Iterator[tuple[str, str]]:
    """(panel or rule, expression). Of an alert without its bound: whether there is something to compare with it."""
    for panel in panels():
        yield from ((panel["title"], filled(target["expr"])) for target in panel["targets"])
    for rule in rules():
        name = rule.get("alert") or rule["record"]
        bare = re.sub(r"> [\d.]+\s*$", "", rule["expr"]).replace("headrace_lanes_unowned) > 0", "headrace_lanes_unowned)")
        yield name, hurried(bare)
        for text in rule.get("annotations", {}).values():
            yield from (
                (name, hurried(asked.replace("%q", '"resnet"').replace('namespace="resnet"', 'namespace="local"')))
                for asked in queries(text)
            )


def test_every_expression_finds_figures_or_is_known_to_find_none(live: Live) -> None:
    empty: dict[str, list[str]] = {}
    live.cluster.restart_worker(0)  # its lanes move, which the panels on moves must show
    moved = f"sum(increase(headrace_lane_moves_total[{DEADLINE_S:.0f}s]))"
    wait_for(
        lambda: any(float(found["value"][1]) > 0 for found in live.prometheus.query(moved)),
        "the moves as an increase",
        DEADLINE_S,
    )

    def looked() -> bool:
        empty.clear()
        for name, expr in expressions():
            if not live.prometheus.query(expr):
                empty.setdefault(name, []).append(expr)
        return empty.keys() - AT_TIMES.keys() == NOTHING_HERE.keys()

    with contextlib.suppress(WaitTimeout):  # the assertion says more
        wait_for(looked, "every expression", DEADLINE_S)
    found_none = {name: exprs for name, exprs in empty.items() if name not in AT_TIMES}
    assert found_none == {name: empty.get(name) for name in NOTHING_HERE}


def test_rules_and_targets_are_well_in_prometheus_eyes(live: Live) -> None:
    groups = live.prometheus.get("rules", {})["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}

    def scraped() -> list[tuple[str, str]]:
        return [(target["health"], target["lastError"]) for target in live.prometheus.get("targets", {})["activeTargets"]]

    with contextlib.suppress(WaitTimeout):  # the last scrape may have met the worker that was restarted above
        wait_for(lambda: scraped() == [("up", "")] * 3, "all targets", DEADLINE_S)
    assert scraped() == [("up", "")] * 3


def test_panels_are_drawn_in_a_browser(live: Live, tmp_path: Path) -> None:
    if reason := Browser.missing():
        pytest.skip(reason)
    board = json.loads(DASHBOARDS[0].read_text())
    pages = draw(live.prometheus, board, tmp_path, 1.0)
    with Browser() as browser:
        for path in reversed(pages):  # the overview last
            page = browser.open(path.as_uri(), width=1524)
            text = page.text()
            page.screenshot(path.with_suffix(".png"))
            assert page.problems == []
            assert page.requests == [path.as_uri()]
            assert path.with_suffix(".png").stat().st_size > 20_000
            page.close()
    assert len(pages) == 1 + sum(panel["type"] == "row" and panel["collapsed"] for panel in board["panels"])
    assert "Who waits most" in text
    assert re.search(r"resnet, rank [01]", text)
    assert "What removes the largest" in text


def test_the_demo_runs_with_prometheus_until_it_is_told_to_end(tmp_path: Path) -> None:
    report, log = tmp_path / "addresses.json", tmp_path / "log"
    command = [
        sys.executable,
        "-m",
        "headrace",
        "demo",
        "--prometheus",
        "--samples",
        "48",
        "--batch-size",
        "8",
        "--seconds",
        "600",
    ]
    with log.open("w") as output:
        demo = subprocess.Popen(
            [*command, "--out", str(tmp_path / "out"), "--report", str(report)],
            stdout=output,
            stderr=output,
            # A shell that runs the tests in the background has all that it starts ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - nothing else runs in the child
        )
    try:
        wait_for(lambda: report.exists() or demo.poll() is not None, "the addresses", DEADLINE_S)
        assert demo.poll() is None, log.read_text()
        addresses = json.loads(report.read_text())
        told = log.read_text().replace("\n", "")
        assert all(address in told for address in addresses.values())
        prometheus = Prometheus(tmp_path, address=addresses["alerts"].removeprefix("http://").removesuffix("/alerts"))
        wait_for(lambda: bool(prometheus.query('headrace_rank_elapsed_seconds_total{namespace="demo"}')), "figures", DEADLINE_S)
        with urllib.request.urlopen(addresses["status page"], timeout=10) as page:
            assert page.status == 200
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, log.read_text()
    finally:
        demo.kill()
        demo.wait()
    assert not is_listening(prometheus.address)
    assert not is_listening(addresses["coordinator"])
