"""What happened in a run: the last events for a person, all of them in one hash to compare runs by, and counts."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn

from structlog import DropEvent

from headrace.testing.simulation.loop import HOST

KEPT = 400
# Log events that only a defect of ours gives.
DEFECTS = frozenset({"call_failed", "producer_bug", "intake_failed", "local_admit_failed", "callback_failed"})


class Violation(Exception):
    """A promise was broken. name: of the invariant."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Trace:
    """clock: simulated seconds. on_defect: called with what a log says that only a defect gives."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)
        self._last: deque[str] = deque(maxlen=KEPT)
        self.count = 0
        self.faults: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.violation: Violation | None = None

    def note(self, event: str, **ids: object) -> None:
        """One line."""
        host = HOST.get()
        told = " ".join(f"{key}={value}" for key, value in ids.items())
        line = f"{self._clock():9.4f} {host.name if host else '-':<10} {event} {told}"
        self._hash.update(line.encode())
        self._last.append(line)
        self.count += 1

    def fault(self, kind: str, **ids: object) -> None:
        """A fault was injected."""
        self.faults[kind] += 1
        self.note(f"FAULT {kind}", **ids)

    def broken(self, name: str, text: str) -> NoReturn:
        """Note that an invariant does not hold; the run ends at its next step, whoever catches this."""
        violation = Violation(name, text)
        self.violation = self.violation or violation
        raise violation

    def log(self, _: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        """A structlog processor: logs of the real code are part of the trace."""
        name = str(event.pop("event"))
        error = event.pop("exc_info", None)
        self.note(name, **event)
        host = HOST.get()
        if (error or name in DEFECTS) and (host is None or host.alive) and self.violation is None:
            self.violation = Violation("no_defect", f"{name} {event} {error!r}")
        raise DropEvent

    def last(self, count: int) -> list[str]:
        """The newest lines."""
        return list(self._last)[-count:]

    @property
    def digest(self) -> str:
        """Equal for equal runs."""
        return self._hash.hexdigest()
