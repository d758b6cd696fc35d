"""What ranks waited lately, and why, from the totals that they report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.events import JobState
from headrace.core.records import RankRecord
from headrace.core.starvation import CAUSES, starvation_ratio
from headrace.core.verdict import JobVerdict, RankWait, judge

# Points over which "recent" is told: ranks report every second or two, so that they span 30 to 60 s.
_RECENT_POINTS = 30
# Why it waited is kept each so many seconds only, for as long: eight numbers a point would add up over thousands of ranks.
_MARK_EACH_S = 10.0
_MARKS = 5

_Key = tuple[str, int, str]  # job, rank, nonce


class _Point(NamedTuple):
    elapsed_s: float
    waited_s: float
    consumed: int


class _Mark(NamedTuple):
    elapsed_s: float
    waits: dict[str, float]


class Recent:
    """What each rank waited, from the totals that it reports: the wait that goes on now is part of all of it."""

    def __init__(self) -> None:
        self._points: dict[_Key, deque[_Point]] = {}
        self._waits: dict[_Key, dict[str, float]] = {}
        self._marks: dict[_Key, deque[_Mark]] = {}
        self._unserved: set[str] = set()

    def note_lanes(self, state: JobState) -> None:
        """See whether ranks wait while a lane of their job is nobody's: for that lane, since all others go on."""
        waiting = any(record.waiting_s for record in state.members.values())
        if waiting and any(not lane.owner for lane in state.lanes.values()):
            self._unserved.add(state.name)
        else:
            self._unserved.discard(state.name)

    def note(self, job: str, rank: int, record: RankRecord) -> None:
        """Take a rank's newest totals."""
        key = job, rank, record.nonce
        points = self._points.setdefault(key, deque(maxlen=_RECENT_POINTS))
        if points and record.elapsed_s <= points[-1].elapsed_s:
            return
        if points and record.consumed and not points[-1].consumed:
            # The first batch is always waited for: once it is there, that is no recent time of the training any more.
            points.clear()
            self._marks.pop(key, None)
        points.append(_Point(record.elapsed_s, waited_s(record), record.consumed))
        waits = self._so_far(job, record)
        self._waits[key] = grown(self._waits.get(key, {}), waits)
        marks = self._marks.setdefault(key, deque(maxlen=_MARKS))
        if not marks or record.elapsed_s >= marks[-1].elapsed_s + _MARK_EACH_S:
            marks.append(_Mark(record.elapsed_s, waits))

    def ratio(self, job: str, rank: int, record: RankRecord) -> float:
        """0 is never, 1 is always."""
        points = self._points.get((job, rank, record.nonce))
        if not points or len(points) < 2:
            return 0.0 if record.consumed else starvation_ratio(waited_s(record), record.elapsed_s)
        return _ratio(points[0], points[-1])

    def wait(self, job: str, rank: int, record: RankRecord) -> RankWait:
        """What the rules of core.verdict want to know of a rank."""
        key = job, rank, record.nonce
        points, ratio = self._points.get(key), self.ratio(job, rank, record)
        now = self._so_far(job, record)
        if not points or len(points) < 2:
            return RankWait(rank, ratio, ratio, ratio, 0.0 if record.consumed else record.elapsed_s, now)
        first, middle, last = points[0], points[len(points) // 2], points[-1]
        halves = (_ratio(first, middle), _ratio(middle, last)) if first != middle != last else (ratio, ratio)
        mark = self._marks[key][0].waits
        waits = {cause: max(0.0, now.get(cause, 0.0) - mark.get(cause, 0.0)) for cause in CAUSES}
        return RankWait(rank, ratio, *halves, last.elapsed_s - first.elapsed_s, waits)

    def shares(self, job: str, rank: int, record: RankRecord) -> dict[str, float]:
        """Of its recent time, the share waited by cause; they add up to `ratio`."""
        wait = self.wait(job, rank, record)
        # Marks are fewer than points: what was waited before the first mark has the causes of all that it waited.
        waits = wait.waits if any(wait.waits.values()) else self._so_far(job, record)
        total = sum(waits.values())
        return {cause: wait.ratio * seconds / total for cause, seconds in waits.items() if seconds} if total else {}

    def waits(self, job: str, rank: int, record: RankRecord) -> dict[str, float]:
        """Seconds waited by cause; none of them ever goes back, and they add up to all that it waited."""
        return self._waits.get((job, rank, record.nonce), {})

    def keep(self, live: set[tuple[str, int, str]]) -> None:
        """Forget all others."""
        for key in self._points.keys() - live:
            del self._points[key], self._waits[key], self._marks[key]
        self._unserved &= {job for job, _, _ in live}

    def _so_far(self, job: str, record: RankRecord) -> dict[str, float]:
        return waits_so_far(record, job in self._unserved)


def judge_job(recent: Recent, job: JobState, now_us: int) -> JobVerdict:
    """What is said of a job by its live ranks."""
    return judge([recent.wait(job.name, rank, record) for rank, record in job.members.items() if record.alive(now_us)])


def _ratio(first: _Point, last: _Point) -> float:
    return starvation_ratio(last.waited_s - first.waited_s, last.elapsed_s - first.elapsed_s)


def waited_s(record: RankRecord) -> float:
    """Seconds waited, with those of the wait that goes on now."""
    return record.wait_s + record.waiting_s


def waits_so_far(record: RankRecord, unserved: bool = False) -> dict[str, float]:
    """The same by cause. Why a wait goes on is known for certain once its batch has come: until then, what it looks like.

    unserved: a lane of its job is nobody's.
    """
    waits = dict(record.waits)
    if record.waiting_s:
        unreached = any(not trouble.connected for trouble in record.troubles)
        cause = "lane_wait" if unreached or unserved else "worker_busy"
        waits[cause] = waits.get(cause, 0.0) + record.waiting_s
    return waits


def grown(before: Mapping[str, float], waits: Mapping[str, float]) -> dict[str, float]:
    """Counters that add up to the same as `waits` and come as near to it as they can without going back."""
    after = dict(before)
    due = max(0.0, sum(waits.values()) - sum(before.values()))
    short = {cause: seconds - before.get(cause, 0.0) for cause, seconds in waits.items() if seconds > before.get(cause, 0.0)}
    for cause, seconds in short.items():
        after[cause] = before.get(cause, 0.0) + seconds * min(1.0, due / sum(short.values()))
    return after
