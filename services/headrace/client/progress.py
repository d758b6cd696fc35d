"""What a rank has done, as the numbers that it reports. Written by the trainer's thread, read by `headrace-control`."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from headrace.core.bad_share import first_keys
from headrace.core.starvation import CAUSES

MAX_BAD_PER_REPORT = 1000
MAX_KEY_CHARS_PER_REPORT = 500_000  # a report must fit a message of 4 MiB in any script
MAX_BAD_HELD = 100_000  # while no coordinator answers; what comes on top is in the counts alone


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad sample of a batch that was handed over."""

    epoch: int
    sample: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Totals of the session at one moment.

    wait_s: of the batches handed over, the sum of its parts. waiting_s: spent so far on the batch that is not here yet.
    bad_counts: by reason. bad: the first of those that no answered report has carried, at most 1000.
    """

    consumed: int
    committed: int
    images: int
    bad_counts: dict[str, int]
    wait_s: float
    wait_by_cause: dict[str, float]
    waiting_s: float
    elapsed_s: float
    transports: frozenset[str]
    bad: tuple[Bad, ...]
    bad_left: int

    @property
    def substituted(self) -> int:
        """Bad samples in all."""
        return sum(self.bad_counts.values())

    @property
    def transport(self) -> str:
        """`shm`, `grpc`, ..., `mixed`, or empty before the first batch."""
        return "mixed" if len(self.transports) > 1 else next(iter(self.transports), "")


class Progress:
    """Totals of one session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._consumed = 0
        self._committed = 0
        self._images = 0
        self._bad_counts = Counter[str]()
        self._wait_by_cause = dict.fromkeys(CAUSES, 0.0)
        self._first_ask_s: float | None = None
        self._waiting_since_s: float | None = None
        self._waited_in_vain_s = 0.0
        self._transports: set[str] = set()
        self._bad: deque[Bad] = deque()
        self.first_bad: tuple[str, ...] = ()
        # Of the engine that makes this session's batches, once one is here and the job had none when the session formed.
        self.fingerprint = ""

    def wait_begins(self, now_s: float) -> None:
        """The trainer is blocked in next() from now on."""
        with self._lock:  # or a snapshot could see the wait and not its beginning
            if self._first_ask_s is None:
                self._first_ask_s = now_s
            self._waiting_since_s = now_s

    def wait_ends(self, now_s: float) -> None:
        """The trainer is not blocked any more, and got no batch."""
        with self._lock:
            if self._waiting_since_s is not None:
                self._waited_in_vain_s += now_s - self._waiting_since_s
            self._waiting_since_s = None

    @property
    def waiting_since_s(self) -> float | None:
        """CLOCK_MONOTONIC since when the trainer is blocked, None while it is not."""
        return self._waiting_since_s

    def pressing(self, recorded: int) -> bool:
        """True if something is to be told soon: a commit above `recorded`, a bad sample, or that the trainer waits."""
        return self._committed != recorded or bool(self._bad) or self._waiting_since_s is not None

    def handed_over(self, images: int, transport: str, wait_by_cause: Mapping[str, float], bad: list[Bad]) -> None:
        """One more batch is the trainer's, which so is not blocked any more."""
        with self._lock:
            self._consumed += 1
            self._waiting_since_s = None
            self._waited_in_vain_s = 0.0
            self._images += images
            self._transports.add(transport)
            if bad:
                self._bad_counts.update(each.reason for each in bad)
                self.first_bad = first_keys(self.first_bad, (each.key for each in bad))
                self._bad.extend(bad[: MAX_BAD_HELD - len(self._bad)])
            for cause, seconds in wait_by_cause.items():
                if seconds:
                    self._wait_by_cause[cause] += seconds

    @property
    def consumed(self) -> int:
        """Batches handed over so far, which is the next one's index."""
        return self._consumed

    def bad_share(self) -> tuple[int, int]:
        """(samples handed over, bad ones among them). For the trainer's thread."""
        return self._images, self._bad_counts.total()

    def commit(self) -> int:
        """All that was handed over is committed; returns that count."""
        with self._lock:
            self._committed = self._consumed
            return self._committed

    def snapshot(self) -> Snapshot:
        """Totals now."""
        with self._lock:
            now_s = time.monotonic()
            elapsed_s = 0.0 if self._first_ask_s is None else now_s - self._first_ask_s
            running_s = 0.0 if self._waiting_since_s is None else max(0.0, now_s - self._waiting_since_s)
            bad = _portion(self._bad)
            return Snapshot(
                consumed=self._consumed,
                committed=self._committed,
                images=self._images,
                bad_counts=dict(self._bad_counts),
                wait_s=math.fsum(self._wait_by_cause.values()),
                wait_by_cause=dict(self._wait_by_cause),
                waiting_s=self._waited_in_vain_s + running_s,
                elapsed_s=elapsed_s,
                transports=frozenset(self._transports),
                bad=bad,
                bad_left=len(self._bad) - len(bad),
            )

    def answered(self, snapshot: Snapshot) -> None:
        """The coordinator has recorded a snapshot: its bad samples are told. Called by one thread at a time."""
        with self._lock:
            for _ in snapshot.bad:
                self._bad.popleft()


def _portion(held: deque[Bad]) -> tuple[Bad, ...]:
    """The first of them, as many as a report carries."""
    chars, portion = 0, list[Bad]()
    for bad in islice(held, MAX_BAD_PER_REPORT):
        chars += len(bad.key)
        if portion and chars > MAX_KEY_CHARS_PER_REPORT:
            break
        portion.append(bad)
    return tuple(portion)
