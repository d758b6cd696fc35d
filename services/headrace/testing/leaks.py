"""Finds what processes do not give back: descriptors, threads, memory, shared memory, children, names in /dev/shm.

    before = measure({"worker-0": pid})       # after a first run: pools and caches are made once
    ...
    leaks = settled(lambda: measure({"worker-0": pid}), before, deadline_s=20)

Read from /proc (Linux), of any process of the same user. `trend` is for a long run: is a series of numbers rising?
"""

from __future__ import annotations

import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from headrace.core.errors import PeerGone

PROC = Path("/proc")
DEV_SHM = Path("/dev/shm")  # noqa: S108
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ProcessMeasure:
    """One process at one moment.

    descriptors: kind -> count; file, memfd, socket, pipe, device, and the kernel's names of others (eventpoll, ...).
    files: paths of open regular files. threads: name -> count. anonymous_bytes: resident memory that no file backs, so that
    pages of libraries, which come and go, do not disturb. shared_bytes: memfds and /dev/shm files held open or mapped.
    children: name of each, "(zombie)" after those that nobody has waited for.
    """

    pid: int
    descriptors: Mapping[str, int]
    files: tuple[str, ...]
    threads: Mapping[str, int]
    rss_bytes: int
    pss_bytes: int
    anonymous_bytes: int
    shared_bytes: int
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Several processes, by name, and what lies in /dev/shm."""

    processes: Mapping[str, ProcessMeasure]
    shm_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much more each process may have than before. Descriptors and threads are counted in all, not by kind.

    memory_bytes is for anonymous_bytes: an allocator keeps pages, so that this is never 0.
    """

    descriptors: int = 0
    threads: int = 0
    memory_bytes: int = 32 << 20
    shared_bytes: int = 0
    children: int = 0


@dataclass(frozen=True, slots=True)
class Leak:
    """What one process did not give back. kind: a field of Allowance, or shm_names. detail: which ones."""

    process: str
    kind: str
    before: int
    after: int
    detail: str

    def __str__(self) -> str:
        return f"{self.process}: {self.kind} {self.before} -> {self.after} ({self.detail})"


def measure(pids: Mapping[str, int], *, shm_ignore: Iterable[str] = ()) -> Measure:
    """Measure living processes. shm_ignore: patterns of names in /dev/shm that belong to others. Raises PeerGone."""
    kin = _children_by_parent()
    patterns = tuple(shm_ignore)
    names = frozenset(path.name for path in DEV_SHM.iterdir() if not any(fnmatch(path.name, each) for each in patterns))
    return Measure({name: _measure_one(name, pid, kin.get(pid, [])) for name, pid in pids.items()}, names)


def compare(before: Measure, after: Measure, allow: Allowance | None = None) -> list[Leak]:
    """What is there more than before, beyond the allowance; processes that are in one measure only are left out."""
    allow = allow or Allowance()
    found = []
    for name, now in after.processes.items():
        if (then := before.processes.get(name)) is not None:
            found += [leak for leak in _compare_one(name, then, now) if leak.after - leak.before > getattr(allow, leak.kind)]
    if new := sorted(after.shm_names - before.shm_names):
        found.append(Leak(str(DEV_SHM), "shm_names", len(before.shm_names), len(after.shm_names), ", ".join(new)))
    return found


def settled(
    take: Callable[[], Measure], before: Measure, allow: Allowance | None = None, *, deadline_s: float = 20.0
) -> list[Leak]:
    """Compare until nothing leaks any more, since things end in their own time; the last result at the deadline."""
    end_s = time.monotonic() + deadline_s
    while (leaks := compare(before, take(), allow)) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    return leaks


def resting(take: Callable[[], Measure], *, quiet_s: float, deadline_s: float) -> Measure:
    """What is left once nothing has been given back for `quiet_s`, or at the deadline: things end in their own time."""
    end_s = time.monotonic() + deadline_s
    rest, since_s = take(), time.monotonic()
    while time.monotonic() < min(end_s, since_s + quiet_s):
        time.sleep(_POLL_S)
        if compare(now := take(), rest):  # the other way round: what went
            rest, since_s = now, time.monotonic()
    return rest


def _compare_one(name: str, then: ProcessMeasure, now: ProcessMeasure) -> Iterator[Leak]:
    more = _more(then.descriptors, now.descriptors)
    if files := _more(Counter(then.files), Counter(now.files)):
        more += f"; {files}"
    yield Leak(name, "descriptors", sum(then.descriptors.values()), sum(now.descriptors.values()), more)
    yield Leak(name, "threads", sum(then.threads.values()), sum(now.threads.values()), _more(then.threads, now.threads))
    yield Leak(
        name,
        "memory_bytes",
        then.anonymous_bytes,
        now.anonymous_bytes,
        f"anonymous memory, {(now.anonymous_bytes - then.anonymous_bytes) / 2**20:+.1f} MiB",
    )
    yield Leak(
        name,
        "shared_bytes",
        then.shared_bytes,
        now.shared_bytes,
        f"memfds and /dev/shm, {(now.shared_bytes - then.shared_bytes) / 2**20:+.1f} MiB",
    )
    yield Leak(
        name,
        "children",
        len(then.children),
        len(now.children),
        _more(Counter(then.children), Counter(now.children)),
    )


