"""Callers that a replica keeps turning away for a token or for TLS: what the status page says of them. One event loop."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

RECENT_S = 300.0
# A few may be somebody's mistakes at a keyboard; a program with a wrong secret tries again every second.
_TOLD_FROM = 10
_MOST_HELD = 1000

ADMIN, TLS = "admin_unauthenticated", "tls"
_SENTENCES = {
    "unauthenticated": "{count} calls of trainers or workers were refused in {minutes:.0f} minutes since their token is "
    "missing or wrong: give them the one that the coordinators have",
    ADMIN: "{count} requests to the admin API were refused in {minutes:.0f} minutes since their token is missing or wrong: "
    "commands take it from HEADRACE_ADMIN_TOKEN_FILE",
    TLS: "{count} connections to the admin address failed in their TLS handshake in {minutes:.0f} minutes ({text}): whoever "
    "scrapes or asks must speak TLS and trust the coordinators' CA",
}


class Refusals:
    """See the module. Remembers the last thousand."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._held: deque[tuple[float, str]] = deque(maxlen=_MOST_HELD)
        self._texts: dict[str, str] = {}

    def note(self, code: str, text: str = "") -> None:
        """A call was answered with an error of this code."""
        if code in _SENTENCES:
            self._held.append((self._clock_s(), code))
            self._texts[code] = text

    def troubles(self) -> list[str]:
        """A sentence on each kind of which there were many of late."""
        since_s = self._clock_s() - RECENT_S
        counts = Counter(code for at_s, code in self._held if at_s >= since_s)
        return [
            sentence.format(count=counts[code], minutes=RECENT_S / 60, text=self._texts.get(code, ""))
            for code, sentence in _SENTENCES.items()
            if counts[code] >= _TOLD_FROM
        ]
