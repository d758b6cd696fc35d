"""Puts delays into one stage after the other of a running fleet, and sees in which cause the ranks find them: promise 7.

A case is a fleet with phases. In each phase some batches are delayed in one stage, and then come calm ones. The ranks go in
step, as in training with all_reduce: none begins a step before all have ended the one before. What a rank waits in a phase is
taken by its own stopwatch, and compared with what the stream says of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import PipelineSpec, RandomResizedCrop
from headrace.core.starvation import CAUSES
from headrace.telemetry.parent import PARENT_VARIABLE
from headrace.testing.cluster import Cluster, direct
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.proxy import Proxy
from headrace.testing.slow_worker import Delay, Slow
from headrace.testing.wait_rank import WaitTask

BATCH = 4
SIDE = 64
SAMPLES = 480
FIRST_CALM = 8  # batches before the first phase
OTHER_CLOCK_S = 4321.0
STAGE_CAUSE = {
    "lane": "lane_wait", "slot": "slot_wait", "read": "read", "decode": "decode", "augment": "augment",
    "transfer": "transfer", "copy": "copy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """One delay. stage: of STAGE_CAUSE. seconds: of each delayed batch; `lane`: without workers; `transfer`: on the link.

    victims: ranks whose batches are delayed and whose waits are looked at, all where empty; `lane` and `transfer` take all.
    cause: where it is to be found, if not in the stage's own. steps, calm: batches with the delay, and after it.
    """

    stage: str
    seconds: float
    victims: tuple[int, ...] = ()
    cause: str = ""
    steps: int = 5
    calm: int = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and its phases. other_clock: the workers are on another node as far as the ranks know, and so is their clock."""

    name: str
    phases: tuple[Phase, ...]
    ranks: int = 1
    workers: int = 1
    transport: TransportChoice = "shm"
    other_clock: bool = False
    step_s: float = 0.03

    def spans(self) -> list[tuple[Phase, int, int, int]]:
        """(phase, first delayed index, first calm one, the next phase's first) of each."""
        found, at = list[tuple[Phase, int, int, int]](), FIRST_CALM
        for phase in self.phases:
            found.append((phase, at, at + phase.steps, at + phase.steps + phase.calm))
            at += phase.steps + phase.calm
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """What the victims waited in a phase, by their stopwatches and by cause. others_s: what the other ranks waited.

    injected_s: of the waits of half the delay or more, what the delay can have caused: at most its length a batch. found_s: of
    these waits, what is in the cause where it belongs.
    """

    case: Case
    phase: Phase
    waited_s: float
    injected_s: float
    found_s: float
    causes: dict[str, float]
    others_s: dict[str, float]

    @property
    def cause(self) -> str:
        """Where the delay is to be found."""
        return self.phase.cause or STAGE_CAUSE[self.phase.stage]

    @property
    def share(self) -> float:
        """The part of the injected wait that is found there; over 1 where more was, for other reasons."""
        return self.found_s / self.injected_s if self.injected_s else 0.0

    @property
    def explained(self) -> float:
        """The part of the measured wait that has a cause at all."""
        return sum(self.causes.values()) / self.waited_s if self.waited_s else 1.0


def make_dataset(directory: Path) -> Path:
    """The samples for all cases; returns the manifest's path."""
    return make_demo_dataset(directory, samples=SAMPLES, shards=4)


def run_case(
    case: Case,
    manifest: Path,
    directory: Path,
    *,
    deadline_s: float = 120.0,
    on_step: Callable[[int, Cluster], None] = lambda index, cluster: None,
) -> list[Found]:
    """Run one case. on_step: called between steps, when all ranks have taken that index.

    Raises WaitTimeout, or HeadraceError with a rank's log where one ended early.
    """
    spec = JobSpec("causes", str(manifest), BATCH, PipelineSpec(ops=(RandomResizedCrop((SIDE, SIDE)),)), seed=1)
    with ExitStack() as stack:
        links = list[Proxy]()

        def route(source: str, target: str, address: str) -> str:
            if source != "rank" or not target.startswith("worker"):
                return direct(source, target, address)
            links.append(stack.enter_context(Proxy(address)))
            return links[-1].address

        cluster = stack.enter_context(
            Cluster(
                directory,
                workers=case.workers,
                route=route,
                coordinator_args=["--scaling-interval-s", "2"],
                worker_module="headrace.testing.slow_worker",
                worker_args=["--slow", json.dumps(asdict(_slow(case)))],
            )
        )
        ranks = Ranks(case, cluster.addresses, spec, directory)
        stack.callback(ranks.end)
        events = _events(case, cluster, links)
        last = case.spans()[-1][3]
        for index in range(last):
            ranks.wait_for(index, deadline_s)
            events.get(index, _nothing)()
            on_step(index, cluster)
            ranks.go_on()
        return [ranks.found(*span) for span in case.spans()]


STAGES_OF_A_BATCH = ("read", "decode", "augment", "slot", "copy")


def cases(seconds: float = 0.8, steps: int = 4) -> list[Case]:
    """All stages in turn in three fleets, and fleets that are too small for their ranks.

    seconds: delay a batch. steps: delayed batches of each stage; of slots that are given back late, and on a link that is made
    slow while the window is full, it takes more than a window.
    """

    def phases(victims: tuple[int, ...], *more: str) -> tuple[Phase, ...]:
        usual = [
            Phase(stage, seconds, victims, steps=max(4, steps) if stage == "slot" else steps) for stage in STAGES_OF_A_BATCH
        ]
        return (*usual, *(Phase(stage, seconds, steps=max(6, steps)) for stage in more), Phase("lane", 2.0, steps=1))

    few = Phase("decode", 0.3 * seconds, cause="worker_busy", steps=2 * steps)
    return [
        Case("one rank, one worker, shared memory", phases(())),
        Case("one rank, one worker on another node", phases((), "transfer"), transport="grpc", other_clock=True),
        Case(
            "four ranks, two workers on another node", phases((0,), "transfer"), 4, 2, transport="grpc", other_clock=True,
        ),
        Case("four ranks, one worker, all batches slow", (few,), 4, 1),
        Case("six ranks, two workers, all batches slow", (few,), 6, 2),
    ]  # fmt: skip


