"""What `headrace status` draws: the admin API's answers as tables of rich, control characters in names written out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.admin import unread
from headrace.cli.text import printable
from headrace.core.starvation import CAUSES

Facts = Mapping[str, Any]

STYLES = {"input-bound": "bold red", "balanced": "yellow", "compute-bound": "green", "unknown": "dim"}
TREND = {"rising": "↑", "falling": "↓", "flat": ""}
# Letters too: colours alone tell nothing to who cannot see them, nor in a file.
BARS = {
    "lane_wait": ("L", "magenta"),
    "slot_wait": ("S", "bright_black"),
    "worker_busy": ("W", "yellow"),
    "read": ("R", "cyan"),
    "decode": ("D", "red"),
    "augment": ("A", "bright_yellow"),
    "transfer": ("T", "blue"),
    "copy": ("C", "green"),
}
BAR_CELLS = 30
RANKS_SHOWN = 20
EVENTS_SHOWN = 8


def overview(jobs: list[Facts], workers: list[Facts], scaling: list[Facts], replica: Facts) -> RenderableType:
    """All jobs, worst first, and the fleet."""
    return Group(
        *_troubles(replica), _jobs(jobs, replica), Text(), _workers(workers, scaling, replica), Text(),
        _events(replica, ""), _foot(replica),
    )  # fmt: skip


def one_job(job: Facts, replica: Facts) -> RenderableType:
    """One job in full."""
    idle = not job["ranks_live"]
    head = Text.assemble(
        (printable(job["job"]), "bold"), "  ", _verdict(job), f"  {job['ranks_live']} of {job['world']} ranks live"
    )
    lines = [head, Text(_sentence(job["why"]))]
    if job["verdict"] != "unknown" and not idle:
        lines.append(Text.assemble("What to do: ", (_sentence(job["action"]), "bold")))
    if job["stop_index"] >= 0:
        lines.append(Text(f"All ranks stop: {printable(job['stop_why'])}", "red"))
    bad = job["bad_samples_total"]
    facts = [
        f"{job['samples']} samples of {printable(job['dataset'])}", f"batches of {job['batch_size']}",
        f"attempt {job['attempt']} from epoch {job['epoch']} on", f"window {job['window']}",
        f"{job['lanes_moved']} lanes moved", f"{job['batches_remade']} batches remade",
    ]  # fmt: skip
    if bad:
        facts.append(f"bad samples met {bad} times: headrace quarantine {job['job']}")
    return Group(
        *_troubles(replica), *lines, Text(),
        _ranks(job["ranks"]), _legend(), Text(), _lanes(job), Text("; ".join(facts), "dim"), Text(),
        _events(replica, job["job"]), _foot(replica),
    )  # fmt: skip


def worst_first(jobs: Iterable[Facts]) -> list[Facts]:
    """Those who need a person first; jobs that nobody trains last."""
    order = list(STYLES)
    return sorted(
        jobs, key=lambda job: (not job["ranks_live"], order.index(job["verdict"]), -job["starvation_ratio"], job["job"])
    )


def percent(share: float) -> str:
    """A share for people."""
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def span(seconds: float) -> str:
    """A duration for people."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _sentence(text: str) -> str:
    return f"{printable(text[:1].upper() + text[1:])}." if text else ""


def _troubles(replica: Facts) -> list[Text]:
    told, error = replica["troubles"], replica["store_error"]
    if error and (why := unread(replica)):
        # In other words than the coordinator's, which says of a store that is away that what is shown was read before.
        told = [f"nothing is known yet of jobs and workers: {why}", *(text for text in told if error not in text)]
    return [Text(f"! {printable(text)}", "bold red") for text in told]


def _verdict(job: Facts) -> Text:
    if not job["ranks_live"]:
        return Text("no rank is live", "dim")
    trend = f" {TREND.get(job['trend'], '')}".rstrip()
    return Text(f"{job['verdict']}{trend}", STYLES.get(job["verdict"], ""))


def _table(title: str, *columns: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=right, header_style="dim")
    return table


def _jobs(jobs: list[Facts], replica: Facts) -> RenderableType:
    if not jobs and not replica["loaded"]:
        return Text("Which jobs are open is not known yet.")
    if not jobs:
        return Text("No job is open. A trainer opens one with client.job(...).")
    numbers = ("worst rank", "waits", "ranks", "lanes")
    table = _table("Jobs", "job", "verdict", "worst rank", "waits", "most by", "ranks", "lanes", "what to do", numbers=numbers)
    for job in worst_first(jobs):
        known = job["verdict"] != "unknown" and job["ranks_live"]
        unowned = job["lanes_unowned"]
        lanes = Text(f"{job['lanes'] - unowned}/{job['lanes']}", "red" if unowned and job["ranks_live"] else "")
        table.add_row(
            Text(printable(job["job"])), _verdict(job), str(job["worst_rank"]) if known else "",
            percent(job["starvation_ratio"]) if known else "", job["cause"] if known else "",
            f"{job['ranks_live']}/{job['world']}", lanes, Text(job["action"] if known else ""),
        )  # fmt: skip
    return table


