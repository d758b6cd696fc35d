"""Rounds of chaos on one fleet: an undisturbed run as the yardstick, then storms, each judged by audit, hashes and leaks."""

from __future__ import annotations

import json
import random
import ssl
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from headrace.core.errors import HeadraceError, WaitTimeout
from headrace.core.job import JobSpec
from headrace.core.pipeline_spec import ColorJitter, HorizontalFlip, PipelineSpec, RandomResizedCrop
from headrace.testing.chaos.links import Links
from headrace.testing.chaos.storm import Storm, Weather
from headrace.testing.chaos.trainer import Trainer
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.journal import Journal, audit, kept
from headrace.testing.leaks import Allowance, Leak, Measure, measure, resting, settled

log = structlog.get_logger()

TRANSPORTS = ["shm", "auto", "grpc"]
# Faults begin after the first and end before the last of these shares of a round, so that it begins and ends in calm.
STORM_BEGINS, STORM_ENDS = 0.05, 0.85
TURN_S = 0.1
REST_S, REST_DEADLINE_S = 3.0, 40.0
# What is bounded and only made when it is first needed. All rounds are compared with the one yardstick, so that a leak of one
# each round shows in the end. Threads: of asyncio's pool (6 on two cores) and of gRPC's. Descriptors: a coordinator's
# connections to the store (16 calls at once and the hints), a worker's channel to each replica and its end there. Memory: what
# allocators keep.
ALLOWED = {
    "store": Allowance(descriptors=40, threads=8, memory_bytes=64 << 20),
    "coordinator": Allowance(descriptors=26, threads=8, memory_bytes=64 << 20),
    "worker": Allowance(descriptors=8, threads=8, memory_bytes=64 << 20),
    "rank": Allowance(descriptors=2, threads=2, memory_bytes=64 << 20),
}


class ChaosFailed(HeadraceError):
    """A round of chaos showed a fault of the program: its message says which."""

    code = "chaos_failed"


@dataclass(frozen=True, slots=True)
class Settings:
    """A chaos run. seed: of the storm's choices; real processes keep time of their own, so a seed repeats no run exactly.

    round_s: about how long a round takes if nothing is broken. step_s: pretended training step. secure: all by mutual TLS and
    with tokens; certificates are renewed on the way.
    """

    seed: int
    directory: Path
    rounds: int = 1
    round_s: float = 30.0
    workers: int = 4
    coordinators: int = 2
    samples: int = 600
    batch_size: int = 20
    step_s: float = 0.3
    weather: Weather = field(default_factory=Weather)
    secure: bool = False


