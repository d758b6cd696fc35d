"""What does a scrape of a large fleet cost?

    python loadtest/scrape.py

Question: does a scrape of 64 ranks and 64 workers cost less CPU than 2% of an interval of 15 s (0.3 s), all processes together?
One job of 64 ranks with 64 workers is put into a coordinator's own ledger and board by the events that ranks and workers send;
every rank has waited for every cause. A worker's registry is filled by its own counters. Both are served by the product's own
HTTP servers and scraped by another process as Prometheus asks: OpenMetrics wanted, gzip accepted. CPU is that of the serving
process alone, by its own clock, over many scrapes. The fleet's scrape is two coordinators and 64 workers.

Caveat: no TLS, and scrapers that keep their connection, as Prometheus does. What Prometheus itself spends is not counted.
Between scrapes nothing else runs: the coordinator's passes every second are not part of this.
"""

from __future__ import annotations

import asyncio
import gzip
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANKS = WORKERS = 64
COORDINATORS = 2
SCRAPES = 100
INTERVAL_S = 15.0
BOUND = 0.02
REPORT = Path(__file__).parent / "results" / "scrape.md"

_SCRAPER = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
for _ in range(int(sys.argv[2])):
    connection.request("GET", "/metrics", headers={"Accept": accept, "Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, answer.status
    if answer.will_close:
        connection.close()
sys.stdout.buffer.write(body)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one scrape: bytes as they travel, series, CPU seconds of the process that serves it."""

    sent_bytes: int
    series: int
    cpu_s: float


async def filled_board(ranks: int = RANKS, workers: int = WORKERS) -> tuple[Any, Any, Any]:
    """(board, ledger, instruments) of a coordinator that serves one job of so many ranks and workers."""
    from prometheus_client import CollectorRegistry

    from headrace.coordinator.board import Board
    from headrace.coordinator.instruments import BoardCollector, Instruments
    from headrace.coordinator.ledger import Ledger
    from headrace.coordinator.store_memory import MemoryStore
    from headrace.core.events import Join, Open, Progress, Rules
    from headrace.core.job import Endpoint, JobSpec
    from headrace.core.records import WorkerRecord
    from headrace.core.starvation import CAUSES

    instruments = Instruments(CollectorRegistry())
    ledger = Ledger(MemoryStore(), Rules(rank_ttl_us=10**9, worker_ttl_us=10**9), instruments)
    board = Board(ledger, 1.0)
    instruments.registry.register(BoardCollector(board, instruments.moves))
    spec = JobSpec("imagenet-resnet50", "/data", 256, manifest_hash="aa", samples=1_281_167)
    await ledger.update(spec.name, Open(spec, 1))
    for number in range(workers):
        where = Endpoint(f"worker-{number}", f"i{number}", f"node-{number}", f"node-{number}:7310", "")
        record = WorkerRecord(where, "fp", spec.pipeline.op_names, 2000.0 + number, 8, False, 0, pool="cpu")
        await ledger.fleet.heartbeat(record, 10**9)
    for rank in range(ranks):
        await ledger.update(spec.name, Join(0, rank, ranks, f"n{rank}", None, "", 0, f"node-{rank}", 0))
    await board.refresh()
    for second in range(1, 31):
        for rank in range(ranks):
            waits = tuple((cause, 0.01 * second * (1 + number)) for number, cause in enumerate(CAUSES))
            total = sum(seconds for _, seconds in waits)
            report = Progress(1, rank, f"n{rank}", None, 3 * second, 2 * second, total, waits, 1.0 * second, "shm")
            await ledger.update(spec.name, report, rank=rank)
        await board.refresh()
    return board, ledger, instruments


def filled_worker(ranks: int = RANKS) -> Any:
    """The registry of a worker that has served so many ranks."""
    from prometheus_client import CollectorRegistry

    from headrace.worker.make_batch import Made
    from headrace.worker.stats import WorkerStats

    stats = WorkerStats(CollectorRegistry())
    for rank in range(ranks):
        stats.connected("shm" if rank % 2 else "grpc", 1, 38_000_000)
        stats.made(
            "imagenet-resnet50",
            256,
            "shm" if rank % 2 else "grpc",
            Made(38_000_000, 30_000_000, 16, 0.1, 0.5, 0.3, 0.2, {4: 1}),
        )
    stats.lanes({"imagenet-resnet50": 6})
    stats.heartbeat(0.004)
    return stats.registry


async def scraped(port: int) -> Cost:
    """Scrape a port of this process from another one."""
    await asyncio.to_thread(_scrape, port, 3)  # whatever is imported or compiled at the first
    begin_s = time.process_time()
    body = await asyncio.to_thread(_scrape, port, SCRAPES)
    cpu_s = (time.process_time() - begin_s) / SCRAPES
    text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    series = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
    return Cost(len(body), series, cpu_s)


def _scrape(port: int, times: int) -> bytes:
    command = [sys.executable, "-c", _SCRAPER, str(port), str(times)]
    return subprocess.run(command, capture_output=True, check=True, timeout=300).stdout


async def measure() -> tuple[Cost, Cost]:
    """Of a coordinator and of a worker."""
    from headrace.coordinator import admin_api
    from headrace.coordinator.manifests import Manifests
    from headrace.coordinator.serve import AdminServer
    from headrace.datasets.manifest import load_manifest
    from headrace.worker.health import Health
    from headrace.worker.metrics_http import MetricsServer

    board, ledger, instruments = await filled_board()
    admin = AdminServer(admin_api.build(board, ledger, instruments, Manifests(load_manifest, 10.0)), "127.0.0.1:0")
    await admin.start()
    coordinator = await scraped(admin.port)
    await admin.close()
    server = MetricsServer("127.0.0.1:0", filled_worker(), None, Health(lambda: True))
    worker = await scraped(server.port)
    server.close()
    return coordinator, worker


def page(coordinator: Cost, worker: Cost) -> str:
    """The result as a page."""
    whole_s = COORDINATORS * coordinator.cpu_s + WORKERS * worker.cpu_s
    rows = [
        f"| {name} | {count} | {cost.series} | {cost.sent_bytes / 1024:.1f} | {1e3 * cost.cpu_s:.1f} "
        f"| {1e3 * count * cost.cpu_s:.0f} |"
        for name, count, cost in (("coordinator", COORDINATORS, coordinator), ("worker", WORKERS, worker))
    ]
    verdict = "holds" if whole_s < BOUND * INTERVAL_S else "does not hold"
    return "\n".join(
        [
            "# What a scrape costs",
            "",
            f"`python loadtest/scrape.py`: a job of {RANKS} ranks, {WORKERS} workers; means of {SCRAPES} scrapes on "
            f"{platform.machine()}, Python {platform.python_version()}.",
            "",
            "| process | how many | series of one | KiB sent | CPU of one, ms | CPU of all, ms |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"Together {whole_s * 1e3:.0f} ms of CPU a scrape: {whole_s / INTERVAL_S:.2%} of an interval of {INTERVAL_S:g} s. "
            f"That it stays below {BOUND:.0%} {verdict}.",
            "",
            "Caveat: CPU of the serving processes alone, without TLS; what Prometheus spends is not counted.",
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write the page."""
    text = page(*asyncio.run(measure()))
    print(text)
    REPORT.write_text(text)


if __name__ == "__main__":
    main()
