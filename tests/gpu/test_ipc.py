"""`cuda_ipc` between two processes: by the driver's descriptors, by legacy handles, and by memory that stands for a GPU.

Without a GPU the first two are skipped with the reason. `memfd` has all but our calls of the driver; `played` has these, too,
in both processes, over a driver that is none (testing.fake_driver).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from headrace.core.errors import BatchReleased, HeadraceError
from tests.gpu import devices
from tests.gpu.made import Order
from tests.gpu.peers import TAKE_S, Process, check, pixels_of, start_worker, taking, working

QUICK = bool(os.environ.get("HEADRACE_GPU_PROOF_QUICK")) or "PYTEST_XDIST_WORKER" in os.environ
# Ranks under one worker, by kind, and how many live at a time; workers under one rank.
RANKS_KILLED = {"vmm": 100, "legacy": 40}
AT_A_TIME = 2 if QUICK else min(8, len(os.sched_getaffinity(0)))
WORKERS_KILLED = {"vmm": 8, "legacy": 8}
# Kinds that stand for a GPU: enough to see that the test itself is right.
FEW_RANKS, FEW_WORKERS = 16, 3
BATCH = 8
# Side of the images: on a GPU so that a slab that is never freed is more than the driver's own ups and downs.
SIDES = {"vmm": 256, "legacy": 256}
MOST_GROWN = {"vmm": 64 << 20, "legacy": 64 << 20}


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=devices.ALL_KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param.startswith("played-"):
        pytest.importorskip("cuda.bindings.driver")
        devices.play(monkeypatch.setattr)
        return request.param
    if reason := devices.why_not(request.param):
        pytest.skip(f"NOT RUN: no GPU memory of kind {request.param}: {reason}")
    return request.param


@pytest.fixture
def order(kind: str, tmp_path: Path) -> Order:
    return Order(str(tmp_path / "w.sock"), kind, "pattern", BATCH, SIDES.get(kind, 64))


def test_each_batch_arrives_whole_in_the_other_process(order: Order, record_property: Callable[[str, object], None]) -> None:
    session, device = order.session(1000), devices.open_kind(order.memory)
    with working(order), taking(order, session, device) as intake:
        for index in range(60):
            taken = intake.take(index, TAKE_S)
            assert taken.transport == "cuda_ipc" and taken.device is not None
            check(taken, index)
            del taken
            intake.release(index + 1)
    record_property("figure", f"60 batches of {order.spec.pixel_bytes(BATCH)} bytes, each byte right")


def test_a_batch_that_is_held_is_not_written_over(order: Order) -> None:
    """The worker runs ahead by its whole window meanwhile."""
    session, device = order.session(1000), devices.open_kind(order.memory)
    with working(order), taking(order, session, device) as intake:
        held = intake.take(0, TAKE_S)
        for index in range(1, order.window):
            check(intake.take(index, TAKE_S), index)
        time.sleep(0.2)
        check(held, 0)
        del held


def test_the_worker_is_killed(order: Order) -> None:
    """What is ready stays readable where the memory outlives its worker, and is refused where not; the next worker goes on."""
    session, device = order.session(1000), devices.open_kind(order.memory)
    worker = start_worker(order)
    with taking(order, session, device) as intake:
        check(intake.take(0, TAKE_S), 0)
        ready = [intake.take(index, TAKE_S) for index in range(order.window)]
        worker.kill()
        if device.memories[0].outlives_owner:
            for index, taken in enumerate(ready):
                check(taken, index)
        else:
            first = ready[0]
            _until(lambda: first.lost)
            with pytest.raises(BatchReleased):
                pixels_of(first)
            del first
        ready.clear()
        again = replace(order, token=2)
        with working(again):
            intake.update(again.table(session))
            for index in range(20):
                taken = intake.take(index, TAKE_S)
                check(taken, index)
                del taken
                intake.release(index + 1)


def test_memory_is_flat_after_many_ranks_were_killed(order: Order, record_property: Callable[[str, object], None]) -> None:
    rounds = 2 if QUICK else -(-RANKS_KILLED.get(order.memory, FEW_RANKS) // AT_A_TIME)
    with working(order) as worker:
        used, fds = [], []
        for killed in range(rounds):
            ranks = [_rank(order, rank) for rank in range(AT_A_TIME)]
            try:
                for rank in ranks:
                    for _ in range(6):
                        rank.line()
            finally:
                for rank in ranks:
                    rank.kill()
            _until(lambda: (told := worker.ask())["quarantined"] == told["ranks"] == 0)
            if killed in (0, rounds - 1):
                told = worker.ask()
                used.append(told["used_bytes"])
                fds.append(told["descriptors"])
    grown = f"{used[0] >> 10} -> {used[1] >> 10} KiB in use"
    record_property("figure", f"{rounds * AT_A_TIME} ranks killed: {grown}, {fds} descriptors")
    assert used[1] <= used[0] + MOST_GROWN.get(order.memory, 4 << 20)
    assert fds[1] <= fds[0] + 2


def test_memory_is_flat_after_many_workers_were_killed(order: Order, record_property: Callable[[str, object], None]) -> None:
    session, device = order.session(100_000), devices.open_kind(order.memory)
    used, fds, index, kills = [], [], 0, WORKERS_KILLED.get(order.memory, FEW_WORKERS)

    def mine(number: int) -> Order:
        """Each with a path of its own: a socket that is not there, if only for a moment, ends a rank that demands cuda_ipc."""
        return replace(order, token=number + 1, socket=f"{order.socket}{number}")

    worker = start_worker(mine(0))
    with taking(mine(0), session, device) as intake:
        for killed in range(kills):
            if killed:
                worker = start_worker(mine(killed))
                intake.update(mine(killed).table(session))
            for _ in range(6):
                taken = intake.take(index, TAKE_S)
                check(taken, index)
                del taken
                index += 1
                intake.release(index)
            worker.kill()
            if killed in (1, kills - 1):
                used.append(devices.used_bytes(order.memory))
                fds.append(devices.descriptors())
    grown = f"{used[0] >> 10} -> {used[1] >> 10} KiB in use"
    record_property("figure", f"{kills} workers killed: {grown}, {fds} descriptors")
    assert used[1] <= used[0] + MOST_GROWN.get(order.memory, 4 << 20)
    assert fds[1] <= fds[0] + 4


def _rank(order: Order, rank: int) -> Process:
    return Process("tests.gpu.peers", {"order": asdict(order), "rank": rank, "world": AT_A_TIME, "batches": 6})


def _until(true: Callable[[], bool]) -> None:
    for _ in range(400):
        if true():
            return
        time.sleep(0.05)
    raise HeadraceError("it did not come to pass within 20 s")
