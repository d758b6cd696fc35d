"""Puts the chunks of many streams into one slab, so that no two streams ever write one slot at a time.

Used by the fetcher process, on its only thread. A batch is complete when all its bytes came in order and their xxh3
checksum fits; until then its slot's content means nothing. Where two streams send one index the higher token wins, else the
first. A stream whose bytes were thrown away believes that it delivered: if the index is wanted after all, it is to be
started over, and the methods that can make that happen return the links concerned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64

from headrace.core.errors import ProtocolMismatch
from headrace.wire.messages import Chunk, Ready


@dataclass(slots=True)
class _Filling:
    link: int
    token: int
    received: int = 0
    digest: xxh3_64 = field(default_factory=xxh3_64)


class FetchSlots:
    """The slab's bookkeeping. memory: writable, slots * slot_bytes. have: indexes that must not be written."""

    def __init__(self, memory: memoryview, slots: int, slot_bytes: int, next_index: int, have: tuple[int, ...]) -> None:
        self._memory = memory
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._next = next_index
        self._complete: dict[int, int] = dict.fromkeys(have, 0)
        self._filling: dict[int, _Filling] = {}
        self._skipped: dict[int, set[int]] = {}

    def chunk(self, link: int, chunk: Chunk) -> None:
        """Copy a chunk into its slot, or throw it away. Raises ProtocolMismatch if the link breaks the rules: end it."""
        filling = self._claim(link, chunk)
        if filling is None:
            return
        end = chunk.offset + len(chunk.data)
        if chunk.offset != filling.received or end > self._slot_bytes:
            raise ProtocolMismatch(
                f"chunk at {chunk.offset} of {len(chunk.data)} bytes does not follow {filling.received} bytes of a slot of "
                f"{self._slot_bytes}",
                index=chunk.index,
            )
        start = (chunk.index % self._slots) * self._slot_bytes
        self._memory[start + chunk.offset : start + end] = chunk.data
        filling.digest.update(chunk.data)
        filling.received = end

    def ready(self, link: int, ready: Ready) -> bool:
        """True if the batch is now complete: tell the trainer. Raises ProtocolMismatch if length or checksum do not fit."""
        if not self._in_window(ready.index) or link in self._skipped.get(ready.index, ()):
            return False
        filling = self._filling.get(ready.index)
        if filling is None or filling.link != link or filling.token != ready.token:
            raise ProtocolMismatch("READY of an index whose bytes did not come", index=ready.index)
        if filling.received != ready.total_bytes or filling.digest.intdigest() != ready.checksum:
            raise ProtocolMismatch(
                f"batch arrived with {filling.received} of {ready.total_bytes} bytes or with another checksum",
                index=ready.index,
            )
        del self._filling[ready.index]
        self._complete[ready.index] = link
        return True

    def drop(self, link: int, index: int) -> set[int]:
        """The trainer refused a complete batch, or lost one that it had before this process (link 0): it is wanted again."""
        if self._complete.get(index) not in (link, 0):  # 0: it was there before this process
            return set()
        del self._complete[index]
        return self._skipped.pop(index, set())

    def link_gone(self, link: int) -> set[int]:
        """Discard what a stream had sent in part; what it completed stays."""
        restart: set[int] = set()
        for skipped in self._skipped.values():
            skipped.discard(link)
        for index in [index for index, filling in self._filling.items() if filling.link == link]:
            del self._filling[index]
            restart |= self._skipped.pop(index, set())
        return restart

    def contested(self) -> set[tuple[int, int]]:
        """(link, index) of all that are half there, while other streams' bytes of the same index are thrown away."""
        return {(filling.link, index) for index, filling in self._filling.items() if self._skipped.get(index)}

    def advance(self, next_index: int) -> None:
        """Indexes below are released; their slots may be written."""
        self._next = max(self._next, next_index)
        tables: tuple[dict[int, Any], ...] = (self._complete, self._filling, self._skipped)
        for table in tables:
            for index in [index for index in table if index < self._next]:
                del table[index]

    def _in_window(self, index: int) -> bool:
        if index >= self._next + self._slots:
            raise ProtocolMismatch(f"index is beyond the window {self._next}..{self._next + self._slots - 1}", index=index)
        return index >= self._next

    def _claim(self, link: int, chunk: Chunk) -> _Filling | None:
        if not self._in_window(chunk.index):
            return None
        filling = self._filling.get(chunk.index)
        if filling is not None and filling.link == link and filling.token == chunk.token:
            return filling
        first = chunk.offset == 0
        skipped = self._skipped.setdefault(chunk.index, set())
        if not first and link not in skipped:
            raise ProtocolMismatch(f"first chunk of a batch is at offset {chunk.offset}", index=chunk.index)
        lost = filling is not None and filling.link != link and chunk.token <= filling.token
        if not first or lost or chunk.index in self._complete:
            skipped.add(link)
            return None
        if filling is not None and filling.link != link:
            skipped.add(filling.link)
        skipped.discard(link)
        self._filling[chunk.index] = _Filling(link, chunk.token)
        return self._filling[chunk.index]
