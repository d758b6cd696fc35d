"""One line of `headrace doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

# ok: nothing to do. note: a job runs, slower or with less. bad: no job can run.
State = Literal["ok", "note", "bad"]
Role = Literal["all", "worker", "trainer"]


@dataclass(frozen=True, slots=True)
class Finding:
    """subject: a group of lines. found: what is there. advice: what to install or do, as a sentence; empty where nothing is.

    of: whose it is: what keeps a worker from running is a trainer's affair only as far as its sockets go.
    """

    subject: str
    name: str
    state: State
    found: str
    advice: str = ""
    of: Role = "all"


def for_role(findings: Iterable[Finding], role: Role) -> list[Finding]:
    """The same as that role sees them: what is bad for the other alone is a note."""
    seen = []
    for finding in findings:
        others = role != "all" and finding.of not in ("all", role)
        seen.append(replace(finding, state="note") if others and finding.state == "bad" else finding)
    return seen
