"""What a worker on this node marks as published is taken from its slot, under the same rules as by a message."""

from __future__ import annotations

import time

import pytest

from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TakenSlot
from headrace.core.errors import WaitTimeout
from headrace.wire import messages, slot_format
from tests.integration.fake_worker import Connection, LocalConnection, pattern
from tests.integration.intake_bench import DEADLINE_S, Bench, eat, until


def marked(connection: Connection, index: int, token: int, content: bytes) -> None:
    """Bring a batch to its slot and mark it, without a message."""
    assert isinstance(connection, LocalConnection)
    connection.fill(index, content)
    mark(connection, index, token, len(content))
    connection.credit.mark_made(index)


def mark(connection: Connection, index: int, token: int, total_bytes: int) -> None:
    assert isinstance(connection, LocalConnection)
    start, size = (index % connection.slots) * connection.worker.slot_bytes, connection.worker.slot_bytes
    slot_format.mark(memoryview(connection.map)[start : start + size], index, token, total_bytes)


def asked_for(intake: ThreadIntake, index: int) -> TakenSlot:
    """A batch that no message tells of: asked for again and again, as nobody could wait for it."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return intake.take(index, 0.0)
        except WaitTimeout:
            assert time.monotonic() < end_s
            time.sleep(0.005)


def test_a_marked_batch_is_taken_though_its_message_was_not_read(bench: Bench) -> None:
    worker = bench.worker()

    def no_message(connection: Connection, index: int, token: int) -> bool:
        marked(connection, index, token, connection.batch(index, token))
        return True

    worker.on_make = no_message
    intake = bench.intake("shm")
    intake.update(bench.tables.give(worker))
    for index in range(12):
        taken = asked_for(intake, index)
        assert bytes(slot_format.pixels(taken.slot, taken.header.pixel_bytes)) == pattern(index, taken.header.pixel_bytes)
        intake.release(index + 1)
    assert (intake.status().refused, len(worker.hellos)) == (0, 1)


def test_a_message_that_comes_after_its_mark_changes_nothing(bench: Bench) -> None:
    worker = bench.worker()

    def late_message(connection: Connection, index: int, token: int) -> bool:
        content = connection.batch(index, token)
        marked(connection, index, token, content)
        time.sleep(0.005)
        connection.send(messages.Ready(index, token, connection.generation, len(content)))
        return True

    worker.on_make = late_message
    intake = bench.intake("shm")
    intake.update(bench.tables.give(worker))
    eat(intake, range(40))
    assert (intake.status().refused, intake.status().remade, len(worker.hellos)) == (0, 0, 1)


def test_a_mark_under_an_old_token_is_not_taken(bench: Bench) -> None:
    worker = bench.worker()
    made: list[int] = []

    def stale(connection: Connection, index: int, token: int) -> bool:
        if made:
            return False
        made.append(index)
        marked(connection, index, 0, connection.worker.batch(0, index, 0))
        return True

    worker.on_make = stale
    intake = bench.intake("shm")
    intake.update(bench.tables.give(worker))
    until(lambda: bool(made), "marked")
    with pytest.raises(WaitTimeout):
        intake.take(0, 0.2)


@pytest.mark.parametrize("others", [False, True])
def test_a_mark_under_a_token_that_was_never_issued_ends_its_connection(bench: Bench, others: bool) -> None:
    """By the one who owns the lane; one who does not is not looked at."""
    worker, evil = bench.worker(), bench.worker("evil")

    def marks(connection: Connection, index: int, token: int) -> bool:
        connection.send(messages.Started(index, token))
        if len(worker.hellos) > 1:
            return False
        marked(connection, index, 2**64 - 1, connection.worker.batch(0, index, 2**64 - 1))
        return True

    def marks_all(connection: Connection, index: int, token: int) -> bool:
        for other in range(connection.credit.next, connection.credit.next + connection.slots):
            if other != index:
                content = connection.worker.batch(0, other, 2**64 - 1)
                connection.fill(other, content)  # type: ignore[attr-defined]
                mark(connection, other, 2**64 - 1, len(content))
        return False

    if others:
        evil.on_make = marks_all
    else:
        worker.on_make = marks
    intake = bench.intake("shm")
    intake.update(bench.tables.give(*([worker, evil] if others else [worker])))
    asked_for(intake, 0)
    eat(intake, range(12))
    assert len(worker.hellos) == (1 if others else 2)


@pytest.mark.parametrize("message", [False, True], ids=["mark", "mark and message"])
def test_a_mark_on_the_wrong_batch_costs_its_connection_once(bench: Bench, message: bool) -> None:
    worker = bench.worker()

    def wrong(connection: Connection, index: int, token: int) -> bool:
        if len(worker.hellos) > 2 or index:
            return False
        content = connection.worker.batch(0, 1, token)
        marked(connection, 0, token, content)
        if message:
            connection.send(messages.Ready(0, token, connection.generation, len(content)))
        return True

    worker.on_make = wrong
    intake = bench.intake("shm")
    intake.update(bench.tables.give(worker))
    assert asked_for(intake, 0).header.index == 0
    eat(intake, range(10))
    assert len(worker.hellos) == 3, "each bad copy is looked at once"
