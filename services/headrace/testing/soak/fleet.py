"""The soak's fleet and the faults that it suffers; some members last, the others come and go."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import structlog

from headrace.testing.cluster import Cluster, Member
from headrace.testing.leaks import fetchers_of
from headrace.testing.soak.plan import Fault
from headrace.testing.soak.training import Training

log = structlog.get_logger()

WORKERS, COORDINATORS = 3, 2
DRAIN_S = 45.0


class Fleet:
    """worker-0, coordinator-0 and the store's data last. counts: faults that took place, by kind."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.cluster = Cluster(directory, coordinators=COORDINATORS, workers=WORKERS)
        self.counts: Counter[str] = Counter()
        self.marks: list[tuple[float, str]] = []
        self._rng = random.Random(f"{seed}:targets")  # noqa: S311

    def pids(self) -> dict[str, int]:
        """Living members by name."""
        return {member.name: member.running.pid for member in self.cluster.members() if member.process and member.running.alive}

    def inflict(self, fault: Fault, lasting: Training) -> None:
        """Begin a fault, hold it, and end it. Blocks; any thread. Raises PeerGone, WaitTimeout."""
        time.sleep(fault.after_s)
        others = self._rng.choice(self.cluster.workers[1:])
        kinds: dict[str, Callable[[], None]] = {
            "worker killed": lambda: self._kill(others, fault.hold_s),
            "worker drained": lambda: self._drain(others, fault.hold_s),
            "worker paused": lambda: self._pause(others, fault.hold_s),
            "lasting worker paused": lambda: self._pause(self.cluster.workers[0], fault.hold_s),
            "coordinator killed": lambda: self._kill(self.cluster.coordinators[1], fault.hold_s),
            "coordinator drained": lambda: self._drain(self.cluster.coordinators[1], fault.hold_s),
            "lasting coordinator paused": lambda: self._pause(self.cluster.coordinators[0], fault.hold_s),
            "fetcher killed": lambda: self._kill_fetcher(lasting),
            "store restarted": lambda: self._kill(self.cluster.store, min(fault.hold_s, 2.0)),
        }
        self.counts[fault.kind] += 1
        self.marks.append((time.monotonic(), fault.kind))
        log.info("fault", kind=fault.kind, hold_s=fault.hold_s)
        kinds[fault.kind]()

    def check(self) -> None:
        """Raise PeerGone if a member has ended that should live."""
        for member in self.cluster.members():
            if not member.running.alive:
                raise member.ended("ended by itself with")

    @staticmethod
    def _kill(member: Member, hold_s: float) -> None:
        member.kill()
        time.sleep(hold_s)
        member.start()
        member.wait_ready()

    @staticmethod
    def _drain(member: Member, hold_s: float) -> None:
        member.kill(signal.SIGTERM)
        if member.running.wait(DRAIN_S):
            raise member.ended("drained with exit code")
        time.sleep(hold_s)
        member.start()
        member.wait_ready()

    @staticmethod
    def _pause(member: Member, hold_s: float) -> None:
        member.kill(signal.SIGSTOP)
        time.sleep(hold_s)
        member.kill(signal.SIGCONT)

    @staticmethod
    def _kill_fetcher(lasting: Training) -> None:
        for rank in lasting.ranks:
            for child in fetchers_of(rank.pid):
                os.kill(child, signal.SIGKILL)
