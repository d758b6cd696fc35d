"""What a fleet that feeds a thousand GPUs would take, reckoned from what was measured here.

    python loadtest/scaling_model.py [--gpus 1000] [--rates 500,1500,3000] [--threads 16]

Reads results/scaling.json and results/fleet_load.json and writes results/scaling_model.md with every step of the arithmetic.
Nothing here was run at that size. What is assumed and not measured is named as such on the page.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BATCH, EDGE = 256, 224
IMAGE_BYTES = EDGE * EDGE * 3
ENCODED_BYTES = 110_000  # ImageNet's mean
HEADROOM = 1.1  # as autoscaling adds (core.autoscale)
BUSY = 0.5  # of a core, up to which a coordinator is loaded: heartbeats must not wait
HEARTBEAT_S, REPORT_S = 0.8, 2.0
GPUS_A_NODE = 8
LANES = 6144


@dataclass(frozen=True, slots=True)
class Measured:
    """images_s: of one thread. second: what a second worker added, of the first. heartbeat_us, report_us, store_us: CPU a call.

    pass_s: CPU of a look at 1,000 workers. sent_us: CPU a batch over gRPC, both ends.
    """

    images_s: float
    second: float
    call_us: float
    store_us: float
    store_commands: float
    sent_us: float
    table_bytes: float
    table_owners: int


def measured(scaling: dict[str, Any], load: dict[str, Any]) -> tuple[Measured, str]:
    """The figures and the step of the load test that they are of: the largest that was not saturated."""
    speed = {int(n): statistics.median(rates) for n, rates in scaling["speed"].items()}
    done = [row for row in load["steps"] if "failed_because" not in row and row["kept"] >= 0.95]
    row = max(done, key=lambda row: (row["step"]["workers"], row["step"]["jobs"] * row["step"]["world"]))
    calls = row["heartbeats_s"] + row["reports_s"]
    sent = statistics.median(r["worker"] + r["fetcher"] for r in scaling["overhead"]["grpc large"])
    found = Measured(
        images_s=speed[1],
        second=speed[2] / speed[1] - 1,
        call_us=1e6 * row["coordinator_cpu"] / calls,
        store_us=1e6 * row["store_cpu"] / row["store_requests_s"],
        store_commands=row["store_commands_s"] / row["store_requests_s"],
        sent_us=sent,
        table_bytes=row["table_bytes"],
        table_owners=row["workers_holding"],
    )
    return found, row["step"]["name"]


def fleet(m: Measured, gpus: int, rate: float, threads: int) -> list[tuple[str, str, str]]:
    """(what, arithmetic, result) for one demand of images/s a GPU."""
    demand = gpus * rate
    cores = math.ceil(HEADROOM * demand / m.images_s)
    workers = math.ceil(cores / threads)
    batches = demand / BATCH
    sending = m.sent_us * batches / 1e6
    raw, read = demand * IMAGE_BYTES * 8 / 1e9, demand * ENCODED_BYTES * 8 / 1e9
    beats, reports = workers / HEARTBEAT_S, gpus / REPORT_S
    busy = m.call_us * (beats + reports) / 1e6
    store = m.store_us * (beats + reports) / 1e6
    serving, beyond = min(workers, LANES), " (over the lanes of one job)" if workers > LANES else ""
    window_mib = BATCH * IMAGE_BYTES / 2**20
    window = max(3, math.ceil(2 * serving / gpus))
    table = m.table_bytes / max(1, m.table_owners) * serving
    return [
        ("demand", f"{gpus} GPUs x {rate:g} images/s", f"{demand:,.0f} images/s, {batches:,.0f} batches/s of {BATCH}"),
        ("threads", f"{HEADROOM} x {demand:,.0f} / {m.images_s:.0f} images/s a thread", f"{cores:,}"),
        ("workers", f"{cores:,} / {threads} threads each", f"{workers:,}{beyond}"),
        ("to send and receive", f"{m.sent_us / 1e3:.1f} ms a batch x {batches:,.0f}/s, both ends", f"{sending:,.0f} cores"),
        ("network to the trainers", f"{demand:,.0f} x {IMAGE_BYTES:,} bytes", f"{raw:,.0f} Gbit/s"),
        ("of a node of GPUs", f"{raw:,.0f} / {gpus} x {GPUS_A_NODE}", f"{raw / gpus * GPUS_A_NODE:.1f} Gbit/s"),
        ("of a worker, out", f"{raw:,.0f} / {workers:,}", f"{raw / workers:.1f} Gbit/s"),
        ("from the object store", f"{demand:,.0f} x {ENCODED_BYTES:,} bytes", f"{read:,.0f} Gbit/s"),
        ("heartbeats", f"{workers:,} / {HEARTBEAT_S} s", f"{beats:,.0f}/s"),
        ("reports", f"{gpus:,} / {REPORT_S:g} s", f"{reports:,.0f}/s"),
        ("coordinators", f"{m.call_us:.0f} us x {beats + reports:,.0f}/s = {busy:.2f} cores, {BUSY:g} of a core each",
         f"{max(2, math.ceil(busy / BUSY))}"),
        ("store", f"{m.store_us:.0f} us x {beats + reports:,.0f} requests/s", f"{100 * store:.0f}% of a core"),
        ("its commands", f"{m.store_commands:.1f} a request", f"{m.store_commands * (beats + reports):,.0f}/s"),
        ("window", f"max(3, 2 x {serving:,} / {gpus})", f"{window} batches, {window * window_mib:,.0f} MiB a rank"),
        ("a lane that moves", f"{table / 1e3:,.0f} kB of table x {gpus:,} ranks", f"{table * gpus / 1e6:,.0f} MB at once"),
    ]  # fmt: skip


def page(m: Measured, step: str, scaling: dict[str, Any], load: dict[str, Any], options: argparse.Namespace) -> str:
    """The page."""
    lines = [
        f"# A fleet that feeds {options.gpus:,} GPUs",
        "",
        "Reckoned by `python loadtest/scaling_model.py` from [scaling.md](scaling.md) and [fleet_load.md](fleet_load.md); it",
        f"was never run. Measured on {scaling['machine']} at loads of {max(scaling['load']):.1f} and {load['load']:.1f}:",
        "what was measured on a busy machine makes every count of cores here too large.",
        "",
        "| measured here | |",
        "|---|---:|",
        f"| images/s of a worker's thread, beside trainer and coordinator on these cores | {m.images_s:.0f} |",
        f"| what a second worker added, of the first | {m.second:.2f} |",
        f"| CPU of worker and fetcher for a batch of {BATCH} over gRPC, engine `null` | {m.sent_us / 1e3:.1f} ms |",
        f"| coordinator's CPU a heartbeat or report, with its share of the passes (step `{step}`) | {m.call_us:.0f} us |",
        f"| store's CPU a request | {m.store_us:.0f} us |",
        f"| lane table with {m.table_owners:,} owners | {m.table_bytes / 1e3:.0f} kB |",
        "",
        "Assumed, not measured: one rank a GPU, all in one job; threads of a worker add up (photos are decoded apart from one",
        f"another, without Python's lock); {options.threads} threads a worker; JPEGs of {ENCODED_BYTES:,} bytes; {EDGE}x{EDGE}",
        "RGB as uint8; all batches over the network (workers beside the trainers send nothing); a network that bears it.",
        "",
    ]  # fmt: skip
    for rate in options.rates:
        lines += [f"## {rate:g} images/s a GPU", "", "| | how | |", "|---|---|---:|"]
        lines += [f"| {what} | {how} | {result} |" for what, how, result in fleet(m, options.gpus, rate, options.threads)]
        lines.append("")
    return "\n".join(
        [
            *lines,
            "## What ends first",
            "",
            "- **The trainers' network**, before anything of the control plane: pixels are larger than JPEGs. Workers on the",
            "  trainers' own nodes, or float conversion and normalisation on the GPU, which is the default, keep it down.",
            f"- **Lanes**: one job has at most {LANES:,}, and workers beyond that idle for it. More threads, not more workers.",
            "- **A coordinator's one core**, by heartbeats: `--heartbeat-s` and `--worker-ttl-s` buy room for seconds",
            "  until a dead worker's lanes move; so do replicas, each of which still looks at the whole fleet each second.",
            "- **A lane that moves** sends each rank the whole table. With thousands of workers that come and go all day it is",
            "  the coordinators' largest traffic.",
            "- The store is far from its end.",
            "",
        ]
    )


def main() -> None:
    """Write the page and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--rates", type=lambda text: [float(rate) for rate in text.split(",")], default=[500.0, 1500.0, 3000.0])
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--scaling", type=Path, default=RESULTS / "scaling.json")
    parser.add_argument("--load", type=Path, default=RESULTS / "fleet_load.json")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling_model.md")
    options = parser.parse_args()
    scaling, load = json.loads(options.scaling.read_text()), json.loads(options.load.read_text())
    text = page(*measured(scaling, load), scaling, load, options)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