def _workers(workers: list[Facts], scaling: list[Facts], replica: Facts) -> RenderableType:
    if not workers and not replica["loaded"]:
        return Text("Which workers there are is not known yet.")
    if not workers:
        return Text("No worker is known: start some, and see that they name this coordinator.", "red")
    table = _table("Workers", "worker", "state", "node", "samples/s", "lanes", "", numbers=("samples/s", "lanes"))
    for one in workers:
        state = worker_state(one)
        unable = f"cannot open {', '.join(map(printable, one['unable_jobs']))}" if one["unable_jobs"] else ""
        speed = f"{one['samples_per_s']:.0f}" if one["samples_per_s"] else "?"
        lanes = str(sum(one["lanes_by_job"].values()))
        style = "red" if state == "silent" else ""
        table.add_row(
            Text(printable(one["worker"])), Text(state, style), Text(short(one["node"])), speed, lanes, Text(unable, "red")
        )  # fmt: skip
    return Group(table, *map(_pool, scaling))


def worker_state(one: Facts) -> str:
    """A worker's state in a word; one that drained and is heard no more has left, as it was told to."""
    if one["live"]:
        return "drains" if one["draining"] else "serves"
    return "has left" if one["draining"] else "silent"


def _pool(one: Facts) -> Text:
    return Text(
        f"pool {printable(one['pool'])} ({short(one['fingerprint'])}): {one['workers_live']} live, {one['workers_desired']} "
        f"wanted; one makes {one['samples_per_s']:.0f} samples/s, trainers ask for {one['samples_wanted_per_s']:.0f}",
        "red" if one["workers_desired"] > one["workers_live"] else "",
    )


def short(name: str) -> str:
    """A long id by its beginning."""
    first = printable(name).partition(";")[0]
    return first[:8] if len(first) == 36 and first.count("-") == 4 else first


def _ranks(ranks: list[Facts]) -> RenderableType:
    table = _table(
        "Ranks, worst first", "rank", "its last 30 to 60 s", "waits", "by", "batches", "", numbers=("rank", "waits", "batches")
    )
    sorted_ranks = sorted(ranks, key=lambda one: (not one["live"], -one["recent_starvation_ratio"], one["rank"]))
    for one in sorted_ranks[:RANKS_SHOWN]:
        shares = sorted(one["recent_share_by_cause"].items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{cause} {percent(share)}" for cause, share in shares[:3] if share >= 0.001)
        state = "" if one["live"] else "has left" if one["left"] else "silent"
        now = f"waiting for {span(one['waiting_s'])} now" if one["waiting_s"] > 1 else ""
        more = Text(", ".join(filter(None, (state, one["transport"], now))), "red" if state == "silent" else "")
        ratio = percent(one["recent_starvation_ratio"])
        table.add_row(str(one["rank"]), bar(one["recent_share_by_cause"]), ratio, told, str(one["consumed"]), more)
    if len(ranks) <= RANKS_SHOWN:
        return table
    return Group(table, Text(f"and {len(ranks) - RANKS_SHOWN} more, which wait less: --json has them all", "dim"))


def bar(shares: Mapping[str, float]) -> Text:
    """A rank's recent time as cells: letters where it waited, dots where it did not."""
    text, done, cells = Text(), 0.0, 0
    for cause in CAUSES:
        done += shares.get(cause, 0.0)
        upto = min(BAR_CELLS, round(done * BAR_CELLS))
        letter, style = BARS[cause]
        text.append(letter * (upto - cells), f"black on {style}")
        cells = upto
    return text.append("·" * (BAR_CELLS - cells), "dim")


def _legend() -> Text:
    text = Text()
    for cause, (letter, style) in BARS.items():
        text.append(f" {letter} ", f"black on {style}").append(f" {cause}  ")
    return text


def _lanes(job: Facts) -> RenderableType:
    held: dict[str, int] = {}
    for lane in job["lane_owners"]:
        held[lane["worker"]] = held.get(lane["worker"], 0) + 1
    nobody = held.pop("", 0) + job["lanes"] - len(job["lane_owners"])
    text = Text(f"{job['lanes']} lanes: " + ", ".join(f"{printable(name)} has {count}" for name, count in sorted(held.items())))
    return text.append(f"{', ' if held else ''}nobody has {nobody}", "red") if nobody else text


def _events(replica: Facts, job: str) -> RenderableType:
    found = [one for one in replica["events"] if not job or one["job"] in ("", job)][:EVENTS_SHOWN]
    table = _table("Events (of this replica, newest first)", "ago", "what", "")
    for one in found:
        count = f" ({one['count']} such)" if one["count"] > 1 else ""
        where = f"{one['job']}: " if one["job"] and not job else ""
        style = "red" if one["level"] == "warning" else ""
        table.add_row(
            Text(span(max(0.0, replica["now_s"] - one["at_s"])), "dim"), Text(one["kind"], style),
            Text(printable(f"{where}{one['text']}{count}")),
        )  # fmt: skip
    return table if found else Text("No events yet.", "dim")


def _foot(replica: Facts) -> Text:
    store = "does not answer" if replica["store_error"] else "answers" if replica["loaded"] else "not read yet"
    text = f"coordinator {printable(replica['host'])} {replica['version']}, up {span(replica['up_s'])}; store {store}"
    if replica["certificate_not_after_s"]:
        text += f"; certificate good for {span(max(0.0, replica['certificate_not_after_s'] - replica['now_s']))}"
    return Text(text, "dim")
