"""Versions that nobody asks for are not kept: what a coordinator remembers is as large as its fleet, not as its past."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from headrace.core import records
from headrace.core.job import Endpoint
from headrace.core.newest import newest
from headrace.core.records import RankRecord, WorkerRecord


class Thing:
    def __init__(self, data: bytes) -> None:
        self.name, _, self.version = data.partition(b" ")


def reader(most: int = 100) -> tuple[Callable[[bytes], Thing], list[bytes], list[weakref.ref[Thing]]]:
    read: list[bytes] = []
    alive: list[weakref.ref[Thing]] = []

    @newest(lambda thing: thing.name, most)
    def thing(data: bytes) -> Thing:
        made = Thing(data)
        read.append(data)
        alive.append(weakref.ref(made))
        return made

    return thing, read, alive


def living(alive: list[weakref.ref[Thing]]) -> int:
    gc.collect()
    return sum(each() is not None for each in alive)


def test_equal_bytes_are_read_once() -> None:
    thing, read, _ = reader()
    assert thing(b"a 1") is thing(b"a 1")
    assert thing(b"b 1") is not thing(b"a 1")
    assert read == [b"a 1", b"b 1"]


def test_one_version_of_each_is_kept() -> None:
    thing, _, alive = reader()
    for version in range(1000):
        for name in (b"a", b"b", b"c"):
            thing(b"%b %d" % (name, version))
    assert living(alive) == 3
    assert thing(b"a 999") is alive[-3]()
    assert thing(b"a 0").version == b"0"  # older ones can be read all the same


def test_too_many_names_are_forgotten() -> None:
    thing, _, alive = reader(most=10)
    for name in range(1005):
        thing(b"%d 0" % name)
    assert living(alive) <= 10


def test_as_many_names_as_fit_stay_while_they_change() -> None:
    thing, read, alive = reader(most=10)
    for version in range(50):
        for name in range(10):
            thing(b"%d %d" % (name, version))
            thing(b"0 %d" % version)
    assert len(read) == 500 and living(alive) == 10


def rank(beat: int) -> RankRecord:
    return RankRecord(1, "nonce-of-this-test", beat)


def worker(beat: int) -> WorkerRecord:
    return WorkerRecord(Endpoint("worker-of-this-test", "1", "n", "g", ""), "fp", (), 0.0, 1, False, beat)


@pytest.mark.parametrize(("make", "read"), [(rank, records.rank_from_bytes), (worker, records.worker_from_bytes)])
def test_what_heartbeats_change_is_not_kept(make: Callable[[int], object], read: Callable[[bytes], object]) -> None:
    def count() -> int:
        gc.collect()
        return sum(type(each) is type(make(0)) for each in gc.get_objects())

    before = count()
    for beat in range(300):
        assert read(records.encode(make(beat))) == make(beat)
    assert count() <= before + 2
