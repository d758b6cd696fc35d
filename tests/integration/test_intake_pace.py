"""A rank that always finds its next batch by its mark still reads what its workers say, however fast they are."""

from __future__ import annotations

import asyncio
import select
from pathlib import Path

import pytest

from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.peers import Peer
from headrace.wire import messages
from tests.integration.fake_worker import NODE, LocalConnection, small_session
from tests.integration.intake_bench import DEADLINE_S, Bench, eat, until
from tests.integration.test_intake_servers import serving

BATCHES = 3000
WORDS = 200  # more than are read at once, fewer than a socket holds


class LongRest:
    """Takes the place of the poll on which the thread rests: only what wakes it ends a rest, so that no speed counts."""

    def __init__(self, rest: select.poll) -> None:
        self._rest = rest
        self.rests = 0

    def poll(self, _: float) -> None:
        self.rests += 1
        self._rest.poll(1000 * DEADLINE_S)


def resting(intake: ThreadIntake) -> LongRest:
    rest = LongRest(intake._rest)
    intake._rest = rest  # type: ignore[assignment]
    return rest


async def test_thousands_of_batches_that_are_there_before_they_are_asked_for_come_by_one_connection(tmp_path: Path) -> None:
    """In one thread, so that the worker is always ahead of the trainer, and with a worker's real server and its bounds."""
    session = small_session(batches=2 * BATCHES)
    async with serving(session, tmp_path) as (producer, table):
        intake = ThreadIntake(session, 0, "n", NODE, transport="shm")
        rest = resting(intake)
        try:
            intake.update(table)
            for index in range(BATCHES):
                async with asyncio.timeout(DEADLINE_S):
                    while (0, index) not in producer.made[-session.window :]:
                        await asyncio.sleep(0)
                        assert producer.events.count(("opened", 0)) <= 1, f"connected anew at batch {index}"
                taken = intake.take(index, DEADLINE_S)
                assert taken.header.index == index
                del taken
                intake.release(index + 1)
                producer.events = [event for event in producer.events if event[0] != "advanced"]
            assert producer.events == [("opened", 0)]
            assert rest.rests < BATCHES / 10, "the thread slept while the trainer was served"
            assert intake.status().refused == 0
        finally:
            await asyncio.to_thread(intake.close)


@pytest.mark.parametrize("last", ["drain", "end"])
def test_a_thread_that_rests_has_read_all_that_was_there(bench: Bench, last: str) -> None:
    """A worker talks much while nobody takes, then says that it drains, or ends: that is seen at the end of one rest."""
    worker = bench.worker()
    worker.held = set(range(3, 400))
    intake = bench.intake("shm")
    rest = resting(intake)
    intake.update(bench.tables.give(worker))
    eat(intake, range(3))
    intake._command(lambda _: None)
    until(lambda: rest.rests > 0, "the thread rests")
    connection = worker.connections[0]
    assert isinstance(connection, LocalConnection)
    for _ in range(WORDS):
        connection.send(messages.Started(0, 1))
    connection.cut() if last == "end" else connection.send(messages.Drain())
    intake._command(lambda _: None)
    peer: Peer = next(iter(intake._links.peers.values()))
    until(lambda: peer.draining if last == "drain" else len(worker.hellos) == 2, "it is seen")
