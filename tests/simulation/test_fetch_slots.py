"""The fetcher's slots under random interleavings of streams: what was READY is whole and stays, and nothing hangs."""

from __future__ import annotations

import random
from collections import deque

import pytest
from xxhash import xxh3_64_intdigest

from headrace.client.fetch_slots import FetchSlots
from headrace.core.errors import ProtocolMismatch
from headrace.wire.messages import Chunk, Ready

SLOT_BYTES = 64
STEP = 16
INDEXES = 30


def content(index: int, token: int) -> bytes:
    return bytes((index * 7 + token * 31 + place) % 251 for place in range(SLOT_BYTES - 5))


class Sender:
    """One stream: sends wanted indexes in ascending order, each once, chunk by chunk, or dies."""

    def __init__(self, link: int, token: int, next_index: int, have: set[int]) -> None:
        self.link = link
        self.token = token
        self.sent = set(have)
        self.index = next_index
        self.offset = 0

    def go_on(self, slots: FetchSlots, low: int, window: int) -> int | None:
        """One message; the index that became complete, if any."""
        if self.offset == 0:
            wanted = [index for index in range(low, min(low + window, INDEXES)) if index not in self.sent]
            if not wanted:
                return None
            self.index = wanted[0]
        data = content(self.index, self.token)
        if self.offset < len(data):
            piece = data[self.offset : self.offset + STEP]
            slots.chunk(self.link, Chunk(self.index, self.token, self.offset, memoryview(piece)))
            self.offset += len(piece)
            return None
        self.offset = 0
        self.sent.add(self.index)
        ready = Ready(self.index, self.token, 1, len(data), xxh3_64_intdigest(data))
        return self.index if slots.ready(self.link, ready) else None


def test_random_streams_deliver_every_index_whole(seed: int) -> None:
    for round_ in range(120):
        chance = random.Random(f"{seed}:{round_}")
        window = chance.choice([1, 2, 3])
        memory = bytearray(window * SLOT_BYTES)
        slots = FetchSlots(memoryview(memory), window, SLOT_BYTES, 0, ())
        complete: dict[int, int] = {}
        low, links = 0, 0
        senders: dict[int, Sender] = {}
        for _ in range(20000):
            if low == INDEXES:
                break
            while len(senders) < 3:  # a stream that ended is connected anew, with what is had
                links += 1
                senders[links] = Sender(links, chance.randrange(1, 4), low, set(complete))
            sender = chance.choice(list(senders.values()))
            over: set[int] = set()
            if chance.random() < 0.01:
                over = {sender.link}
            elif complete and chance.random() < 0.01:
                index = chance.choice(list(complete))
                over = slots.drop(complete.pop(index), index)
            else:
                done = sender.go_on(slots, low, window)
                if done is not None:
                    assert done not in complete
                    complete[done] = sender.link
            while over:
                link = over.pop()
                if senders.pop(link, None) is not None:
                    over |= slots.link_gone(link)
            if low in complete and chance.random() < 0.3:
                start = (low % window) * SLOT_BYTES
                bodies = [content(low, token) for token in range(1, 4)]
                assert bytes(memory[start : start + SLOT_BYTES - 5]) in bodies, "whole, from one stream"
                del complete[low]
                low += 1
                slots.advance(low)
        assert low == INDEXES, "it hangs"


