"""Producers that break the protocol: it costs them their connection, and the trainer no batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ProtocolMismatch, WaitTimeout
from headrace.wire import messages, slot_format
from tests.integration.fake_worker import Connection, LocalConnection, RemoteConnection
from tests.integration.intake_bench import DEADLINE_S, RUNGS, Bench, eat

NEVER_ISSUED = 2**64 - 1


def wrong_slot(connection: Connection, index: int, token: int) -> None:
    connection.write(index, token, connection.worker.batch(0, index + 1, token))


def wrong_job(connection: Connection, index: int, token: int) -> None:
    connection.write(index, token, connection.worker.batch(0, index, token, job="other"))


def garbage(connection: Connection, index: int, token: int) -> None:
    data = b"\xff\x00 nonsense"
    connection.peer.send(data) if isinstance(connection, LocalConnection) else connection.put(data)  # type: ignore[attr-defined]


def out_of_window(connection: Connection, index: int, token: int) -> None:
    connection.write(index + 1000 * connection.slots, token, connection.batch(index, token))


def oversize(connection: Connection, index: int, token: int) -> None:
    if isinstance(connection, LocalConnection):
        connection.send(messages.Ready(index, token, connection.generation, connection.worker.slot_bytes + 1))
    else:
        connection.write(index, token, bytes(1 << 21))


def undersize(connection: Connection, index: int, token: int) -> None:
    connection.write(index, token, b"no header")


def bad_sum(connection: Connection, index: int, token: int) -> None:
    content = connection.batch(index, token)
    if isinstance(connection, RemoteConnection):
        for data in connection.chunks(index, token, content):
            connection.put(data)
        connection.send(messages.Ready(index, token, connection.generation, len(content), 12345))
    else:
        content = bytearray(content)
        content[-1] ^= 1
        connection.write(index, token, bytes(content))


def cut_half_way(connection: Connection, index: int, token: int) -> None:
    if isinstance(connection, RemoteConnection):
        connection.put(messages.chunk_header(index, token, 0, 100) + bytes(100))
    connection.cut()


def unexpected(connection: Connection, index: int, token: int) -> None:
    connection.send(messages.Next(5))


def started_under_no_lease(connection: Connection, index: int, token: int) -> None:
    connection.send(messages.Started(index, NEVER_ISSUED))


def ready_under_no_lease(connection: Connection, index: int, token: int) -> None:
    connection.write(index, NEVER_ISSUED, connection.batch(index, NEVER_ISSUED))


def marked_under_no_lease(connection: Connection, index: int, token: int) -> None:
    content = connection.batch(index, NEVER_ISSUED)
    if isinstance(connection, LocalConnection):
        connection.fill(index, content)
        start, size = (index % connection.slots) * connection.worker.slot_bytes, connection.worker.slot_bytes
        slot_format.mark(memoryview(connection.map)[start : start + size], index, NEVER_ISSUED, len(content))
    connection.write(index, NEVER_ISSUED, content)


MISDEEDS = [
    wrong_slot, wrong_job, garbage, out_of_window, oversize, undersize, bad_sum, cut_half_way, unexpected,
    started_under_no_lease, ready_under_no_lease, marked_under_no_lease,
]  # fmt: skip


@pytest.mark.parametrize("transport", RUNGS)
@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_misdeed_costs_a_connection_but_no_batch(
    bench: Bench, transport: TransportChoice, misdeed: Callable[[Connection, int, int], None]
) -> None:
    worker = bench.worker()
    done: set[int] = set()

    def once(connection: Connection, index: int, token: int) -> bool:
        if index not in (2, 7) or index in done:
            return False
        done.add(index)
        connection.credit.mark_made(index)
        connection.send(messages.Started(index, token))
        misdeed(connection, index, token)
        return True

    worker.on_make = once
    intake = bench.intake(transport)
    intake.update(bench.tables.give(worker))
    eat(intake, range(20))
    assert done == {2, 7} and len(worker.hellos) >= 3


@pytest.mark.parametrize("transport", RUNGS)
@pytest.mark.parametrize("ahead", [1, 10**6, NEVER_ISSUED - 1])
def test_a_worker_takes_no_lane_from_its_owner_by_a_token(bench: Bench, transport: TransportChoice, ahead: int) -> None:
    """Whatever it says of all the window, with every batch of its own: each batch comes from its lane's owner."""
    good, evil = bench.worker("good"), bench.worker("evil")

    possible = ahead < 10**9

    def claims(connection: Connection, index: int, token: int) -> bool:
        for other in range(connection.credit.next, connection.credit.next + connection.credit.window):
            if other != index and (possible or len(evil.hellos) < 3):
                connection.send(messages.Started(other, token + ahead))
        return False

    evil.on_make = claims
    intake = bench.intake(transport)
    intake.update(bench.tables.give(good, evil))
    assert eat(intake, range(24)) == ["good", "evil"] * 12
    assert (len(evil.hellos), len(good.hellos), intake.status().refused) == (1 if possible else 3, 1, 0)
    intake.update(bench.tables.give(good, evil))
    assert eat(intake, range(24, 36)) == ["good", "evil"] * 6


def test_a_worker_that_keeps_sending_something_else_is_named(bench: Bench) -> None:
    worker = bench.worker()

    def always(connection: Connection, index: int, token: int) -> bool:
        connection.credit.mark_made(index)
        wrong_job(connection, index, token)
        return True

    worker.on_make = always
    intake = bench.intake()
    intake.update(bench.tables.give(worker))
    with pytest.raises(ProtocolMismatch, match="3 times") as error:
        intake.take(0, DEADLINE_S)
    assert error.value.worker == "w0"


@pytest.mark.parametrize("fault", ["truncated", "unsealed", "protocol"])
def test_a_slab_that_cannot_be_trusted_is_not_mapped(bench: Bench, fault: str) -> None:
    worker = bench.worker()
    worker.truncate_to = 4096 if fault == "truncated" else None
    worker.held = set(range(400))
    worker.seal = fault == "protocol"
    worker.protocol = 9000 if fault == "protocol" else messages.PROTOCOL
    intake = bench.intake()
    intake.update(bench.tables.give(worker))
    expected = {"truncated": "has 4096 bytes", "unsealed": "not sealed against shrinking", "protocol": "speaks protocol 9.0"}
    with pytest.raises(WaitTimeout, match=expected[fault]):
        intake.take(0, 0.7)
