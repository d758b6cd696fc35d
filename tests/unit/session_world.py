"""One job under the rules, with a clock: what the tests of joining, reports and ticks share."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.events import (
    Event,
    JobState,
    Join,
    Joined,
    LaneMoved,
    Open,
    Progress,
    Refuse,
    Rules,
    Tick,
)
from headrace.core.job import Endpoint, JobSpec, Session
from headrace.core.records import LaneRecord, WorkerRecord
from headrace.core.session_state import apply

# 4000 samples in batches of 64: 62 full batches, 12 lanes.
SPEC = JobSpec("job", "/data", 64, manifest_hash="aa", samples=4000)
RULES = Rules()
S = 1_000_000
NOW = 1_700_000_000 * S


class World:
    """One job under the rules, with a clock."""

    def __init__(self, spec: JobSpec = SPEC, rules: Rules = RULES) -> None:
        self.state = JobState(spec.name)
        self.now_us = NOW
        self.rules = rules
        self.spec = spec
        self.effects: list[object] = []

    def do(self, event: Event) -> list[object]:
        self.state, effects = apply(self.state, event, self.now_us, self.rules)
        self.effects = list(effects)
        for effect in effects:
            if isinstance(effect, Refuse):
                raise effect.error
        return self.effects

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * S)

    def open(self, world: int = 2, **change: object) -> None:
        self.do(Open(replace(self.spec, **change), world))  # type: ignore[arg-type]

    def join(self, rank: int, world: int = 2, attempt: int = 0, nonce: str = "", **more: object) -> Joined:
        values: dict[str, object] = {"state": None, "plan_hash": "", "epochs": 0, "node": "n0", "slot_bytes": 1000, **more}
        event = Join(attempt=attempt, rank=rank, world=world, nonce=nonce or f"n{rank}", **values)  # type: ignore[arg-type]
        return next(effect for effect in self.do(event) if isinstance(effect, Joined))

    def form(self, world: int = 2, attempt: int = 0, suffix: str = "", **more: object) -> Session:
        for rank in range(world):
            answer = self.join(rank, world, attempt, f"n{rank}{suffix}", **more)
        assert answer.session is not None
        return answer.session

    def report(
        self, rank: int, consumed: int, committed: int = 0, *, attempt: int = 1, nonce: str = "", known: Session | None = None
    ) -> None:
        self.do(Progress(attempt, rank, nonce or f"n{rank}", known, consumed, committed, elapsed_s=consumed))

    def add(self, name: str, **change: object) -> None:
        endpoint = Endpoint(name, f"{name}-1", "n0", f"{name}:1", "")
        worker = WorkerRecord(endpoint, "fp", SPEC.pipeline.op_names, 0.0, 1, False, self.now_us + 3 * S)
        self.state = replace(self.state, workers={**self.state.workers, name: replace(worker, **change)})  # type: ignore[arg-type]

    def tick(self) -> list[object]:
        return self.do(Tick(1000))

    def owners(self) -> list[str]:
        return [self.state.lanes.get(n, LaneRecord()).owner for n in range(12)]


def served(*names: str, size: int = 2) -> World:
    """A session whose lanes these workers hold."""
    world = World()
    world.open(size)
    for name in names:
        world.add(name)
    world.form(size)
    world.tick()
    return world


def moves_of(world: World, blind: bool = False) -> list[LaneMoved]:
    return [effect for effect in world.do(Tick(1000, blind=blind)) if isinstance(effect, LaneMoved)]


def in_all_states(now_us: int) -> dict[str, WorkerRecord]:
    """Workers that serve, drain, drained and left, and fell silent; each named as a person is told."""
    world = World()
    world.now_us = now_us
    for name, (draining, alive) in {
        "serves": (False, True), "drains": (True, True), "has-left": (True, False), "silent": (False, False)
    }.items():  # fmt: skip
        world.add(name, draining=draining, alive_until_us=now_us + (60 * S if alive else -S))
    return dict(world.state.workers)
