"""A seeded storm: which fault begins when, on whom, and how it ends again. It never waits, so that faults overlap."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from headrace.core.errors import PeerGone
from headrace.testing.append_only import cut_since
from headrace.testing.chaos.links import AT_ONCE, BAD, Links, kind_of
from headrace.testing.chaos.trainer import Trainer
from headrace.testing.cluster import Cluster, Member
from headrace.testing.leaks import fetchers_of

log = structlog.get_logger()

SHORTEST_S = 0.3
DRAIN_S = 45.0
_LOOK_AGAIN_S = 0.3


@dataclass(frozen=True, slots=True)
class Weather:
    """gap_s: mean pause between two beginnings. longest_s: of a fault, past leases and claims. at_once: most at a time."""

    gap_s: float = 1.2
    longest_s: float = 8.0
    at_once: int = 3


@dataclass(slots=True)
class _Fault:
    """One that goes on. heal: ends it; False while that takes longer, and it is asked again."""

    kind: str
    target: str
    due_s: float
    heal: Callable[[], bool]


class Storm:
    """See the module. Call `turn` often. counts: faults begun, by kind. bytes_forgotten: by the store."""

    def __init__(self, fleet: Cluster, links: Links, trainer: Trainer, rng: random.Random, weather: Weather) -> None:
        self._fleet = fleet
        self._links = links
        self._trainer = trainer
        self._rng = rng
        self._weather = weather
        self._going_on: list[_Fault] = []
        self._next_s = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.bytes_forgotten = 0
        workers, coordinators = fleet.workers, fleet.coordinators
        self._kinds: Mapping[str, Callable[[str], _Fault | None]] = {
            "worker killed": lambda kind: self._kill(kind, rng.choice(workers)),
            "worker paused": lambda kind: self._pause(kind, rng.choice(workers)),
            "worker drained": lambda kind: self._drain(kind, rng.choice(workers)),
            "coordinator killed": lambda kind: self._kill(kind, rng.choice(coordinators)),
            "coordinator paused": lambda kind: self._pause(kind, rng.choice(coordinators)),
            "coordinator drained": lambda kind: self._drain(kind, rng.choice(coordinators)),
            "store killed": lambda kind: self._kill(kind, fleet.store),
            "store paused": lambda kind: self._pause(kind, fleet.store),
            "store loses its last second": self._forget,
            "trainer killed": self._kill_trainer,
            "rank paused": self._pause_rank,
            "fetcher killed": self._kill_fetcher,
            # As often as all of a service's faults: there are many ways.
            "link": self._bad_link,
            "link again": self._bad_link,
            "link once more": self._bad_link,
        }
        if fleet.secured is not None:
            self._kinds = {**self._kinds, "certificates renewed": self._renew}

    @property
    def calm(self) -> bool:
        """Whether no fault goes on."""
        return not self._going_on

    def turn(self, begin: bool) -> None:
        """End what is due, and begin what is, if `begin`. Raises PeerGone if a service ended that nobody asked to."""
        now_s = time.monotonic()
        for fault in [fault for fault in self._going_on if fault.due_s <= now_s]:
            if fault.heal():
                self._going_on.remove(fault)
            else:
                fault.due_s = now_s + _LOOK_AGAIN_S
        self._all_live()
        if begin and now_s >= self._next_s and len(self._going_on) < self._weather.at_once:
            self._next_s = now_s + self._rng.expovariate(1 / self._weather.gap_s)
            kind = self._rng.choice(list(self._kinds))
            begun = self._kinds[kind](kind)
            if begun is not None:
                self.counts[begun.kind] += 1
                self._going_on.append(begun)
                log.info("fault", kind=begun.kind, target=begun.target, for_s=round(begun.due_s - now_s, 2))

    def _all_live(self) -> None:
        touched = {fault.target for fault in self._going_on}
        for member in self._fleet.members():
            if member.name not in touched and not member.running.alive:
                raise member.ended("ended by itself with")

    def _begin(self, kind: str, target: str, heal: Callable[[], bool], at_once: bool = False) -> _Fault:
        for_s = 0.0 if at_once else self._rng.uniform(SHORTEST_S, self._weather.longest_s)
        return _Fault(kind, target, time.monotonic() + for_s, heal)

    def _busy(self, target: str) -> bool:
        return any(fault.target == target for fault in self._going_on)

    # --- services -----------------------------------------------------------------------------------------------------

    def _kill(self, kind: str, member: Member) -> _Fault | None:
        if self._busy(member.name):
            return None
        member.kill()
        return self._begin(kind, member.name, lambda: self._start(member))

    def _pause(self, kind: str, member: Member) -> _Fault | None:
        if self._busy(member.name):
            return None
        member.kill(signal.SIGSTOP)

        def heal() -> bool:
            member.kill(signal.SIGCONT)
            return True

        return self._begin(kind, member.name, heal)

    def _drain(self, kind: str, member: Member) -> _Fault | None:
        if self._busy(member.name):
            return None
        member.kill(signal.SIGTERM)
        begun_s = time.monotonic()

        def heal() -> bool:
            if member.running.alive:
                if time.monotonic() - begun_s > DRAIN_S:
                    raise PeerGone(f"{member.name} did not drain in {DRAIN_S:g} s; see {member.log}")
                return False
            if member.running.popen.returncode not in (0, -signal.SIGTERM):  # the latter: told before it listened to signals
                raise member.ended("drained with exit code")
            return self._start(member)

        return self._begin(kind, member.name, heal)

    def _forget(self, kind: str) -> _Fault | None:
        store = self._fleet.store
        if self._busy(store.name):
            return None
        killed_s = int(time.time())
        store.kill()
        self.bytes_forgotten += cut_since(self._fleet.store_dir, killed_s - 1)
        return self._begin(kind, store.name, lambda: self._start(store))

    def _renew(self, kind: str) -> _Fault | None:
        """As a secret's rotation does; whoever is there goes on, whoever comes shows the new one."""
        assert self._fleet.secured is not None
        who = self._rng.choice(["services", "trainers"])
        self._fleet.secured.renew(who)
        return self._begin(kind, who, lambda: True, at_once=True)

    @staticmethod
    def _start(member: Member) -> bool:
        member.start()
        return True

    # --- the trainer --------------------------------------------------------------------------------------------------

    def _kill_trainer(self, kind: str) -> _Fault | None:
        if self._busy("trainer") or self._trainer.done:
            return None
        self._trainer.kill()

        def heal() -> bool:
            self._trainer.start()
            return True

        return self._begin(kind, "trainer", heal)

    def _pause_rank(self, kind: str) -> _Fault | None:
        if self._busy("trainer"):
            return None
        rank = self._rng.choice(self._trainer.ranks)
        rank.send_signal(signal.SIGSTOP)

        def heal() -> bool:
            rank.send_signal(signal.SIGCONT)
            return True

        return self._begin(kind, "trainer", heal)

    def _kill_fetcher(self, kind: str) -> _Fault | None:
        alive = [rank for rank in self._trainer.ranks if rank.poll() is None]
        fetchers = [child for rank in alive for child in fetchers_of(rank.pid)]
        if self._busy("trainer") or not fetchers:
            return None
        child = self._rng.choice(fetchers)
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:  # its rank ended it meanwhile
            return None
        return self._begin(kind, f"fetcher {child}", lambda: True, at_once=True)

    # --- links --------------------------------------------------------------------------------------------------------

    def _bad_link(self, _: str) -> _Fault | None:
        pair = self._rng.choice(self._links.of_kind(self._rng.choice(self._links.kinds())))
        target, way = " to ".join(pair), self._rng.choice(list(BAD))
        if self._busy(target):
            return None
        proxy = self._links.proxies[pair]
        BAD[way](proxy, pair, self._rng)

        def heal() -> bool:
            proxy.heal()
            return True

        return self._begin(f"{kind_of(pair)} link {way}", target, heal, way in AT_ONCE)
