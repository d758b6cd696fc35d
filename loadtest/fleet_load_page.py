"""Page and plot of fleet_load.py's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

Row = dict[str, Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73")
QUIET = 1.0
KEPT = 0.95


def write_page(found: dict[str, Any], numbers: Path) -> None:
    """Write the page and the plot beside the numbers, and print the page."""
    done = [row for row in found["steps"] if "failed_because" not in row]
    page = "\n".join([*_head(found), *_load(done), *_latency(done), *_memory(done), *_failed(found["steps"])])
    numbers.with_suffix(".md").write_text(page)
    if done:
        _plot(done, numbers.with_suffix(".png"))
    print(page)


def _head(found: dict[str, Any]) -> list[str]:
    return [
        "# Leases and heartbeats of a large fleet",
        "",
        "What do the heartbeats, leases, reports and watches of up to 10,000 workers and 1,000 ranks take of the coordinator",
        "and the store, and where does it end? Workers and ranks are simulated, all else is real; how, stands at the top of",
        f"`loadtest/fleet_load.py`. Command: `python loadtest/fleet_load.py`; {found['machine']}.",
        "Steps, slower or faster heartbeats among them, are in that file. A report comes every 2 s from each rank.",
        f"Load average before: {found['load']:.1f}.",
        *(["**Others used the cores meanwhile: latencies here are theirs as much as ours.**"] if found["load"] > QUIET else []),
        "",
        "![the numbers below](fleet_load.png)",
        "",
    ]


def _table(rows: list[Row], columns: list[tuple[str, Callable[[Row], str]]]) -> list[str]:
    lines = ["| step | " + " | ".join(name for name, _ in columns) + " |", "|---|" + "---:|" * len(columns)]
    return [*lines, *(f"| {row['step']['name']} | " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows), ""]


def _load(rows: list[Row]) -> list[str]:
    return [
        "## Load",
        "",
        "CPU in percent of one core. *asked for*: heartbeats that were sent, of those that the interval means: a coordinator",
        "that cannot answer all in time asks for fewer. *kept*: those that were answered in time, of those that were sent;",
        "under 95% the step counts as saturated. *requests*: calls of scripts at the store; *commands*: what they run inside.",
        "",
        *_table(rows, [
            ("workers", lambda r: f"{r['step']['workers']:,}"),
            ("ranks", lambda r: f"{r['step']['jobs'] * r['step']['world']:,} in {r['step']['jobs']}"),
            ("heartbeat, s", lambda r: f"{r['step']['heartbeat_s']:g}"),
            ("heartbeats/s", lambda r: f"{r['heartbeats_s']:.0f}"),
            ("asked for", lambda r: f"{100 * r['asked_for']:.0f}%"),
            ("kept", lambda r: f"{100 * r['kept']:.0f}%" + (" (saturated)" if r["kept"] < KEPT else "")),
            ("reports/s", lambda r: f"{r['reports_s']:.0f}"),
            ("coordinator", lambda r: f"{100 * r['coordinator_cpu']:.0f}%"),
            ("store", lambda r: f"{100 * r['store_cpu']:.0f}%"),
            ("simulated", lambda r: f"{100 * r['simulated_cpu']:.0f}%"),
            ("requests/s", lambda r: f"{r['store_requests_s']:.0f}"),
            ("commands/s", lambda r: f"{r['store_commands_s']:.0f}"),
        ]),
    ]  # fmt: skip


def _ms(call: dict[str, float]) -> str:
    return " / ".join(f"{1000 * call[name]:.0f}" for name in ("p50", "p90", "p99")) if call else "-"


def _latency(rows: list[Row]) -> list[str]:
    return [
        "## Latency",
        "",
        "p50 / p90 / p99 in ms. *pass*: mean time of a look at the fleet and all jobs, due every second. *in*: until all",
        "workers had registered, and until all ranks then had joined and had a table without a gap, s. *moved*: from the last",
        "sign of one worker in a hundred (twenty, of 100) until half of the ranks, and all, had a table without them,",
        "s; *dead after*: the silence after which a worker counts as dead (`--worker-ttl-s`).",
        "",
        *_table(rows, [
            ("heartbeat", lambda r: _ms(r["heartbeats"])),
            ("report", lambda r: _ms(r["reports"])),
            ("pass, ms", lambda r: f"{1000 * r['pass_mean_s']:.0f}"),
            ("scrape, ms", lambda r: f"{1000 * r['scrape_s']:.0f}"),
            ("workers in", lambda r: f"{r['registered_s']:.1f}"),
            ("ranks in", lambda r: f"{r['joined_s']:.1f}"),
            ("dead after, s", lambda r: f"{r['step']['ttl_s']:g}"),
            ("moved", lambda r: f"{r['moved']['p50']:.1f} / {r['moved']['most']:.1f}" if r["moved"] else "not in time"),
            ("failed calls", lambda r: str(sum(r["failed"].values()))),
            ("moves unasked", lambda r: f"{r['lane_moves']:.0f}"),
        ]),
    ]  # fmt: skip


def _memory(rows: list[Row]) -> list[str]:
    return [
        "## Memory and network",
        "",
        "Resident MiB. *table*: what one rank is sent when a lane moves. *holding*: workers that hold a lane, and the most",
        "that one holds. A job has at most 6144 lanes, and workers beyond that idle.",
        "",
        *_table(rows, [
            ("coordinator", lambda r: f"{r['coordinator_mib']:.0f}"),
            ("store", lambda r: f"{r['store_mib']:.0f}"),
            ("its records", lambda r: f"{r['store_used_mib']:.1f}"),
            ("from store, MB/s", lambda r: f"{r['store_out_s'] / 1e6:.2f}"),
            ("to store, MB/s", lambda r: f"{r['store_in_s'] / 1e6:.2f}"),
            ("table, kB", lambda r: f"{r['table_bytes'] / 1e3:.0f}"),
            ("holding", lambda r: f"{r['workers_holding']:,}"),
            ("most lanes", lambda r: str(r["most_lanes"])),
        ]),
    ]  # fmt: skip


def _failed(rows: list[Row]) -> list[str]:
    failed = [row for row in rows if "failed_because" in row]
    lines = [f"- {row['step']['name']}: {row['failed_because'][:300]}" for row in failed]
    return ["## Fleets that did not come up", "", *lines, ""] if lines else []


def _plot(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(13, 4), dpi=100)
    FigureCanvasAgg(figure)
    cpu, latency, memory = figure.subplots(1, 3, sharey=True)
    places = range(len(rows))
    names = [row["step"]["name"] for row in rows]
    for i, (part, label) in enumerate((("coordinator_cpu", "coordinator"), ("store_cpu", "store"))):
        cpu.barh(
            [place + 0.2 - 0.4 * i for place in places], [100 * row[part] for row in rows], 0.4, label=label, color=COLOURS[i]
        )
    cpu.set(title="CPU, % of one core")
    cpu.set_yticks(list(places), names)
    for name, colour in zip(("p50", "p90", "p99"), COLOURS, strict=True):
        latency.plot([1000 * row["heartbeats"][name] for row in rows], places, "o", color=colour, label=name)
    latency.set(title="heartbeat, ms", xscale="log")
    latency.xaxis.set_major_formatter(ScalarFormatter())
    latency.xaxis.set_minor_formatter(NullFormatter())
    memory.barh(places, [row["coordinator_mib"] for row in rows], 0.4, color=COLOURS[0], label="coordinator")
    memory.plot([row["store_mib"] for row in rows], places, "|", color=COLOURS[1], markersize=14, label="store")
    memory.set(title="resident memory, MiB")
    for axis in (cpu, latency, memory):
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