def totals(taken: ProcessMeasure) -> dict[str, int]:
    """The numbers of one process that a long run follows, by the names of Allowance."""
    return {leak.kind: leak.after for leak in _compare_one("", taken, taken)}


def children_of(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of each child that lives."""
    return [
        (child, _text(PROC / str(child) / "cmdline").replace("\0", " "))
        for child, _, _, parent in _processes()
        if parent == pid
    ]


def fetchers_of(pid: int) -> list[int]:
    """Process ids of a rank's fetchers that live: one, unless it is just being replaced."""
    return [child for child, line in children_of(pid) if "fetcher" in line]


def _more(then: Mapping[str, int], now: Mapping[str, int]) -> str:
    return ", ".join(f"{key} +{now[key] - then.get(key, 0)}" for key in sorted(now) if now[key] > then.get(key, 0))


# --- /proc ---------------------------------------------------------------------------------------------------------------


def _measure_one(name: str, pid: int, children: list[tuple[str, str]]) -> ProcessMeasure:
    root = PROC / str(pid)
    try:
        targets, shared = _descriptors(root)
        shared |= _mapped(root)
        memory = _kilobytes(root / "smaps_rollup")
        threads = Counter(_text(task / "comm") for task in (root / "task").iterdir())
    except FileNotFoundError as error:
        raise PeerGone(f"{name} has ended; only living processes can be measured", process=pid) from error
    if not memory:
        raise PeerGone(f"{name} has ended and was not waited for; only living processes can be measured", process=pid)
    return ProcessMeasure(
        pid=pid,
        descriptors=Counter(kind for kind, _ in targets),
        files=tuple(sorted(target for kind, target in targets if kind == "file")),
        threads=threads,
        rss_bytes=memory["Rss"],
        pss_bytes=memory["Pss"],
        anonymous_bytes=memory["Anonymous"] + memory["Swap"] - memory["LazyFree"],  # the kernel may take lazily freed pages
        shared_bytes=sum(shared.values()),
        children=tuple(sorted(f"{child} (zombie)" if state == "Z" else child for child, state in children)),
    )


def _descriptors(root: Path) -> tuple[list[tuple[str, str]], dict[int, int]]:
    """(kind, target) of each, and inode -> bytes of those that are shared memory."""
    found: list[tuple[str, str]] = []
    shared: dict[int, int] = {}
    for entry in (root / "fd").iterdir():
        try:
            target = str(entry.readlink())
            held = entry.stat()
        except FileNotFoundError:  # closed meanwhile
            continue
        found.append((_kind(target, held.st_mode), target))
        if _is_shared(target):
            shared[held.st_ino] = held.st_blocks * 512
    return found, shared


def _kind(target: str, mode: int) -> str:
    if target.startswith("/memfd:"):
        return "memfd"
    if match := re.match(r"(?:anon_inode:)?\[?([A-Za-z-]+)\]?", target):
        return match[1]  # socket:[123], pipe:[123], anon_inode:[eventpoll], anon_inode:inotify
    return "device" if stat.S_ISCHR(mode) else "file"


def _is_shared(target: str) -> bool:
    return target.startswith(("/memfd:", f"{DEV_SHM}/"))


def _mapped(root: Path) -> dict[int, int]:
    """Inode -> bytes of shared memory that is mapped, whether or not it is still open."""
    found: Counter[int] = Counter()
    for line in (root / "maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and _is_shared(parts[5]):
            begin, _, end = parts[0].partition("-")
            found[int(parts[4])] += int(end, 16) - int(begin, 16)
    return dict(found)


def _kilobytes(path: Path) -> dict[str, int]:
    """Field -> bytes; empty for a process that has ended."""
    try:
        lines = path.read_text().splitlines()
    except ProcessLookupError:
        return {}
    return {key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines) if rest.endswith("kB")}


def _children_by_parent() -> dict[int, list[tuple[str, str]]]:
    """Parent's pid -> (name, state) of each child."""
    found: dict[int, list[tuple[str, str]]] = {}
    for _, name, state, parent in _processes():
        found.setdefault(parent, []).append((name, state))
    return found


def _processes() -> Iterator[tuple[int, str, str, int]]:
    """(pid, name, state, parent's pid) of all that there are."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (text := _text(entry / "stat")):
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            yield int(entry.name), name, state, int(parent)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return ""
