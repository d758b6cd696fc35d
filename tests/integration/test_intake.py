"""The intake against producers on real sockets, by shared memory and by gRPC through a real fetcher process."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from structlog.testing import capture_logs

from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import (
    BatchFailed,
    HeadraceError,
    SessionSuperseded,
    TransportUnavailable,
    WaitTimeout,
)
from headrace.wire import messages, slot_format
from tests.integration.fake_worker import (
    NODE,
    Connection,
    RemoteConnection,
    pattern,
    small_session,
)
from tests.integration.intake_bench import DEADLINE_S, RUNGS, Bench, eat, take_in_vain, until


@pytest.mark.parametrize("transport", RUNGS)
def test_batches_of_two_workers_come_in_order(bench: Bench, transport: TransportChoice) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    intake = bench.intake(transport)
    intake.update(bench.tables.give(one, two))
    assert set(eat(intake, range(40))) == {"w1", "w2"}
    status = intake.status()
    assert {rung for rung, _ in status.transports.values()} == {transport}
    assert (status.refused, status.remade, status.awaited) == (0, 0, "")


def test_auto_takes_shared_memory_here_and_grpc_elsewhere_and_says_why(bench: Bench) -> None:
    here, there, silent = bench.worker("here"), bench.worker("there", node="node-b"), bench.worker("silent")
    silent.path.unlink()
    intake = bench.intake("auto")
    intake.update(bench.tables.give(here, there, silent))
    assert set(eat(intake, range(12))) == {"here", "there", "silent"}
    transports = intake.status().transports
    assert transports["here"] == ("shm", "same node; cuda_ipc: this rank asked for no GPU")
    assert transports["there"][0] == "grpc" and "another node" in transports["there"][1]
    assert transports["silent"][0] == "grpc" and "is not there" in transports["silent"][1]


@pytest.mark.parametrize(("transport", "node"), [("shm", "node-b"), ("cuda_ipc", NODE)])
def test_a_demanded_rung_that_cannot_be_had_is_an_error(bench: Bench, transport: TransportChoice, node: str) -> None:
    intake = bench.intake(transport)
    intake.update(bench.tables.give(bench.worker("far", node=node)))
    with pytest.raises(TransportUnavailable) as error:
        intake.take(0, DEADLINE_S)
    assert error.value.worker == "far" and error.value.reason


@pytest.mark.parametrize("transport", RUNGS)
def test_ready_batches_of_a_killed_worker_stay_and_the_rest_comes_from_the_new_owner(
    bench: Bench, transport: TransportChoice
) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    intake = bench.intake(transport)
    intake.update(bench.tables.give(one))
    eat(intake, range(2))
    first = intake.take(2, DEADLINE_S)
    until(lambda: one.made[-1][1] == 4, "the window is made")
    intake.take(4, DEADLINE_S)
    one.kill()
    intake.update(bench.tables.give(two))
    until(lambda: len(two.hellos) > 0, "connected to the new owner")
    assert two.hellos[0].have == (2, 3, 4) and two.hellos[0].next == 2
    assert bytes(slot_format.pixels(first.slot, first.header.pixel_bytes)) == pattern(2, first.header.pixel_bytes)
    del first
    assert eat(intake, range(2, 12)) == ["w1"] * 3 + ["w2"] * 7


@pytest.mark.parametrize("transport", RUNGS)
def test_stale_tokens_are_refused_and_an_owner_that_came_back_makes_the_batch_again(
    bench: Bench, transport: TransportChoice
) -> None:
    worker = bench.worker()
    intake = bench.intake(transport)
    table = bench.tables.give(worker)
    assert worker.lanes is not None
    worker.lanes = dict.fromkeys(worker.lanes, 0)  # it has not heard of its newest lease
    intake.update(table)
    until(lambda: intake.status().refused >= 1, "refused")
    with pytest.raises(WaitTimeout):
        intake.take(0, 0.2)
    worker.lanes = dict.fromkeys(worker.lanes, 1)
    eat(intake, range(10))
    assert len(worker.hellos) > 1, "what was refused is wanted again: a new connection says so"


@pytest.mark.parametrize("transport", RUNGS)
def test_duplicates_keep_the_first(bench: Bench, transport: TransportChoice) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    table = bench.tables.give(one, two)
    one.lanes = two.lanes = dict.fromkeys(range(bench.session.lanes), 1)  # both make everything
    intake = bench.intake(transport)
    intake.update(table)
    eat(intake, range(40))
    assert intake.status().refused == 0


@pytest.mark.parametrize("transport", RUNGS)
def test_begun_under_one_lease_and_delivered_under_another_counts_as_remade(bench: Bench, transport: TransportChoice) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    begun = threading.Event()

    def only_start(connection: Connection, index: int, token: int) -> bool:
        if not begun.is_set():
            connection.send(messages.Started(index, token))
            begun.set()
        return True

    one.on_make = only_start
    intake = bench.intake(transport)
    intake.update(bench.tables.give(one))
    assert begun.wait(DEADLINE_S)
    with pytest.raises(WaitTimeout, match="w1 STARTED it"):
        intake.take(0, 0.5)
    one.kill()
    intake.update(bench.tables.give(two))
    assert set(eat(intake, range(5))) == {"w2"}
    assert intake.status().remade == 1


@pytest.mark.parametrize("transport", RUNGS)
def test_a_larger_window_reconnects_and_keeps_what_is_ready(bench: Bench, transport: TransportChoice) -> None:
    worker = bench.worker()
    intake = bench.intake(transport)
    intake.update(bench.tables.give(worker))
    kept = intake.take(2, DEADLINE_S)
    bench.tables.window = 8
    intake.update(bench.tables.table())
    until(lambda: len(worker.made) == 8 + (worker.hellos[-1].have != (0, 1, 2)), "the larger window is made")
    assert worker.hellos[-1].window == 8
    assert bytes(slot_format.pixels(kept.slot, kept.header.pixel_bytes)) == pattern(2, kept.header.pixel_bytes)
    del kept
    eat(intake, range(30))


@pytest.mark.parametrize("transport", RUNGS)
def test_refusals_that_may_pass_are_tried_again_and_others_reach_the_trainer(bench: Bench, transport: TransportChoice) -> None:
    worker = bench.worker()
    worker.refuse = [messages.Refuse("session_unknown", "not heard of it yet", {})] * 3
    intake = bench.intake(transport)
    with capture_logs() as lines:
        intake.update(bench.tables.give(worker))
        eat(intake, range(3))
        assert len(worker.hellos) == 4
        worker.refuse = [messages.Refuse("session_superseded", "attempt 1 began", {"attempt": 1})]
        for connection in worker.connections:
            connection.cut()
        with pytest.raises(SessionSuperseded, match="attempt 1 began"):
            for index in range(3, 100):
                intake.take(index, DEADLINE_S)
                intake.release(index + 1)
    told = [line["log_level"] for line in lines if line["event"] == "worker_refuses"]
    assert told == ["info", "warning"], "each session begins so, and a trainer's terminal gets what is wrong"


def test_a_wait_names_index_position_owner_and_connection(bench: Bench) -> None:
    worker = bench.worker()
    intake = bench.intake()
    with pytest.raises(WaitTimeout, match="coordinator has not said"):
        intake.take(0, 0.0)
    worker.held = {1}
    intake.update(bench.tables.give(worker))
    eat(intake, range(1))
    position = worker.plan.locate(0, 1)
    assert position is not None
    text = rf"index 1 \(epoch 0, step 1, batch 1, lane {position.lane}\).*worker w0, which holds the lane since"
    with pytest.raises(WaitTimeout, match=text + ".*nobody has STARTED.*shm up since"):
        intake.take(1, 0.1)
    waiter = take_in_vain(intake, 1, 1.0)
    until(lambda: "waiting since" in intake.status().awaited, "status says who is awaited")
    waiter.join()
    worker.held = set()
    bench.tables.give(None)
    worker.kill()
    intake.update(bench.tables.table())
    with pytest.raises(WaitTimeout, match="no worker holds its lane since"):
        intake.take(5, 0.3)


@pytest.mark.parametrize("transport", RUNGS)
def test_failed_raises_the_workers_error_until_another_lease_tries(bench: Bench, transport: TransportChoice) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")

    def fail(connection: Connection, index: int, token: int) -> bool:
        if index == 1:
            connection.credit.mark_made(index)
            connection.send(messages.Failed(index, "batch_failed", "all samples are bad", {"shard": "a.tar"}))
        return index == 1

    one.on_make = fail
    intake = bench.intake(transport)
    intake.update(bench.tables.give(one))
    eat(intake, range(1))
    with pytest.raises(BatchFailed, match="all samples are bad") as error:
        intake.take(1, DEADLINE_S)
    assert (error.value.shard, error.value.index, error.value.worker) == ("a.tar", 1, "w1")
    intake.update(bench.tables.give(two))
    assert "w2" in eat(intake, range(1, 5))


@pytest.mark.parametrize("moment", ["idle", "mid-batch"])
def test_a_killed_fetcher_is_started_again_and_loses_nothing(bench: Bench, moment: str) -> None:
    bench.use(small_session(side=256, batch_size=4))
    worker = bench.worker()
    worker.chunk_bytes = 64 * 1024
    killed: list[int] = []

    def kill(connection: RemoteConnection, index: int, number: int) -> None:
        if not killed and (index == 6 and number == 5 if moment == "mid-batch" else index == 7):
            pids = [child.pid for child in psutil.Process().children()]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            killed.extend(pids)

    worker.on_chunk = kill
    intake = bench.intake("grpc")
    intake.update(bench.tables.give(worker))
    eat(intake, range(20))
    assert len(killed) == 1 and len(worker.hellos) == 2
    assert [child.pid for child in psutil.Process().children()] != killed


def test_an_old_owner_that_still_sends_does_not_disturb_the_new_ones_batch(bench: Bench) -> None:
    bench.use(small_session(side=256, batch_size=4))
    old, new = bench.worker("old"), bench.worker("new")
    old.chunk_bytes = new.chunk_bytes = 64 * 1024
    half, go_on = threading.Event(), threading.Event()

    def pause(connection: RemoteConnection, index: int, number: int) -> None:
        if number == 4 and index == 0:
            half.set()
            go_on.wait(DEADLINE_S)

    old.on_chunk = pause
    intake = bench.intake("grpc")
    table = bench.tables.give(old)
    intake.update(table)
    assert half.wait(DEADLINE_S)
    # Its STARTED may still be on the way, and would be lost with its connection once it owns nothing.
    until(lambda: intake._arrivals.awaited(0).started_by == "old", "the trainer knows that the old owner began")
    for lane in range(bench.session.lanes):
        bench.tables.move(lane, new)
    intake.update(bench.tables.table())
    until(lambda: any(index == 0 for _, index, _ in new.made), "the new owner made it")
    go_on.set()
    assert set(eat(intake, range(10))) == {"new"}
    assert intake.status().remade >= 1


def test_a_worker_that_owns_nothing_any_more_is_left(bench: Bench) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    intake = bench.intake()
    intake.update(bench.tables.give(one))
    eat(intake, range(3))
    intake.update(bench.tables.give(two))
    eat(intake, range(3, 12))
    until(lambda: one.connections[0].peer.fileno() == -1, "the old connection ends")  # type: ignore[attr-defined]
    made = len(one.made)
    eat(intake, range(12, 20))
    assert len(one.made) == made


def test_slabs_go_with_their_last_batch(bench: Bench) -> None:
    worker = bench.worker()
    intake = bench.intake()
    intake.update(bench.tables.give(worker))
    for round_ in range(6):
        eat(intake, range(round_ * 5, round_ * 5 + 5))
        worker.connections[-1].cut()
    eat(intake, range(30, 40))
    until(lambda: len(intake._links.slabs) == 1, "only the newest slab is mapped")


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("round_", range(3))
def test_two_ranks_in_lock_step_go_on_when_a_worker_is_killed(
    bench: Bench, window: int, round_: int, rng: np.random.Generator
) -> None:
    bench.use(small_session(world=2, window=window))
    workers = [bench.worker("w0"), bench.worker("w1"), bench.worker("w2", node="node-b")]
    intakes = [bench.intake("auto", rank) for rank in (0, 1)]
    steps, victim, kill_at = 40, workers[rng.integers(3)], int(rng.integers(1, 30))
    table = bench.tables.give(*workers)
    barrier = threading.Barrier(2)
    errors: list[BaseException] = []

    def train(intake: ThreadIntake) -> None:
        try:
            intake.update(table)
            for step in range(steps):
                eat(intake, range(step, step + 1))
                if step == kill_at and intake is intakes[0]:
                    victim.kill()
                    rest = [worker for worker in workers if worker is not victim]
                    for lane, owner in enumerate(bench.tables.owners):
                        if owner == victim.name:
                            bench.tables.move(lane, rest[lane % 2])
                    moved = bench.tables.table()
                    for other in intakes:
                        other.update(moved)
                barrier.wait(DEADLINE_S)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=train, args=(intake,)) for intake in intakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_fail_ends_a_running_take_and_later_ones(bench: Bench) -> None:
    intake = bench.intake()
    threading.Timer(0.1, intake.fail, [SessionSuperseded("a later attempt began", attempt=1)]).start()
    for _ in range(2):
        with pytest.raises(SessionSuperseded):
            intake.take(0, DEADLINE_S)


def test_a_view_kept_past_its_release_stays_mapped_until_it_goes(bench: Bench) -> None:
    one, two = bench.worker("w1"), bench.worker("w2")
    intake = bench.intake()
    intake.update(bench.tables.give(one))
    taken = intake.take(0, DEADLINE_S)
    kept = np.frombuffer(taken.slot, np.uint8)
    del taken
    one.kill()
    intake.update(bench.tables.give(two))
    eat(intake, range(3))
    intake.close()
    assert kept[slot_format.PIXEL_OFFSET] == pattern(0, 1)[0]
    assert "fake-slab" in Path("/proc/self/maps").read_text()
    del kept
    gc.collect()
    until(lambda: "fake-slab" not in Path("/proc/self/maps").read_text(), "unmapped with the last array")


def traces() -> tuple[int, set[str], int, int]:
    """(descriptors, our threads, children, mappings of slabs)."""
    gc.collect()
    process = psutil.Process()
    lines = Path("/proc/self/maps").read_text().splitlines()
    maps = [line for line in lines if "memfd:headrace" in line or "fake-slab" in line]
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")}
    return process.num_fds(), threads, len(process.children()), len(maps)


@pytest.mark.parametrize("ending", ["clean", "killed worker", "killed fetcher", "while waiting"])
def test_close_leaves_nothing(tmp_path: Path, ending: str) -> None:
    warm = Bench(tmp_path)  # what libraries open once and keep is not a leak
    warm.worker("warm")
    warm.close()
    before = traces()
    bench = Bench(tmp_path)
    local, remote = bench.worker("w1"), bench.worker("w2", node="node-b")
    intake = bench.intake("auto")
    intake.update(bench.tables.give(local, remote))
    eat(intake, range(6))
    held = intake.take(6, DEADLINE_S)
    if ending == "killed worker":
        local.kill()
    if ending == "killed fetcher":
        psutil.Process().children()[0].kill()
    if ending == "while waiting":
        local.held = remote.held = set(range(1000))
        waiter = take_in_vain(intake, 399, DEADLINE_S)
        until(lambda: intake.status().awaited != "", "waiting")
    intake.close()
    intake.close()
    if ending == "while waiting":
        waiter.join(DEADLINE_S)
    with pytest.raises(HeadraceError, match="closed"):
        intake.take(7, 1.0)
    del held
    bench.close()
    assert traces()[1:] == before[1:]
    until(lambda: traces()[0] <= before[0], "all descriptors go, those of the fake's gRPC server a little later")
