"""The fetcher's promise to its trainer: whatever it counts as complete was told."""

from __future__ import annotations

import asyncio
import socket

import pytest
from xxhash import xxh3_64_intdigest

from headrace.client.fetch_slots import FetchSlots
from headrace.client.fetch_stream import Stream
from headrace.client.fetcher import HELD_S, Fetcher
from headrace.client.transports import fetch_protocol as protocol
from headrace.core.errors import PeerGone, ProtocolMismatch
from headrace.wire.messages import Chunk, Hello, Message, Ready, Started

SLOT_BYTES = 64
HELLO = Hello(1, "job", 0, 0, "nonce", 0, 1, (), "")


def _fill(pipe: socket.socket) -> None:
    try:
        while True:
            pipe.send(protocol.encode(protocol.Ping()))
    except BlockingIOError:
        return


async def _told(pipe: socket.socket) -> list[protocol.FetchMessage]:
    """All that is said until nothing more comes, without pings."""
    told = []
    try:
        while True:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(pipe, protocol.MAX_BYTES), 0.2)
            message = protocol.decode(data)
            if not isinstance(message, protocol.Ping):
                told.append(message)
    except TimeoutError:
        return told


async def _end_while_the_pipe_is_full() -> None:
    ours, trainers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, trainers:
        ours.setblocking(False)
        trainers.setblocking(False)
        slots = FetchSlots(memoryview(bytearray(SLOT_BYTES)), 1, SLOT_BYTES, 0, ())
        fetcher = Fetcher(ours, slots)
        stream = Stream(1, "", "w0", HELLO, fetcher._deliver)
        fetcher._streams[1] = stream
        body = b"x" * 10
        ready = Ready(0, 1, 1, len(body), xxh3_64_intdigest(body))

        async def say(*said: Message) -> None:
            for message in said:
                await fetcher._deliver(stream, message)

        _fill(ours)
        saying = asyncio.create_task(say(Chunk(0, 1, 0, memoryview(body)), ready, Started(0, 2)))
        await asyncio.sleep(0.05)
        saying.cancel()  # as Stream.end does
        down = asyncio.create_task(fetcher._tell(protocol.Down(1, PeerGone.code, "over")))
        told = await _told(trainers)
        await down
        assert saying.cancelled()
        # Else its slot would be taken for full for ever by this side alone; and in this order.
        assert told == [protocol.Forward(1, ready), protocol.Down(1, PeerGone.code, "over")]


def test_a_ready_is_told_even_if_its_stream_ends_meanwhile() -> None:
    asyncio.run(_end_while_the_pipe_is_full())


def test_a_stream_that_holds_what_another_would_send_is_ended_in_time() -> None:
    """A worker may name a token that nobody gave it: its first bytes take the index, and the rest never comes."""
    ours, trainers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, trainers:
        slots = FetchSlots(memoryview(bytearray(SLOT_BYTES)), 1, SLOT_BYTES, 0, ())
        fetcher = Fetcher(ours, slots)
        fetcher._streams = {link: Stream(link, "", f"w{link}", HELLO, fetcher._deliver) for link in (1, 2)}
        body = memoryview(b"x" * 10)
        slots.chunk(1, Chunk(0, 1 << 60, 0, body))
        for now_s in (0.0, HELD_S, 2 * HELD_S):  # nobody else has it: that is a slow worker, whose lanes move
            fetcher.end_held(now_s)
        slots.chunk(2, Chunk(0, 1, 0, body))
        fetcher.end_held(3 * HELD_S)
        fetcher.end_held(4 * HELD_S - 0.1)
        assert fetcher._streams[1]._ended is None
        fetcher.end_held(4 * HELD_S)
        assert isinstance(fetcher._streams[1]._ended, ProtocolMismatch)
        assert fetcher._streams[2]._ended is None
        assert slots.link_gone(1) == {2}  # and the other starts over


def _sent(slots: FetchSlots, link: int, index: int) -> bool:
    """True if a batch that a link sends whole is to be told."""
    body = b"x" * 10
    slots.chunk(link, Chunk(index, 1, 0, memoryview(body)))
    return slots.ready(link, Ready(index, 1, 1, len(body), xxh3_64_intdigest(body)))


@pytest.mark.parametrize("sent_before", [False, True])
def test_a_batch_that_was_had_when_the_fetcher_began_and_is_lost_can_come_by_it(sent_before: bool) -> None:
    slots = FetchSlots(memoryview(bytearray(2 * SLOT_BYTES)), 2, SLOT_BYTES, 0, (0, 1))
    if sent_before:
        assert not _sent(slots, 7, 0)
    assert slots.drop(0, 0) == ({7} if sent_before else set()), "whoever sent it believes that it is here"
    assert _sent(slots, 8, 0)
    assert not _sent(slots, 9, 1), "the other one is had still"


def test_a_batch_that_came_by_the_fetcher_is_not_lost_with_one_of_another_memory() -> None:
    """Its READY lies unread while the trainer loses its own copy."""
    slots = FetchSlots(memoryview(bytearray(SLOT_BYTES)), 1, SLOT_BYTES, 0, ())
    assert _sent(slots, 7, 0)
    assert slots.drop(0, 0) == set()
    assert not _sent(slots, 8, 0)
