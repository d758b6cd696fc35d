"""A soak's report: Markdown for people, JSON for programs, a PNG for the eye."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.testing.soak.dataset import BAD_IDS, BATCH_SIZE, SAMPLES
from headrace.testing.soak.judge import LATENCY_LIMITS, LIMITS, STORE_LIMITS, Verdict, judge, latencies, shown
from headrace.testing.soak.plot import save
from headrace.testing.soak.run import Soaked

NAMES = {
    "memory_bytes": "memory of its own",
    "pss_bytes": "PSS",
    "rss_bytes": "RSS",
    "shared_bytes": "shared memory held",
    "descriptors": "descriptors",
    "threads": "threads",
    "stray_keys": "keys that are nobody's",
    "keys_a_job": "keys of the largest job",
    "lasting_bytes": "bytes: fleet and lasting job",
    "bytes_a_job": "bytes: largest of the other jobs",
    "used_bytes": "memory used, all jobs",
    "p50_s": "p50",
    "p95_s": "p95",
}


class Report:
    """What came of a soak of so many minutes."""

    def __init__(self, seen: Soaked, minutes: float) -> None:
        self._seen = seen
        self._minutes = minutes
        self.latencies = latencies(seen.waits, seen.begun_s)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Of all series, also those too short to say anything."""
        seen = self._seen
        found = [verdict for series in seen.series for verdict in judge(series, LIMITS, seen.warm_until_s)]
        found += judge(seen.store, STORE_LIMITS, seen.warm_until_s)
        return found + judge(self.latencies, LATENCY_LIMITS, seen.warm_until_s)

    @cached_property
    def findings(self) -> list[str]:
        """All that is wrong, in words; empty if nothing is."""
        rising = [str(verdict) for verdict in self.verdicts if verdict.trend.rising]
        return [*self._seen.wrong, *map(str, self._seen.leaks), *rising]

    @property
    def passed(self) -> bool:
        """Whether nothing leaked, and each sample of each epoch was handed over once."""
        return not self.findings

    def memory_per_hour(self) -> float:
        """Bytes an hour, over all processes that were there from the beginning to the end: the sum of their slopes."""
        return sum(verdict.trend.slope_per_hour for verdict in self._judged("memory_bytes") if self._lasts(verdict))

    def summary(self) -> str:
        """A few lines."""
        seen, word = self._seen, "PASSED" if self.passed else "FAILED"
        lines = [
            f"{word}: {seen.seconds / 60:.1f} minutes, {seen.rounds} rounds, {seen.faults.total()} faults, "
            f"{seen.epochs_audited} epochs audited, {seen.batches} batches, {seen.levels_compared} levels compared; "
            f"memory of what lasts: {shown('memory_bytes', self.memory_per_hour())} an hour"
        ]
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])

    def write(self, out: Path) -> None:
        """soak.md, soak.json and soak.png."""
        out.mkdir(parents=True, exist_ok=True)
        (out / "soak.json").write_text(json.dumps(self.facts(), indent=1) + "\n")
        (out / "soak.md").write_text(self.page())
        save(out / "soak.png", self._seen, self.latencies)

    # --- JSON -----------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """All numbers but the samples themselves."""
        seen = self._seen
        counts = {key: getattr(seen, key) for key in _COUNTS}
        return {
            "passed": self.passed,
            "findings": self.findings,
            "leaks": [asdict(leak) for leak in seen.leaks],
            "seed": seen.seed,
            "minutes": round(seen.seconds / 60, 2),
            "faults": dict(seen.faults.most_common()),
            "transports": dict(seen.transports),
            "worlds": {str(world): count for world, count in sorted(seen.worlds.items())},
            **counts,
            "memory_bytes_per_hour": round(self.memory_per_hour()),
            "verdicts": [_verdict_facts(verdict) for verdict in self.verdicts],
            "latency_by_minute": {kind: [round(v, 5) for v in values] for kind, values in self.latencies.values.items()},
        }

    # --- Markdown -------------------------------------------------------------------------------------------------------

    def page(self) -> str:
        """The page."""
        seen = self._seen
        verdict = "**No leak was found, and nothing was lost.**" if self.passed else "**Failed:**"
        parts = [
            "# Soak: does anything grow?",
            f"`make soak MINUTES={self._minutes:g} SEED={seen.seed}`: {seen.seconds / 60:.1f} minutes, {os.cpu_count()} CPUs "
            f"({platform.system()} {platform.machine()}, Python {platform.python_version()}), shared with other work.",
            "\n".join([verdict, *(f"- {finding}" for finding in self.findings)]),
            f"Memory of the processes that were there from beginning to end, together: "
            f"**{shown('memory_bytes', self.memory_per_hour())} an hour** (sum of their slopes after warm-up).",
            "![Memory, shared memory, descriptors, threads, the store and the latency of next() over time](soak.png)",
            _DONE.format(samples=SAMPLES, batch=BATCH_SIZE, bad=len(BAD_IDS)),
            _table(["what", "count"], self._counts()),
            "Faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(seen.faults.items())) + ".",
            _LEVELS.format(compared=seen.levels_compared),
            _SLOPES,
            _table(_HEADINGS, [_row(each) for each in self._shown()]),
            _STORE,
            _table(_HEADINGS, [_row(each) for each in self.verdicts if each.kind in STORE_LIMITS]),
            _LATENCY,
            _table(["minute", "p50", "p95", "p99"], self._latency_rows()),
            _table(_HEADINGS, [_row(each) for each in self.verdicts if each.kind in LATENCY_LIMITS]),
        ]
        return "\n\n".join(parts) + "\n"

    def _counts(self) -> list[list[str]]:
        seen = self._seen
        worlds = ", ".join(f"{count} of world {world}" for world, count in sorted(seen.worlds.items()))
        transports = ", ".join(f"{count} {name}" for name, count in sorted(seen.transports.items()))
        rows = {
            "rounds": f"{seen.rounds}",
            "faults": f"{seen.faults.total()}",
            "jobs that came and went": f"{seen.jobs}",
            "their attempts": f"{seen.attempts}, of which {seen.attempts_killed} killed ({worlds}; ranks: {transports})",
            "epochs audited": f"{seen.epochs_audited}",
            "batches handed over": f"{seen.batches}, of which {seen.undone} again after a killed attempt",
            "samples, as read from the pixels": f"{seen.samples}, each once an epoch",
            "bad samples substituted": f"{seen.substituted}",
            "batches whose pixels another job had too": f"{seen.digests_compared}, all alike",
        }
        return [[key, value] for key, value in rows.items()]

    def _shown(self) -> Iterable[Verdict]:
        return (each for each in self.verdicts if each.kind in LIMITS and not each.trend.too_short and self._lasts(each))

    def _lasts(self, verdict: Verdict) -> bool:
        return verdict.trend.seconds > 0.8 * (self._seen.begun_s + 60 * self._minutes - self._seen.warm_until_s)

    def _judged(self, kind: str) -> list[Verdict]:
        return [each for each in self.verdicts if each.kind == kind and not each.trend.too_short]

    def _latency_rows(self) -> list[list[str]]:
        columns = self.latencies.values
        return [
            [str(minute + 1), *(shown("p50_s", columns[kind][minute]) for kind in ("p50_s", "p95_s", "p99_s"))]
            for minute in range(len(self.latencies.times_s))
        ]


