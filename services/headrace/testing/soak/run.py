"""Runs a soak: rounds on one fleet, each followed by a quiet moment at which counts must be back at their level."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog

import headrace
from headrace.core.errors import WaitTimeout
from headrace.testing.leaks import Leak, Measure
from headrace.testing.soak.dataset import job_spec, make_dataset
from headrace.testing.soak.fleet import Fleet
from headrace.testing.soak.judge import Levels
from headrace.testing.soak.plan import Fault, Round, Visit, plan_round
from headrace.testing.soak.sampler import Sampler, Series, StoreProbe, living, with_fetchers
from headrace.testing.soak.training import Outcome, Training, digests_that_differ

log = structlog.get_logger()

LASTING = "lasting"
LASTING_TRANSPORTS = ("shm", "grpc")
LASTING_STEP_S, VISIT_STEP_S = 0.25, 0.05
# Opened and never trained. As many as a coordinator looks at at once, so that its connections to the store are made early on.
IDLE_JOBS = 20
VISIT_DEADLINE_S = 150.0
END_DEADLINE_S = 90.0
# Past a lease and a rank's ttl, so that lanes have moved and all that ends by itself has.
REST_S = 4.0
POLL_S = 0.1
# With fewer there is nothing to compare: at the second quiet moment levels are noted.
LEAST_ROUNDS = 3
STORE_CONTENTS = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """seed: of the schedule; real processes keep time of their own, so that a seed repeats the schedule, not the run.

    settle_s: how long counts have to come back to their level.
    """

    seed: int
    directory: Path
    minutes: float
    every_s: float = 1.0
    settle_s: float = 20.0


@dataclass(slots=True)
class Soaked:
    """What a soak saw. warm_until_s, begun_s, marks, times: monotonic. wrong: what failed, in words, but for slopes."""

    seed: int
    begun_s: float = 0.0
    warm_until_s: float = 0.0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    marks: list[tuple[float, str]] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    store: Series = field(default_factory=lambda: Series("store's contents", 0))
    waits: list[tuple[float, float]] = field(default_factory=list)
    rounds: int = 0
    attempts: int = 0
    attempts_killed: int = 0
    transports: Counter[str] = field(default_factory=Counter)
    worlds: Counter[int] = field(default_factory=Counter)
    jobs: int = 0
    epochs_audited: int = 0
    samples: int = 0
    substituted: int = 0
    batches: int = 0
    undone: int = 0
    digests_compared: int = 0
    levels_compared: int = 0
    wrong: list[str] = field(default_factory=list)
    leaks: list[Leak] = field(default_factory=list)


def run_soak(settings: Settings, tell: Callable[[Soaked], None] = lambda so_far: None) -> Soaked:
    """Soak for `minutes`, plus the start and end of the fleet. tell: called after each round.

    Raises PeerGone, RankFailed, WaitTimeout: whatever ended that should live, or hung; the logs stay in `directory`.
    """
    dataset = make_dataset(settings.directory / "set")
    fleet = Fleet(settings.directory, settings.seed)
    with fleet.cluster, ThreadPoolExecutor(1, thread_name_prefix="soak-faults") as faults:
        run = _Run(settings, dataset, fleet, faults, tell)
        try:
            run.all_rounds()
        finally:
            run.kill_all()
    return run.seen


class _Run:
    def __init__(
        self, settings: Settings, dataset: Path, fleet: Fleet, faults: ThreadPoolExecutor, tell: Callable[[Soaked], None]
    ) -> None:
        self._settings = settings
        self._dataset = dataset
        self._fleet = fleet
        self._faults = faults
        self._tell = tell
        self._lasting = self._training(LASTING)
        self._visiting: Training | None = None
        self._probe = StoreProbe(fleet.cluster.store_url, LASTING)
        self._levels = Levels()
        self._digests: dict[tuple[int, int], str] = {}
        self._last_leaks: dict[int, list[Leak]] = {}
        self.seen = Soaked(settings.seed)

    def all_rounds(self) -> None:
        """Everything, from the lasting training's first step to its audit."""
        seen, settings = self.seen, self._settings
        seen.begun_s = seen.warm_until_s = time.monotonic()
        end_s = seen.begun_s + 60 * settings.minutes
        self._open_idle_jobs()
        self._lasting.start(LASTING_TRANSPORTS, 0, LASTING_STEP_S)
        sampler = Sampler(self._pids, StoreProbe(self._fleet.cluster.store_url, LASTING), settings.every_s)
        with sampler:
            self._wait(lambda: min(self._lasting.newest) >= 0, "the lasting training's first batch", END_DEADLINE_S)
            while time.monotonic() < end_s or seen.rounds < LEAST_ROUNDS:
                self._round(plan_round(settings.seed, seen.rounds))
                self._quiet()
                seen.rounds += 1
                self._tell(seen)
        seen.series, seen.store = list(sampler.series.values()), sampler.store
        self._end_lasting()
        seen.seconds = time.monotonic() - seen.begun_s
        seen.faults, seen.marks, seen.waits = self._fleet.counts, self._fleet.marks, self._lasting.waits
        seen.leaks = [leak for leaks in self._last_leaks.values() for leak in leaks]
        for name, text in self._fleet.cluster.logs().items():
            if "Traceback" in text:
                seen.wrong.append(f"{name}: a traceback in its log")

    def kill_all(self) -> None:
        """End what trains."""
        for training in (self._lasting, self._visiting):
            if training is not None:
                training.kill()

    def _open_idle_jobs(self) -> None:
        with headrace.connect(self._fleet.cluster.addresses, deadline_s=END_DEADLINE_S) as client:
            for number in range(IDLE_JOBS):
                client.open(job_spec(f"idle-{number}", self._dataset, self._settings.seed % 2**31))

    # --- rounds ---------------------------------------------------------------------------------------------------------

    def _round(self, plan: Round) -> None:
        doing = self._faults.submit(self._inflict, plan.faults)
        for visit in plan.visits:
            self._visit(visit)
        self._wait(doing.done, "the faults to be over", VISIT_DEADLINE_S)
        doing.result()

    def _inflict(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            self._fleet.inflict(fault, self._lasting)

    def _visit(self, visit: Visit) -> None:
        self._visiting = training = self._training(visit.job)
        self.seen.jobs += 1
        for attempt in visit.attempts:
            self.seen.attempts += 1
            self.seen.transports.update(attempt.transports)
            self.seen.worlds[len(attempt.transports)] += 1
            training.start(attempt.transports, visit.epochs, VISIT_STEP_S)
            enough = attempt.kill_after or 1 << 62
            what = f"{visit.job}, world {len(attempt.transports)}"
            self._wait(lambda enough=enough: training.done or training.taken >= enough, what, VISIT_DEADLINE_S)  # type: ignore[misc]
            self.seen.attempts_killed += not training.done
            training.kill()
        self._visiting = None
        self._judge(training.outcome(visit.epochs))

    def _quiet(self) -> None:
        """Wait until nothing goes on but the lasting training, and compare counts."""
        for member in self._fleet.cluster.members():
            member.wait_ready()
        self._fleet.check()
        rest_until = time.monotonic() + REST_S
        self._wait(lambda: time.monotonic() > rest_until, "rest", REST_S + 1)
        taken: list[Measure] = []

        def take() -> Measure:
            self._poll()
            taken.append(living(with_fetchers(self._pids())))
            return taken[-1]

        end_s = time.monotonic() + self._settings.settle_s
        while (leaks := self._levels.leaks(take())) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        self.seen.levels_compared += self._levels.note(taken[-1])
        if self.seen.rounds == 1:
            self.seen.warm_until_s = time.monotonic()
        self._note(taken[-1], leaks)

    def _note(self, taken: Measure, leaks: list[Leak]) -> None:
        """Leaks count as they are at a process's last quiet moment; what came back is none."""
        for process in taken.processes.values():
            self._last_leaks.pop(process.pid, None)
        for leak in leaks:
            pid = taken.processes[leak.process].pid if leak.process in taken.processes else 0
            self._last_leaks.setdefault(pid, []).append(leak)
            log.warning("above_its_level", leak=str(leak), round=self.seen.rounds)
        _, stray = self._probe.look()
        if stray:
            self._last_leaks[STORE_CONTENTS] = [Leak("store", "keys", 0, len(stray), ", ".join(stray[:5]))]

    def _end_lasting(self) -> None:
        epochs = self._lasting.end_soon()
        self._wait(lambda: self._lasting.done, "the lasting training's end", END_DEADLINE_S)
        self._judge(self._lasting.outcome(epochs))

    def _judge(self, outcome: Outcome) -> None:
        seen = self.seen
        seen.epochs_audited += len(outcome.audits)
        seen.samples += sum(audit.delivered for audit in outcome.audits)
        seen.substituted += sum(audit.substituted for audit in outcome.audits)
        seen.batches += outcome.batches
        seen.undone += outcome.undone
        seen.wrong += outcome.wrong
        seen.digests_compared += len(outcome.digests.keys() & self._digests.keys())
        if differ := digests_that_differ(self._digests, outcome.digests):
            seen.wrong.append(f"batches (epoch, batch) {differ[:5]} differ from what another job of the same seed was handed")
        self._digests.update(outcome.digests)

    # --- helpers --------------------------------------------------------------------------------------------------------

    def _training(self, name: str) -> Training:
        job = job_spec(name, self._dataset, self._settings.seed % 2**31)
        return Training(name, job, self._fleet.cluster.addresses, self._settings.directory / "ranks")

    def _pids(self) -> dict[str, int]:
        found = self._fleet.pids()
        for training in (self._lasting, self._visiting):
            if training is not None:
                found |= {f"{training.name} rank-{i}": rank.pid for i, rank in enumerate(training.ranks) if rank.poll() is None}
        return found

    def _poll(self) -> None:
        for training in (self._lasting, self._visiting):
            if training is not None:
                training.poll()

    def _wait(self, ready: Callable[[], bool], what: str, deadline_s: float) -> None:
        end_s = time.monotonic() + deadline_s
        while not ready():
            self._poll()
            if time.monotonic() > end_s:
                raise WaitTimeout(f"{what}: not within {deadline_s:g} s; logs are in {self._settings.directory}")
            time.sleep(POLL_S)
        self._poll()
