"""The report of the proof: rows, their verdicts against the targets, JSON and Markdown. Standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# passed | failed | not run
Status = str
MARK = {"passed": "passed", "failed": "**FAILED**", "not run": "**NOT RUN**"}
TARGET_IMG_S, TARGET_HANDOFF_US = 7000, 100


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was tried. figures: numbers by name. reason: why it failed or was not run, or what was seen."""

    table: str
    name: str
    status: Status
    figures: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.table} | {self.name} | {self.status} | {self.figures} {self.reason}"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the proof as it went. seconds: that it took; of limit_s."""

    name: str
    status: Status
    seconds: float
    limit_s: float
    reason: str = ""
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. about: of the machine and the program, by name. seconds: in all."""

    about: dict[str, str]
    parts: tuple[Part, ...]
    seconds: float

    def write(self, directory: Path) -> None:
        """gpu_report.json and gpu_report.md."""
        directory.mkdir(parents=True, exist_ok=True)
        told = {**asdict(self), "targets": [asdict(row) for row in targets(self)]}
        (directory / "gpu_report.json").write_text(json.dumps(told, indent=1))
        (directory / "gpu_report.md").write_text(markdown(self))


def rows_of(report: Report, table: str) -> list[Row]:
    """Of one table."""
    return [row for part in report.parts for row in part.rows if row.table == table]


def targets(report: Report) -> list[Row]:
    """The targets of the GPU path, judged by the rows of this very run."""
    found = []
    ours = [row for row in rows_of(report, "end to end") if row.name.endswith(("by vmm", "by legacy"))]
    mixed = [row for row in rows_of(report, "end to end") if "DALI pipeline, mixed" in row.name]
    fastest = _most(ours)
    found.append(_judged(f"end to end over {TARGET_IMG_S} img/s of 500x375", fastest, TARGET_IMG_S, "img/s", ours))
    theirs = _most(mixed)
    found.append(_judged("end to end no slower than DALI's own mixed pipeline", fastest, theirs, "img/s", [*ours, *mixed]))
    hands = [row for row in rows_of(report, "hand-off") if "vmm" in row.name or "legacy" in row.name]
    times = [row.figures["p50_us"] for row in hands if "p50_us" in row.figures]
    best = -max(times) if times else None
    found.append(_judged(f"hand-off under {TARGET_HANDOFF_US} us a batch (p50)", best, -TARGET_HANDOFF_US, "us", hands))
    crossing = [row for row in rows_of(report, "PCIe") if "counted by NVML" in row.name]
    states = {row.status for row in crossing}
    status = "not run" if not states or "not run" in states else "failed" if "failed" in states else "passed"
    reason = "; ".join(row.reason for row in crossing) or "the part did not run"
    found.append(Row("targets", "no byte over PCIe on the way to the trainer", status, reason=reason))
    return found


def _most(rows: list[Row]) -> float | None:
    return max((row.figures["img_s"] for row in rows if "img_s" in row.figures), default=None)


def _judged(name: str, found: float | None, least: float | None, unit: str, rows: list[Row]) -> Row:
    if found is None or least is None:
        reasons = dict.fromkeys(row.reason for row in rows if row.status != "passed")
        return Row("targets", name, "not run", reason="; ".join(reasons) or "the part did not run")
    seen = f"{abs(found):g} {unit}, target {abs(least):g}"
    return Row("targets", name, "passed" if found >= least else "failed", reason=seen)


def exit_status(report: Report, has_gpu: bool) -> int:
    """0: all ran and passed. 1: something failed. 2: nothing failed, there is no GPU. 3: a GPU, but not all ran."""
    states = [part.status for part in report.parts] + [row.status for part in report.parts for row in part.rows]
    if "failed" in states or (has_gpu and any(row.status == "failed" for row in targets(report))):
        return 1
    if not has_gpu:
        return 2
    return 3 if "not run" in states else 0


def markdown(report: Report) -> str:
    """The report for people."""
    lines = ["# GPU report", "", "Written by `tests/gpu/run.sh`; what each part shows: docs/gpu.md.", ""]
    lines += [f"- {name}: {value}" for name, value in report.about.items()]
    lines += [f"- in all: {report.seconds:.0f} s", "", "## Targets", ""]
    lines += _table(["target", "verdict", "seen"], ((row.name, MARK[row.status], row.reason) for row in targets(report)))
    lines += ["", "## Parts", ""]
    told = ((p.name, MARK[p.status], f"{p.seconds:.0f} of {p.limit_s:.0f}", p.reason) for p in report.parts)
    lines += _table(["part", "verdict", "seconds", "why"], told)
    for part in report.parts:
        for table in dict.fromkeys(row.table for row in part.rows):
            rows = [row for row in part.rows if row.table == table]
            names = list(dict.fromkeys(name for row in rows for name in row.figures))
            cells = (
                (row.name, MARK[row.status], *(f"{row.figures[n]:g}" if n in row.figures else "" for n in names), row.reason)
                for row in rows
            )
            lines += ["", f"## {table}", "", *_table(["", "verdict", *names, "note"], cells)]
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    clean = ([cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows)
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in clean)]