_COUNTS = (
    "rounds", "jobs", "attempts", "attempts_killed", "epochs_audited", "samples", "substituted", "batches", "undone",
    "digests_compared", "levels_compared",
)  # fmt: skip
_HEADINGS = ["whose", "what", "first", "last", "an hour", "99% from", "to", "allowed an hour", "seen from", "verdict"]
_DONE = """## What was done

A store, two coordinators and three workers; a training of two ranks (shared memory, gRPC) that lasts the whole run, with epochs
of {samples} samples in batches of {batch}, {bad} of them bad; beside it jobs that come and go, round after round, while members
are killed, drained, paused and started again. After each round the faults stop, and counts must come back to their level."""
_LEVELS = """## Levels between rounds

At its last quiet moment each process must have the shared memory and the children that it had at its second one, exactly,
and at most 8 descriptors and 8 threads more (pools, made when first needed): {compared} comparisons of a process with
itself."""
_SLOPES = """## Slopes of the processes that lasted

Theil-Sen slopes after warm-up (two rounds). A slope is a leak where it is above what is allowed, where its 99% bound is above
zero, and where the whole rise is more than a floor, which noise and late caches have made in good runs. `seen from` is the
smallest slope that this run could have called a leak, by its length. Memory of its own: anonymous pages. A coordinator
remembers each job that ever came (for 90 days), and reads of records up to a bound, so that its line rises a little here."""
_STORE = """## The store

A job's keys stay for 90 days after its last use, by design, so that `used memory` grows with the jobs that come; what must not
grow is the rest."""
_LATENCY = """## Latency of next(), lasting training, by minute

Faults and other work on the machine are in it. p99 is told, not judged: faults decide it."""


def _row(verdict: Verdict) -> list[str]:
    trend, kind = verdict.trend, verdict.kind
    numbers = (verdict.level, verdict.now, trend.slope_per_hour, trend.low_per_hour, trend.high_per_hour)
    bounds = (verdict.limit.per_hour, verdict.seen_per_hour)
    cells = [shown(kind, value) for value in (*numbers, *bounds)]
    if trend.too_short:
        cells = [*cells[:2], "-", "-", "-", cells[5], "-"]
    return [verdict.name, NAMES[kind], *cells, verdict.word]


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    facts = asdict(verdict) | {"verdict": verdict.word}
    seen = verdict.seen_per_hour
    return facts | {"seen_per_hour": None if seen == float("inf") else seen}


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
