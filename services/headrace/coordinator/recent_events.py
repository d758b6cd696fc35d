"""What happened lately, as one replica saw it: lanes that moved, fences, workers that came and went, bad samples, trouble.

For the status page. A few hundred lines in memory, gone with the replica; the log has all of them. One event loop.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.core.events import BadSample, JobState, LaneMoved, Note
from headrace.core.records import WorkerRecord

MOST = 200
# A worker that dies moves all its lanes at once: that is one thing to tell, not hundreds.
TOGETHER_S = 10.0
_MOST_CHARS = 400
_LOOKED_BACK = 20

Level = Literal["info", "warning"]

# Moves that nobody asked for.
_TROUBLED_MOVES = frozenset({"lost", "unable", "unreached", "lagged"})
_NOTES: Mapping[str, str] = {
    "job_opened": "opened with {samples} samples in batches of {batch_size}",
    "session_formed": "attempt {attempt} began with {world} ranks in epoch {epoch} at batch {first}",
    "session_healed": "attempt {attempt} was told again by a rank: the store had lost it",
    "session_stops_for_bad_samples": "too many bad samples: all ranks stop",
    "fingerprint_pinned": "bound to engine {fingerprint}",
    "window_raised": "window raised to {window} batches",
    "lease_renewed": "lane {lane} fenced with a new token: a rank knew one that the store had lost",
    "lease_adopted": "lane {lane} was told again by {worker}: the store had lost its lease",
}
_TROUBLED_NOTES = frozenset({"session_healed", "session_stops_for_bad_samples", "lease_renewed", "lease_adopted"})


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """Something that happened. at_s: since 1970, by this replica's clock. job: empty if it concerns none.

    count: how often it happened within seconds; `text` is of the last time.
    """

    at_s: float
    level: Level
    kind: str
    job: str
    text: str
    count: int = 1


class RecentEvents:
    """See the module."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._events: deque[tuple[tuple[str, ...], RecentEvent]] = deque(maxlen=MOST)
        self._live: dict[str, str] | None = None  # worker -> incarnation, at the last look
        self._heard: dict[str, str] = {}  # likewise, while blind
        self._draining: set[str] = set()

    def add(self, kind: str, text: str, *, job: str = "", level: Level = "info", group: str = "", times: int = 1) -> None:
        """Note one, or `times` of them: together with one of the same kind, job and group of some seconds ago."""
        key, now_s = (kind, job, group), self._clock_s()
        event = RecentEvent(now_s, level, kind, job, text[:_MOST_CHARS], times)
        for back in range(1, min(_LOOKED_BACK, len(self._events)) + 1):
            known, before = self._events[-back]
            if known == key and 0 <= now_s - before.at_s < TOGETHER_S:
                self._events[-back] = key, replace(event, count=before.count + times)
                return
        self._events.append((key, event))

    def newest(self) -> list[RecentEvent]:
        """All that are kept, newest first."""
        return sorted((event for _, event in self._events), key=lambda event: -event.at_s)

    # --- what others tell ---------------------------------------------------------------------------------------------

    def lanes_moved(self, job: str, moves: Sequence[LaneMoved]) -> None:
        """Lanes went from one worker to another for one reason, by this replica's hand."""
        moved = moves[0]
        level: Level = "warning" if moved.reason in _TROUBLED_MOVES else "info"
        lanes = f"lane {moved.lane}" if len(moves) == 1 else f"lane {moved.lane} and {len(moves) - 1} more"
        text = f"{lanes} moved from {moved.owner} to {moved.to}: {moved.reason}"
        self.add("lanes_moved", text, job=job, level=level, group=f"{moved.owner} {moved.reason}", times=len(moves))

    def noted(self, job: str, note: Note) -> None:
        """A line that the rules want told."""
        ids = dict(note.ids)
        if "fingerprint" in ids:
            ids["fingerprint"] = str(ids["fingerprint"]).partition(";")[0]
        sentence = _NOTES.get(note.event, " ".join(f"{name}={{{name}}}" for name in ids))
        text = sentence.format_map(defaultdict(lambda: "?", ids))
        level: Level = "warning" if note.event in _TROUBLED_NOTES else "info"
        self.add(note.event, text, job=job, level=level)

    def bad_samples(self, job: str, samples: tuple[BadSample, ...]) -> None:
        """A rank met bad samples."""
        for bad in samples[:MOST]:
            text = f"sample {bad.sample} ({bad.key}) could not be used: {bad.reason}"
            self.add("bad_sample", text, job=job, level="warning", group=bad.reason)

    def job_changed(self, before: JobState | None, after: JobState) -> None:
        """A new snapshot of a job: tells workers that were barred since, whichever replica did it."""
        if before is None or before.session is None or after.session is None:
            return
        if before.session.barred == after.session.barred:
            return
        known = {(incarnation, group, times) for incarnation, group, _, times in before.session.barred}
        names = {worker.endpoint.incarnation: name for name, worker in after.workers.items()}
        for incarnation, group, _, times in after.session.barred:
            if (incarnation, group, times) not in known:
                name = names.get(incarnation, incarnation)
                text = f"{name} gets no lanes of rank group {group} for a while: a rank could not use it (time {times})"
                self.add("worker_barred", text, job=after.name, level="warning", group=name)

    def workers_seen(self, workers: Mapping[str, WorkerRecord], now_us: int, blind: bool = False) -> None:
        """The fleet at a moment: tells who came, went silent, or drains since the last time.

        blind: silence says nothing at that moment. Who was heard before the first look that was not is known to it.
        """
        live = {name: worker.endpoint.incarnation for name, worker in workers.items() if worker.alive(now_us)}
        if blind:
            self._heard.update(live)
            return
        if self._live is None and self._heard:
            self._live = {**live, **self._heard}
        self._heard = {}
        draining = {name for name in live if workers[name].draining}
        if self._live is not None:
            for name in live.keys() - self._live.keys():
                self.add("worker_joined", f"{name} serves, on {workers[name].endpoint.node}", group=name)
            for name in self._live.keys() & live.keys():
                if self._live[name] != live[name]:
                    self.add("worker_joined", f"{name} serves as a new process, on {workers[name].endpoint.node}", group=name)
            for name in sorted(draining - self._draining):
                self.add("worker_draining", f"{name} drains: it hands its lanes over and ends", group=name)
            for name in sorted(self._live.keys() - live.keys()):
                if name in self._draining:
                    self.add("worker_left", f"{name} ended after draining", group=name)
                else:
                    self.add("worker_silent", f"{name} sends no heartbeats: its lanes move", level="warning", group=name)
        self._live, self._draining = live, draining