@dataclass(slots=True)
class Report:
    """Sums over all rounds. undone: batches handed over in an attempt that was killed, behind its commit. lanes_moved, remade,
    refused: as far as ranks and coordinators lived to tell it."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    epochs_audited: int = 0
    batches: int = 0
    undone: int = 0
    lanes_moved: int = 0
    remade: int = 0
    refused: int = 0
    links_ended: int = 0
    store_bytes_forgotten: int = 0
    processes_measured: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON; faults by kind, most frequent first."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "faults": dict(self.faults.most_common())}


def run_chaos(settings: Settings, go_on: Callable[[Report], bool] = lambda report: False) -> Report:
    """Run `rounds` rounds, and more while `go_on` says so.

    Raises ChaosFailed, RankFailed, PeerGone, WaitTimeout, ...: whatever was lost; the logs stay in `directory`.
    """
    dataset = make_demo_dataset(settings.directory / "set", samples=settings.samples, shards=4)
    job = JobSpec("undisturbed", str(dataset), settings.batch_size, _pipeline(), seed=settings.seed % 2**31, tail="pad")
    report = Report(settings.seed)
    with (
        Links(str(settings.seed)) as links,
        Cluster(
            settings.directory,
            coordinators=settings.coordinators,
            workers=settings.workers,
            route=links.route,
            tls=settings.secure,
            tokens=settings.secure,
        ) as fleet,
    ):
        rounds = _Rounds(settings, job, fleet, links, report)
        rounds.undisturbed()
        while report.rounds < settings.rounds or go_on(report):
            rounds.storm()
    return report


def _pipeline() -> PipelineSpec:
    crop = RandomResizedCrop((224, 224), scale=(0.35, 1.0))
    return PipelineSpec(ops=(crop, HorizontalFlip(), ColorJitter(brightness=0.05)))


def _ask(fleet: Cluster, path: str) -> Any:
    """GET of an admin API."""
    secured = fleet.secured
    if secured is None:
        with urllib.request.urlopen(f"http://{path}", timeout=0.5) as answer:
            return json.load(answer)
    request = urllib.request.Request(f"https://{path}", headers={"Authorization": f"Bearer {secured.token('admin')}"})
    with urllib.request.urlopen(request, timeout=1.0, context=ssl.create_default_context(cafile=secured.ca)) as answer:  # noqa: S310
        return json.load(answer)


class _Rounds:
    """One fleet through all rounds."""

    def __init__(self, settings: Settings, job: JobSpec, fleet: Cluster, links: Links, report: Report) -> None:
        self._settings = settings
        self._job = job
        self._fleet = fleet
        self._links = links
        self._report = report
        steps = -(-settings.samples // (settings.batch_size * len(TRANSPORTS)))
        self._epochs = max(2, round(settings.round_s / (steps * settings.step_s)))
        self._hashes: dict[tuple[int, int], str] = {}
        self._rest: Measure | None = None
        self._rank_rest: list[dict[str, int]] = []

    def undisturbed(self) -> None:
        """The yardstick: hashes of all batches, and what the fleet and the ranks have when the job is over."""
        trainer = self._trainer("undisturbed", random.Random(0), step_s=0.0)  # noqa: S311
        try:
            trainer.start()
            self._follow(trainer, None)
        finally:
            trainer.kill()
        (journals,) = trainer.journals()
        self._judge("undisturbed", [journals])
        self._hashes = {(taken.epoch, taken.batch): taken.digest for journal in journals for taken in journal.taken}
        self._rank_rest = [journal.left or {} for journal in journals]
        self._rest = self._resting()
        log.info("undisturbed", batches=len(self._hashes), ranks_left=self._rank_rest)

    def storm(self) -> None:
        """One round; adds to the report."""
        self._report.rounds += 1
        name = f"storm-{self._report.rounds}"
        rng = random.Random(f"{self._settings.seed}:{name}")  # noqa: S311
        begun_s = time.monotonic()
        trainer = self._trainer(name, rng, step_s=self._settings.step_s)
        storm = Storm(self._fleet, self._links, trainer, rng, self._settings.weather)
        try:
            trainer.start()
            self._follow(trainer, storm)
            while not storm.calm:
                storm.turn(begin=False)
                time.sleep(TURN_S)
            for member in self._fleet.members():
                member.wait_ready()
        finally:
            trainer.kill()
            self._report.faults += storm.counts
            self._report.store_bytes_forgotten += storm.bytes_forgotten
            self._report.attempts += trainer.attempts
        self._judge(name, trainer.journals())
        self._find_leaks(trainer.journals()[-1])
        self._report.remade += sum(stats["remade"] for stats in trainer.stats)
        self._report.refused += sum(stats["refused"] for stats in trainer.stats)
        self._report.links_ended = self._links.ended()
        self._report.seconds += time.monotonic() - begun_s
        log.info("round", **self._report.to_dict())

    def _trainer(self, name: str, rng: random.Random, step_s: float) -> Trainer:
        job = replace(self._job, name=name)
        out = self._settings.directory / name
        return Trainer(
            job,
            self._fleet.addresses,
            TRANSPORTS,
            out,
            epochs=self._epochs,
            step_s=step_s,
            rng=rng,
            environment=self._fleet.environment,
        )

    def _follow(self, trainer: Trainer, storm: Storm | None) -> None:
        """Until all ranks are done."""
        deadline_s = time.monotonic() + 12 * self._settings.round_s + 300.0
        moved: dict[int, int] = {}
        look_s = 0.0
        while not trainer.done:
            trainer.poll(TURN_S)
            if storm is not None:
                storm.turn(begin=STORM_BEGINS < trainer.progress < STORM_ENDS)
                if time.monotonic() >= look_s:
                    look_s = time.monotonic() + 2.0
                    self._look(trainer.job.name, moved)
            if time.monotonic() > deadline_s:
                raise WaitTimeout(
                    f"job {trainer.job.name} has come to {trainer.progress:.0%} only; see {self._fleet.directory}"
                )
        self._report.lanes_moved += sum(moved.values())

    def _look(self, job: str, moved: dict[int, int]) -> None:
        """Note how many lanes each attempt has moved, if a coordinator tells."""
        for member in self._fleet.coordinators:
            try:
                view = _ask(self._fleet, f"{member.admin_address}/api/jobs/{job}")
            except OSError:  # killed, paused, or not there yet
                continue
            moved[view["attempt"]] = max(view["lanes_moved"], moved.get(view["attempt"], 0))
            return

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, name: str, attempts: Sequence[Sequence[Journal]]) -> None:
        """Exactly once at the commit, and every batch, also one that was undone, the same as in the undisturbed run."""
        standing, undone = kept(attempts)
        audits = audit(standing, self._epochs, self._settings.samples, 0)
        if bad := [each for each in audits if not each.clean]:
            raise ChaosFailed(f"the audit of {name} is not clean: {bad}")
        batches = self._settings.samples // self._settings.batch_size
        for journals in attempts:
            for taken in (taken for journal in journals for taken in journal.taken):
                wanted = self._hashes.get((taken.epoch, taken.batch), taken.digest)
                if taken.digest != wanted and taken.batch < batches:
                    raise ChaosFailed(
                        f"batch {taken.batch} of epoch {taken.epoch} in {name} differs from the undisturbed run's"
                    )
        if self._hashes:
            self._report.epochs_audited += len(audits)
            self._report.batches += sum(map(len, standing))
            self._report.undone += undone

    def _measure(self, role: str = "") -> Measure:
        """All services, or those of one role."""
        return measure({each.name: each.running.pid for each in self._fleet.members() if each.name.startswith(role)})

    def _resting(self) -> Measure:
        """The fleet once what ranks had has been given back."""
        return resting(self._measure, quiet_s=REST_S, deadline_s=REST_DEADLINE_S)

    def _find_leaks(self, journals: Sequence[Journal]) -> None:
        assert self._rest is not None
        leaks: list[Leak] = []
        for role in ("store", "coordinator", "worker"):
            leaks += settled(lambda role=role: self._measure(role), self._rest, ALLOWED[role], deadline_s=REST_DEADLINE_S)  # type: ignore[misc]
        for rank, (journal, rest) in enumerate(zip(journals, self._rank_rest, strict=True)):
            for kind, before in rest.items():
                after = (journal.left or {}).get(kind, 0)
                if after - before > getattr(ALLOWED["rank"], kind):
                    leaks.append(Leak(f"rank-{rank}", kind, before, after, "after its stream was closed"))
        self._report.processes_measured += len(self._rest.processes) + len(journals)
        if leaks:
            raise ChaosFailed("not given back after the storm: " + "; ".join(map(str, leaks)))
