"""What a worker knows of one session: its plan, its leases, and what makes its batches.

Lives on the event loop thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from headrace.core.epoch_plan import BatchSamples, EpochPlan
from headrace.core.errors import HeadraceError
from headrace.core.job import Session
from headrace.core.session_plan import Position, SessionPlan
from headrace.wire import slot_format
from headrace.worker.engines.protocol import PreparedEngine
from headrace.worker.sources.protocol import Source

# Plans of the epochs at hand: the current one and the next, which runs ahead.
_EPOCH_PLANS_KEPT = 4
_BROKEN_KEPT = 1000
_SAMPLES_AT_ONCE = 512
_MOST_SAMPLES_AHEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Lease:
    """A lane held. since_s: CLOCK_MONOTONIC when it was first held under this token."""

    token: int
    since_s: float


@dataclass
class SessionWork:
    """One session. engine and source are shared by the sessions of a job (see worker.tools)."""

    session: Session
    engine: PreparedEngine
    source: Source
    leases: dict[int, Lease] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = SessionPlan(self.session)
        self._epochs: OrderedDict[int, EpochPlan] = OrderedDict()
        # What the lanes' next batches hold: planned for some at once, since each call costs more than its samples.
        self._ahead: OrderedDict[tuple[int, int], BatchSamples] = OrderedDict()
        job = self.session.job
        self.pixel_bytes = job.pipeline.pixel_bytes(job.batch_size)
        self.slot_bytes = slot_format.job_slot_bytes(job)

    def locate(self, rank: int, index: int) -> Position | None:
        """Where `index` of `rank` lies, or None past the session's end."""
        return self.plan.locate(rank, index)

    def batch_samples(self, position: Position) -> BatchSamples:
        """The samples of a batch."""
        plan = self._epochs.get(position.epoch)
        if plan is None:
            job = self.session.job
            plan = EpochPlan(job.samples, job.batch_size, job.seed, position.epoch, job.shuffle, job.tail)
            self._epochs[position.epoch] = plan
            if len(self._epochs) > _EPOCH_PLANS_KEPT:
                self._epochs.popitem(last=False)
        key = (position.epoch, position.batch)
        if key not in self._ahead:
            count = -(-_SAMPLES_AT_ONCE // plan.batch_size)
            found = plan.lane_samples(position.batch, count)
            self._ahead.update({(position.epoch, position.batch + n * plan.lanes): part for n, part in enumerate(found)})
        samples = self._ahead.pop(key)
        while len(self._ahead) * plan.batch_size > _MOST_SAMPLES_AHEAD:
            self._ahead.popitem(last=False)
        return samples

    def set_leases(self, lanes: dict[int, int]) -> bool:
        """Take over the coordinator's word on which lanes are held under which token. True if anything changed."""
        now = time.monotonic()
        kept = {
            lane: self.leases[lane] if lane in self.leases and self.leases[lane].token == token else Lease(token, now)
            for lane, token in lanes.items()
        }
        changed = kept != self.leases
        self.leases = kept
        return changed


class Sessions:
    """All sessions that a worker knows, and a wait for one that it has yet to hear of."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, int], SessionWork] = {}
        # Sessions that could not be opened here, and why; kept while their lanes are elsewhere, for those who ask meanwhile.
        self.broken: dict[tuple[str, int], HeadraceError] = {}
        self._changed = asyncio.Condition()

    def newest_attempt(self, job: str) -> int:
        """Highest attempt known of a job; 0: none."""
        return max((attempt for name, attempt in self.by_key if name == job), default=0)

    def token_hashes(self, job: str) -> tuple[str, ...]:
        """Hashes of a job's tokens, of its newest attempt that is known here; none for a job without, or unknown."""
        attempt = self.newest_attempt(job)
        return self.by_key[job, attempt].session.token_hashes if attempt else ()

    def mark_broken(self, key: tuple[str, int], error: HeadraceError) -> None:
        """Note why a session could not be opened; `put` forgets it."""
        self.broken.pop(key, None)
        self.broken[key] = error
        while len(self.broken) > _BROKEN_KEPT:
            del self.broken[next(iter(self.broken))]

    def forget_final(self, keys: set[tuple[str, int]]) -> None:
        """Of sessions with no lane here, keep only reasons that say to wait: if lanes come back, the opening is judged anew."""
        for key in keys:
            if not self.broken[key].retriable:
                del self.broken[key]

    async def put(self, work: SessionWork) -> None:
        """Add a session and wake those who wait for it."""
        async with self._changed:
            self.by_key[work.session.key] = work
            self.broken.pop(work.session.key, None)
            self._changed.notify_all()

    async def wait_for(self, key: tuple[str, int], deadline_s: float) -> SessionWork | None:
        """The session, waiting at most `deadline_s` for it to become known."""
        async with self._changed:
            try:
                async with asyncio.timeout(deadline_s):
                    await self._changed.wait_for(lambda: key in self.by_key)
            except TimeoutError:
                return None
            return self.by_key[key]