class Crossing:
    """A fetcher and its trainer, who hear of each other late; the trainer's rule: what it does not take it drops."""

    def __init__(self, chance: random.Random, drops: bool = True) -> None:
        self.chance = chance
        self.drops = drops
        self.window = chance.choice([1, 2, 3])
        self.memory = bytearray(self.window * SLOT_BYTES)
        self.slots = FetchSlots(memoryview(self.memory), self.window, SLOT_BYTES, 0, ())
        self.senders: dict[int, Sender] = {}
        self.fetcher_low = self.low = self.links = 0
        self.said: deque[tuple[str, int, int]] = deque()
        self.commands: deque[tuple[str, int, int, set[int]]] = deque()
        self.have: dict[int, int] = {}
        self.withheld: dict[int, set[int]] = {}  # by live link

    def fetcher_acts(self) -> None:
        if self.commands and self.chance.random() < 0.3:
            self.command(*self.commands.popleft())
        elif self.senders:
            sender = self.chance.choice(list(self.senders.values()))
            done = sender.go_on(self.slots, self.fetcher_low, self.window)
            if done is not None:
                self.said.append(("ready", sender.link, done))
            elif self.chance.random() < 0.003:
                self.end({sender.link})

    def command(self, what: str, link: int, index: int, have: set[int]) -> None:
        if what == "connect":
            self.senders[link] = Sender(link, self.chance.randrange(1, 4), index, have)
        elif what == "drop":
            self.end(self.slots.drop(link, index))
        elif what == "next":
            self.fetcher_low = index
            self.slots.advance(index)
        elif self.senders.pop(link, None):
            self.end(self.slots.link_gone(link))

    def end(self, links: set[int]) -> None:
        while links:
            link = links.pop()
            if self.senders.pop(link, None):
                links |= self.slots.link_gone(link)
                self.said.append(("down", link, 0))

    def trainer_acts(self) -> None:
        if self.said:
            what, link, index = self.said.popleft()
            if what == "down":
                self.withheld.pop(link, None)
            elif link in self.withheld and index >= self.low and self.chance.random() < 0.95:
                assert index not in self.have, "two streams filled one slot"
                self.have[index] = link
            else:
                self.refuse(link, index)
        elif self.have and self.chance.random() < 0.02:  # its slot turned out to hold something else
            index = self.chance.choice(list(self.have))
            self.refuse(self.have.pop(index), index)
        elif self.withheld and self.chance.random() < 0.02:
            self.give_up(self.chance.choice(list(self.withheld)))
        self.mend()

    def refuse(self, link: int, index: int) -> None:
        if self.drops or link in self.withheld:
            self.commands.append(("drop", link, index, set()))
        if link in self.withheld:
            self.withheld[link].add(index)

    def give_up(self, link: int) -> None:
        del self.withheld[link]
        self.commands.append(("disconnect", link, 0, set()))

    def mend(self) -> None:
        for link, withheld in list(self.withheld.items()):
            if any(index >= self.low and index not in self.have for index in withheld):
                self.give_up(link)
        while len(self.withheld) < 2:
            self.links += 1
            self.withheld[self.links] = set(self.have)
            self.commands.append(("connect", self.links, self.low, set(self.have)))

    def consume(self) -> None:
        if self.low in self.have:
            start = (self.low % self.window) * SLOT_BYTES
            body = bytes(self.memory[start : start + SLOT_BYTES - 5])
            assert body in [content(self.low, token) for token in range(1, 4)], "whole, from one stream"
            del self.have[self.low]
            self.low += 1
            self.commands.append(("next", 0, self.low, set()))

    def run(self) -> bool:
        """True if all indexes came."""
        for _ in range(30000):
            self.chance.choice([self.fetcher_acts, self.fetcher_acts, self.trainer_acts, self.consume])()
            if self.low == INDEXES:
                return True
        return False


def test_a_trainer_that_drops_what_it_does_not_take_gets_every_index(seed: int) -> None:
    for round_ in range(60):
        assert Crossing(random.Random(f"{seed}:{round_}")).run(), f"round {round_} hangs"


def test_a_trainer_that_forgets_what_links_of_the_past_completed_hangs() -> None:
    assert not all(Crossing(random.Random(f"0:{round_}"), drops=False).run() for round_ in range(60))


def test_a_stream_that_breaks_the_rules_is_refused() -> None:
    def fresh() -> FetchSlots:
        return FetchSlots(memoryview(bytearray(2 * SLOT_BYTES)), 2, SLOT_BYTES, 5, (5,))

    body = memoryview(bytes(STEP))
    for chunks in (
        [Chunk(7, 1, 0, body)],  # beyond the window
        [Chunk(6, 1, STEP, body)],  # begins in the middle
        [Chunk(6, 1, 0, body), Chunk(6, 1, 3 * STEP, body)],  # a gap
        [Chunk(6, 1, at * STEP, body) for at in range(SLOT_BYTES // STEP + 1)],  # longer than the slot
    ):
        slots = fresh()
        with pytest.raises(ProtocolMismatch):
            for chunk in chunks:
                slots.chunk(1, chunk)
    slots = fresh()
    slots.chunk(1, Chunk(6, 1, 0, body))
    for wrong in (Ready(6, 1, 1, STEP + 1, xxh3_64_intdigest(body)), Ready(6, 1, 1, STEP, 7), Ready(6, 2, 1, STEP, 0)):
        with pytest.raises(ProtocolMismatch):
            slots.ready(1, wrong)
    assert slots.ready(1, Ready(6, 1, 1, STEP, xxh3_64_intdigest(body)))


def test_of_two_streams_the_higher_token_wins_and_the_loser_starts_over_if_the_winner_dies() -> None:
    memory = bytearray(SLOT_BYTES)
    slots = FetchSlots(memoryview(memory), 1, SLOT_BYTES, 0, ())
    one, two = memoryview(b"1" * STEP), memoryview(b"2" * STEP)
    slots.chunk(1, Chunk(0, 1, 0, one))
    slots.chunk(2, Chunk(0, 2, 0, two))
    slots.chunk(1, Chunk(0, 1, STEP, one))
    assert bytes(memory[: 2 * STEP]) == b"2" * STEP + bytes(STEP)
    assert not slots.ready(1, Ready(0, 1, 1, 2 * STEP, xxh3_64_intdigest(b"1" * 2 * STEP)))
    assert slots.link_gone(2) == {1}
