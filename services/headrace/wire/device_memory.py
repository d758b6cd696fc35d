"""Memory on a GPU that two processes share: what `cuda_ipc` needs of it, whatever makes it.

A worker allocates one block for a rank and exports it once; the rank imports it and maps it for as long as the connection or
a batch in it lives. Implementations: `wire.cuda_vmm`, `wire.cuda_legacy`, and `testing.memfd_device`, with which the whole
protocol runs without a GPU. Before a block is used both sides prove that they see the same bytes (`write_ping`, `answer_ping`,
`check_pong`): some container set-ups import a handle without an error and map something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.errors import TransportUnavailable

PATTERN_BYTES = 64
# Where a slot's pixels begin: what GPU kernels and copies like best.
SLOT_ALIGN = 512


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of device memory, mapped here. pointer: address in this process. nbytes: as mapped, at least what was asked.

    state: the implementation's own.
    """

    pointer: int
    nbytes: int
    imported: bool
    state: Any = None


@dataclass(frozen=True, slots=True)
class Handle:
    """What another process imports a block by: a descriptor, which its holder closes (-1: none), or bytes."""

    fd: int = -1
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """Host memory. close: gives it back; once."""

    view: memoryview
    close: Callable[[], None]


class DeviceMemory(Protocol):
    """One way to share memory of one GPU. Any thread; every call makes the GPU's context current and gives the old one back.

    kind: vmm | legacy | memfd. gpu: ordinal in this process. outlives_owner: an importer may go on reading when the process
    that allocated the block is gone. dlpack_device: (type, ordinal) of its pointers. All methods raise TransportUnavailable.
    """

    kind: str
    gpu: int
    outlives_owner: bool
    dlpack_device: tuple[int, int]

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes`."""
        ...

    def export(self, block: Block) -> Handle:
        """What to import it by; once a block. The descriptor is the caller's to close."""
        ...

    def import_block(self, handle: Handle, nbytes: int) -> Block:
        """Map another process's block of `nbytes`. The descriptor stays the caller's to close."""
        ...

    def free(self, block: Block) -> None:
        """Give a block back, own or imported; once."""
        ...

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        """Copy host memory to the device; all of it is there when this returns."""
        ...

    def read(self, pointer: int, out: memoryview) -> None:
        """Copy device memory to the host; all of it is here when this returns."""
        ...

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """Host memory from which `write` is fast."""
        ...

    def close(self) -> None:
        """Let go of the GPU; no block and no host buffer is used any more. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of this process. uuid: the same in every process that sees this GPU. name: for people. memories: ways to share
    its memory, the best first. lacks: why a way that is missing is missing."""

    uuid: str
    name: str
    memories: tuple[DeviceMemory, ...]
    lacks: str = ""

    def memory(self, kind: str) -> DeviceMemory | None:
        """The way of that kind, if it is there."""
        return next((memory for memory in self.memories if memory.kind == kind), None)

    def close(self) -> None:
        """Let go of the GPU."""
        for memory in self.memories:
            memory.close()


def slot_bytes(pixel_bytes: int) -> int:
    """Device memory of one slot."""
    return -(-pixel_bytes // SLOT_ALIGN) * SLOT_ALIGN


def round_up(nbytes: int, granularity: int) -> int:
    """The next multiple."""
    return -(-nbytes // granularity) * granularity


def why_other_gpu(mine: str, theirs: str) -> str:
    """Why two sides whose GPUs have these UUIDs share no device memory."""
    text = f"the worker works on {mine}, this rank on {theirs}"
    if mine.startswith("MIG-") or theirs.startswith("MIG-"):
        return f"{text}: memory is not shared across MIG instances"
    return f"{text}: another GPU"


def write_ping(memory: DeviceMemory, block: Block, nbytes: int, nonce: str) -> None:
    """Write the owner's pattern to both ends of the first `nbytes` of a block."""
    _write(memory, block, nbytes, _pattern(nonce, b"owner"))


def answer_ping(memory: DeviceMemory, block: Block, nbytes: int, nonce: str) -> None:
    """Check the owner's pattern in an imported block, and write the importer's. Raises TransportUnavailable."""
    _check(memory, block, nbytes, _pattern(nonce, b"owner"))
    _write(memory, block, nbytes, _pattern(nonce, b"importer"))


def check_pong(memory: DeviceMemory, block: Block, nbytes: int, nonce: str) -> None:
    """Check the importer's pattern. Raises TransportUnavailable."""
    _check(memory, block, nbytes, _pattern(nonce, b"importer"))


def _pattern(nonce: str, who: bytes) -> bytes:
    return hashlib.blake2b(nonce.encode(), digest_size=PATTERN_BYTES, person=who).digest()


def _ends(block: Block, nbytes: int) -> tuple[int, int]:
    return block.pointer, block.pointer + nbytes - PATTERN_BYTES


def _write(memory: DeviceMemory, block: Block, nbytes: int, pattern: bytes) -> None:
    for pointer in _ends(block, nbytes):
        memory.write(pointer, pattern)


def _check(memory: DeviceMemory, block: Block, nbytes: int, pattern: bytes) -> None:
    for pointer, end in zip(_ends(block, nbytes), ("first", "last"), strict=True):
        found = bytearray(PATTERN_BYTES)
        memory.read(pointer, memoryview(found))
        if found != pattern:
            raise TransportUnavailable(
                f"probe mismatch: the {end} bytes of the {memory.kind} slab are not what the other process wrote: the two "
                "see different memory; give worker and trainer the same GPU, or leave the choice to transport='auto'",
                reason="probe mismatch",
            )
