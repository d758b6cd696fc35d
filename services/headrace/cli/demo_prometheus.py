"""`headrace demo --prometheus`: a fleet that goes on, two ranks that train in name, and a Prometheus that scrapes them."""

from __future__ import annotations

import contextlib
import json
import queue
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.core.errors import PeerGone
from headrace.core.job import JobSpec

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.testing.cluster import Cluster
    from headrace.testing.prometheus import Prometheus

TRANSPORTS = ("auto", "grpc")
# Long enough for the status page to show some ranks that wait and some time that they don't.
STEP_S = 0.1
NAMESPACE = "demo"
_POLL_S = 0.5


def run(
    console: Console, dataset: Path, out: Path, *, batch_size: int, workers: int, seconds: float, report: Path | None
) -> None:
    """Run until Ctrl-C, or for `seconds` (0: no end). report: file that gets the addresses as JSON once all is up.

    Raises ConfigInvalid where Prometheus is not installed, PeerGone if a rank ends.
    """
    from headrace.testing.cluster import Cluster
    from headrace.testing.prometheus import Prometheus, program

    program("prometheus")  # said before a fleet is started
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-demo-") as run_dir,
        Cluster(Path(run_dir), workers=workers) as cluster,
        Prometheus(Path(run_dir), targets=targets(cluster), namespace=NAMESPACE, rules=rules()) as prometheus,
        _training(cluster, JobSpec(name="demo", dataset=str(dataset), batch_size=batch_size, seed=1, tail="pad"), out) as said,
    ):
        addresses = _addresses(cluster, prometheus)
        console.print(f"Fleet, two ranks and Prometheus run since {time.monotonic() - begun:.0f} s:")
        for what, address in addresses.items():
            console.print(f"  {what:<14} {address}", soft_wrap=True)
        if report is not None:
            report.write_text(json.dumps(addresses, indent=2) + "\n")
        console.print(f"They go on for {seconds:g} s." if seconds else "End them with Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            _follow(said, time.monotonic() + seconds if seconds else float("inf"), out)
        console.print("Ending them.")


def targets(cluster: Cluster) -> dict[str, list[str]]:
    """What Prometheus scrapes, by the names that the chart's monitors give."""
    return {
        "headrace-coordinator": [member.admin_address for member in cluster.coordinators],
        "headrace-worker": [member.admin_address for member in cluster.workers],
    }


def rules() -> list[Path]:
    """The chart's rules, where this is a clone of the repository; an installed package has none."""
    return sorted((Path(headrace.__file__).parents[2] / "deploy/helm/headrace/files/rules").glob("*.yaml"))


def _addresses(cluster: Cluster, prometheus: Prometheus) -> dict[str, str]:
    expr = "sum by (rank, cause) (rate(headrace_rank_wait_seconds_total[30s]))"
    graph = urllib.parse.urlencode({"g0.expr": expr, "g0.tab": "0", "g0.stacked": "1", "g0.range_input": "5m"})
    return {
        "status page": f"http://{cluster.coordinators[0].admin_address}/",
        "prometheus": f"{prometheus.url}/graph?{graph}",
        "alerts": f"{prometheus.url}/alerts",
        "metrics": f"http://{cluster.coordinators[0].admin_address}/metrics",
        "coordinator": cluster.addresses,
    }


@contextlib.contextmanager
def _training(cluster: Cluster, job: JobSpec, out: Path) -> Iterator[queue.Queue[dict[str, Any]]]:
    from headrace.testing.demo_rank import RankTask
    from headrace.testing.job_run import start_rank

    (out / "ranks").mkdir(parents=True, exist_ok=True)
    said: queue.Queue[dict[str, Any]] = queue.Queue()
    ranks = []
    try:
        for rank, transport in enumerate(TRANSPORTS):
            task = RankTask(
                coordinators=cluster.addresses,
                job=job.to_dict(),
                rank=rank,
                world=len(TRANSPORTS),
                epochs=0,
                transport=transport,  # type: ignore[arg-type]
                out="",
                step_s=STEP_S,
                read_barcodes=False,
            )
            ranks.append(start_rank(task, out / "ranks" / f"rank-{rank}.log", said))
        yield said
    finally:
        for process in ranks:
            process.kill()  # as run_job does: a trainer may end at any time
            process.wait()


def _follow(said: queue.Queue[dict[str, Any]], end_s: float, out: Path) -> None:
    while time.monotonic() < end_s:
        with contextlib.suppress(queue.Empty):
            event = said.get(timeout=_POLL_S)
            if event["event"] == "end":
                log = out / "ranks" / f"rank-{event['rank']}.log"
                last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                raise PeerGone(f"rank {event['rank']} ended with code {event['code']}; its last lines:\n{last}")
