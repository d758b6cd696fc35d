"""The leak check finds a leak of each kind that is planted in another process, names it, and is quiet where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.core.errors import PeerGone
from headrace.testing.leaks import DEV_SHM, Allowance, Leak, Measure, compare, measure, resting, settled, totals

# Does what it is told, a line at a time, and answers each with one.
SUBJECT = """
import gc, mmap, os, socket, subprocess, sys, threading
kept = []
for line in sys.stdin:
    exec(line)
    gc.collect()
    print("done", flush=True)
"""


class Subject:
    """A process that can be told to leak."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", SUBJECT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.do("pass")

    @property
    def pid(self) -> int:
        return self._popen.pid

    def do(self, statement: str) -> None:
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._popen.stdin.write(statement + "\n")
        self._popen.stdin.flush()
        assert self._popen.stdout.readline() == "done\n"

    def measure(self) -> Measure:
        return measure({"subject": self.pid})

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def subject() -> Iterator[Subject]:
    made = Subject()
    yield made
    made.close()


MEMFD = 'fd = os.memfd_create("slab"); os.truncate(fd, 1 << 20); os.posix_fallocate(fd, 0, 1 << 20)'
# Not by reading: it has the same standard input, and would take the next line from its parent.
SLEEP = "[sys.executable, '-c', 'import time; time.sleep(60)']"
# What is planted, its undoing, the kind that must be told, and a word of what must be said of it.
PLANTED = {
    "a file": ("kept.append(open('/etc/passwd'))", "kept.clear()", "descriptors", "/etc/passwd"),
    "a socket": ("kept.append(socket.socket())", "kept.clear()", "descriptors", "socket +1"),
    "a pipe": ("kept.extend(os.pipe())", "[os.close(fd) for fd in kept]; kept.clear()", "descriptors", "pipe +2"),
    "a device": ("kept.append(open('/dev/zero'))", "kept.clear()", "descriptors", "device +1"),
    "an event loop": ("import select; kept.append(select.epoll())", "kept.clear()", "descriptors", "eventpoll +1"),
    "a memfd": (f"{MEMFD}; kept.append(fd)", "os.close(fd); kept.clear()", "descriptors", "memfd +1"),
    "a slab that is mapped and not open any more": (
        f"{MEMFD}; kept.append(mmap.mmap(fd, 1 << 20)); os.close(fd)",
        "kept.pop().close()",
        "shared_bytes",
        "+1.0 MiB",
    ),
    "a thread": (
        "go = threading.Event(); kept.append(threading.Thread(target=go.wait)); kept[0].start()",
        "go.set(); kept.pop().join()",
        "threads",
        "+1",
    ),
    "memory": ("kept.append(b'x' * (64 << 20))", "kept.clear()", "memory_bytes", "+64."),
    "a child": (f"kept.append(subprocess.Popen({SLEEP}))", "kept[0].kill(); kept.pop().wait()", "children", "python"),
    "a child that nobody waited for": (
        f"kept.append(subprocess.Popen({SLEEP})); kept[0].kill(); os.waitid(os.P_PID, kept[0].pid, os.WEXITED | os.WNOWAIT)",
        "kept.pop().wait()",
        "children",
        "(zombie) +1",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_leak_is_found_and_its_mending_too(subject: Subject, what: str) -> None:
    plant, undo, kind, word = PLANTED[what]
    before = subject.measure()
    subject.do(plant)
    leaks = compare(before, subject.measure())
    assert kind in {leak.kind for leak in leaks}
    (told,) = (str(leak) for leak in leaks if leak.kind == kind)
    assert told.startswith(f"subject: {kind} ") and word in told
    subject.do(undo)
    assert settled(subject.measure, before) == []


def test_a_name_left_in_dev_shm_is_found_but_not_one_that_is_others(subject: Subject) -> None:
    before = measure({"subject": subject.pid})
    path = DEV_SHM / f"headrace-test-{uuid.uuid4().hex}"
    path.write_bytes(b"x")
    try:
        assert [leak for leak in compare(before, subject.measure()) if leak.kind == "shm_names" and path.name in leak.detail]
        quiet = measure({"subject": subject.pid}, shm_ignore=["headrace-test-*"])
        assert not [leak for leak in compare(before, quiet) if path.name in leak.detail]
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("kind", "field", "more"),
    [
        ("descriptors", "descriptors", lambda value: {**value, "socket": value.get("socket", 0) + 3}),
        ("threads", "threads", lambda value: {**value, "odd": 3}),
        ("memory_bytes", "anonymous_bytes", lambda value: value + 3),
        ("shared_bytes", "shared_bytes", lambda value: value + 3),
        ("children", "children", lambda value: (*value, "a", "b", "c")),
    ],
)
def test_an_allowance_is_kept_to_the_last_one(
    subject: Subject, kind: str, field: str, more: Callable[[object], object]
) -> None:
    before = subject.measure()
    process = before.processes["subject"]
    after = Measure({"subject": replace(process, **{field: more(getattr(process, field))})}, before.shm_names)
    none = Allowance(memory_bytes=0)
    assert compare(before, after, replace(none, **{kind: 3})) == []
    (leak,) = compare(before, after, replace(none, **{kind: 2}))
    assert (leak.kind, leak.after - leak.before) == (kind, 3)


def test_less_is_no_leak_and_kinds_make_up_for_one_another(subject: Subject) -> None:
    subject.do("kept.append(open('/etc/passwd'))")
    before = subject.measure()
    subject.do("kept.append(socket.socket()); kept.pop(0)")
    assert compare(before, subject.measure()) == []
    subject.do("kept.clear()")
    assert compare(before, subject.measure()) == []


def test_settled_waits_for_what_ends_in_its_own_time(subject: Subject) -> None:
    before = subject.measure()
    subject.do("threading.Timer(1.0, int).start()")
    assert [leak.kind for leak in compare(before, subject.measure())] == ["threads"]
    assert settled(subject.measure, before) == []


def test_settled_tells_what_is_left_at_the_deadline(subject: Subject) -> None:
    before = subject.measure()
    subject.do("kept.append(socket.socket())")
    (leak,) = settled(subject.measure, before, deadline_s=0.5)
    assert isinstance(leak, Leak) and leak.kind == "descriptors"


def test_a_process_of_one_measure_only_is_left_out(subject: Subject) -> None:
    alone = measure({"subject": subject.pid})
    both = measure({"subject": subject.pid, "another": os.getpid()})
    assert not [leak for leak in compare(alone, both) if leak.process == "another"]


def test_a_process_that_has_ended_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as popen:
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(PeerGone, match="ended and was not waited for"):
            measure({"worker-0": popen.pid})
    with pytest.raises(PeerGone, match="worker-0 has ended"):
        measure({"worker-0": popen.pid})


def test_totals_are_the_numbers_that_a_run_follows(subject: Subject) -> None:
    process = subject.measure().processes["subject"]
    assert totals(process) == {
        "descriptors": 3,
        "threads": 1,
        "memory_bytes": process.anonymous_bytes,
        "shared_bytes": 0,
        "children": 0,
    }
    assert 1 << 20 < process.anonymous_bytes < process.rss_bytes
    assert process.pss_bytes <= process.rss_bytes


def test_rest_is_what_is_left_once_nothing_is_given_back_any_more(subject: Subject) -> None:
    """A descriptor goes with each look, four times; what comes meanwhile does not put it off."""
    subject.do("kept += [open('/dev/null') for _ in range(9)]")
    looks = list[Measure]()

    def take() -> Measure:
        if len(looks) < 5:
            subject.do("kept.pop()")
        looks.append(subject.measure())
        return looks[-1]

    rest = resting(take, quiet_s=0.5, deadline_s=60)
    assert rest is looks[4]
    assert len(looks) > 5, "and then it was quiet for a while"
    assert resting(take, quiet_s=60, deadline_s=0.1).processes.keys() == {"subject"}, "or at the deadline"