def _nothing() -> None:
    """Most steps."""


def _slow(case: Case) -> Slow:
    delays = [
        Delay(phase.stage, phase.seconds, since, until, phase.victims)
        for phase, since, until, _ in case.spans()
        if phase.stage in ("slot", "read", "decode", "augment")
    ]
    return Slow(tuple(delays), "another-node" if case.other_clock else "", OTHER_CLOCK_S if case.other_clock else 0.0)


def _events(case: Case, cluster: Cluster, links: list[Proxy]) -> dict[int, Callable[[], None]]:
    """What is done to the fleet once all ranks have taken a batch."""
    events = dict[int, Callable[[], None]]()
    for phase, since, until, _ in case.spans():
        if phase.stage == "transfer":
            events[since - 1] = partial(_throttle, links, int(BATCH * SIDE * SIDE * 3 / phase.seconds))
            events[until - 1] = partial(_throttle, links, 0)
        elif phase.stage == "lane":
            events[since - 1] = partial(_without_workers, cluster, phase.seconds)
    return events


def _throttle(links: list[Proxy], bytes_per_s: int) -> None:
    for link in links:
        link.set(bytes_per_s=bytes_per_s)


def _without_workers(cluster: Cluster, seconds: float) -> None:
    """Kill all; they are back after so long, which is not waited for."""

    def restart() -> None:
        for number in range(len(cluster.workers)):
            cluster.restart_worker(number)

    for number in range(len(cluster.workers)):
        cluster.kill_worker(number)
    threading.Timer(seconds, restart).start()


class Ranks:
    """The ranks' processes, in step, and what they say."""

    def __init__(self, case: Case, coordinators: str, spec: JobSpec, directory: Path) -> None:
        self._case = case
        self._directory = directory
        self._lines: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(case.ranks)}
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._processes = [self._start(rank, coordinators, spec) for rank in range(case.ranks)]

    def _start(self, rank: int, coordinators: str, spec: JobSpec) -> subprocess.Popen[str]:
        case = self._case
        task = WaitTask(coordinators, spec.to_dict(), rank, case.ranks, case.spans()[-1][3], case.step_s, case.transport)
        slow = [span for span in case.spans() if span[0].stage == "copy" and rank in (span[0].victims or range(case.ranks))]
        if slow:
            phase, since, until, _ = slow[0]
            task = replace(task, copy_s=phase.seconds, copy_since=since, copy_until=until)
        with (self._directory / f"rank-{rank}.log").open("w") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "headrace.testing.wait_rank", json.dumps(asdict(task))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            )
        threading.Thread(target=self._read, args=(rank, process), name=f"wait-rank-{rank}", daemon=True).start()
        return process

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self._lines[rank].append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended.add(rank)
            self._changed.notify_all()

    def wait_for(self, index: int, deadline_s: float) -> None:
        """Wait until all ranks have taken a batch."""

        def lacking() -> list[int]:
            return [rank for rank, lines in self._lines.items() if len(lines) <= index]

        with self._changed:
            self._changed.wait_for(lambda: not lacking() or self._ended.intersection(lacking()), deadline_s)
            if lacking():
                log = (self._directory / f"rank-{lacking()[0]}.log").read_text()
                error = HeadraceError if self._ended else WaitTimeout
                raise error(f"ranks {lacking()} have not taken batch {index}; the first one's log:\n{log}")

    def go_on(self) -> None:
        """Let all begin the next step."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def end(self) -> None:
        """End all."""
        for process in self._processes:
            process.kill()
            process.wait()

    def found(self, phase: Phase, since: int, until: int, after: int) -> Found:
        """What was waited in a phase."""
        victims = phase.victims or tuple(range(self._case.ranks))
        looked = [line for rank in victims for line in self._lines[rank][since:after]]
        others = [line for rank in self._lines if rank not in victims for line in self._lines[rank][since:after]]
        injected_s = found_s = 0.0
        for line in looked:
            if line["index"] >= until and phase.stage not in ("slot", "lane"):  # felt only once what is there is used up
                continue
            if line["causes"]["lane_wait"] > 0.05 and phase.stage != "lane":
                continue  # its lane changed hands just then: workers that were made slow get fewer
            caused_s = _caused_s(self._case, phase, line["wait_s"])
            injected_s += caused_s
            found_s += line["causes"][phase.cause or STAGE_CAUSE[phase.stage]] if caused_s else 0.0
        waited_s = sum(line["wait_s"] for line in looked)
        return Found(self._case, phase, waited_s, injected_s, found_s, _by_cause(looked), _by_cause(others))


def _caused_s(case: Case, phase: Phase, wait_s: float) -> float:
    """What a phase's delay can have caused of a wait."""
    if phase.cause:  # beyond the batch's own delay: those of the other ranks' batches that its worker makes
        others_s = (case.ranks / case.workers - 1) * phase.seconds
        return min(wait_s - phase.seconds, others_s) if wait_s > 1.5 * phase.seconds else 0.0
    if wait_s < phase.seconds / 2:
        return 0.0
    return wait_s if phase.stage in ("lane", "transfer") else min(wait_s, phase.seconds)


def _by_cause(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {cause: sum(line["causes"][cause] for line in lines) for cause in CAUSES}
