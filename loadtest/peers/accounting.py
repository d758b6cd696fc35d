"""CPU and memory of a tree of processes, from /proc; with children that have ended, and those that their parents left behind.

The harness is made the reaper of all that it starts, so a process whose parent ends becomes the harness's child, and everything
below the harness belongs to the loader that is being measured: one runs at a time.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
_END_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Stat:
    """A process at a moment. own_s: CPU seconds of all its threads; ended_s: of its children that were waited for."""

    pid: int
    parent: int
    own_s: float
    ended_s: float


def parse_stat(text: str) -> Stat:
    """From /proc/PID/stat; the name in it may hold spaces and parentheses."""
    pid, _, rest = text.partition(" ")
    fields = rest.rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(value) * TICK_S for value in fields[11:15])
    return Stat(int(pid), int(fields[1]), user + system, ended_user + ended_system)


def below(stats: Iterable[Stat], root: int) -> list[Stat]:
    """All descendants of `root`, without it."""
    children: dict[int, list[Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    found, todo = [], [root]
    while todo:
        below_it = children.get(todo.pop(), [])
        found += below_it
        todo += [stat.pid for stat in below_it]
    return found


def parse_pss(text: str) -> int:
    """Bytes, from /proc/PID/smaps_rollup: private pages, and of shared ones this process's share."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def read_stats() -> list[Stat]:
    """Of all processes that can be seen."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                found.append(parse_stat((entry / "stat").read_text(errors="replace")))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def adopt_orphans() -> None:
    """Make this process the reaper of what it starts."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of all below the harness. ended_s: of those that have ended. own_s: by process that lives."""

    ended_s: float
    own_s: dict[int, float]

    @property
    def total_s(self) -> float:
        """All together; never falls."""
        return self.ended_s + sum(self.own_s.values())


def usage() -> Usage:
    """Now."""
    stats = below(read_stats(), os.getpid())
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended_s = mine.ru_utime + mine.ru_stime + sum(stat.ended_s for stat in stats)
    return Usage(ended_s, {stat.pid: stat.own_s for stat in stats})


def pss_bytes() -> int:
    """Memory of all below the harness, each shared page once."""
    total = 0
    for stat in below(read_stats(), os.getpid()):
        try:
            total += parse_pss((PROC / str(stat.pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return total


def end_all() -> None:
    """Kill whatever is still below the harness, and wait for it."""
    end_s = time.monotonic() + _END_DEADLINE_S
    while left := below(read_stats(), os.getpid()):
        for stat in left:
            try:
                os.kill(stat.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if time.monotonic() > end_s:
            raise TimeoutError(f"{len(left)} processes do not end: {[stat.pid for stat in left]}")
        time.sleep(0.02)
