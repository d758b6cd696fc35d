"""A GPU that is none: `device memory` in a memfd, mapped by both processes, so that all of `cuda_ipc` runs without one.

Faults are planted by name, to see what the protocol makes of them. `MemfdMemory(..., outlives_owner=False)` stands for legacy
handles: their mappings must not be used once the owner is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

from headrace.core.errors import TransportUnavailable
from headrace.wire.device_memory import Block, Device, Handle, HostBuffer, round_up

UUID = "GPU-00000000-0000-0000-0000-00006d656d66"
GRANULARITY = 2 << 20
_CPU = 1  # kDLCPU


@dataclass(slots=True)
class _Mapping:
    fd: int
    memory: mmap.mmap


class MemfdMemory:
    """See wire.device_memory.DeviceMemory.

    faults: `allocate` and `import` fail; `other` imports memory that is not the owner's; `deaf` has the importer's writes go
    nowhere. most_bytes: of all blocks that are allocated at a time, as a GPU has an end.
    """

    gpu = 0
    dlpack_device = (_CPU, 0)

    def __init__(
        self,
        kind: str = "memfd",
        *,
        outlives_owner: bool = True,
        faults: frozenset[str] = frozenset(),
        most_bytes: int = 1 << 30,
    ) -> None:
        self.kind = kind
        self.outlives_owner = outlives_owner
        self.faults = faults
        self.most_bytes = most_bytes
        self.blocks: dict[int, Block] = {}

    def allocate(self, nbytes: int) -> Block:
        """See DeviceMemory."""
        size = round_up(nbytes, GRANULARITY)
        held = sum(block.nbytes for block in self.blocks.values() if not block.imported)
        if "allocate" in self.faults or held + size > self.most_bytes:
            raise TransportUnavailable(f"no memory on the GPU for a slab of {size / 2**20:.0f} MiB", bytes=size)
        fd = os.memfd_create("headrace-device", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return self._mapped(fd, size, imported=False)

    def export(self, block: Block) -> Handle:
        """See DeviceMemory."""
        return Handle(os.dup(block.state.fd))

    def import_block(self, handle: Handle, nbytes: int) -> Block:
        """See DeviceMemory."""
        if "import" in self.faults:
            raise TransportUnavailable("cuMemImportFromShareableHandle: CUDA_ERROR_NOT_PERMITTED, as planted")
        size = round_up(nbytes, GRANULARITY)
        if handle.fd < 0 or os.fstat(handle.fd).st_size < size:
            raise TransportUnavailable(f"the descriptor holds no device memory of {size} bytes")
        if "other" in self.faults:
            fd = os.memfd_create("headrace-device", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
        else:
            fd = os.dup(handle.fd)
        return self._mapped(fd, size, imported=True)

    def free(self, block: Block) -> None:
        """See DeviceMemory."""
        del self.blocks[block.pointer]
        block.state.memory.close()
        os.close(block.state.fd)

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        """See DeviceMemory."""
        block = self._block(pointer, len(data))
        if not (block.imported and "deaf" in self.faults):
            start = pointer - block.pointer
            block.state.memory[start : start + len(data)] = data

    def read(self, pointer: int, out: memoryview) -> None:
        """See DeviceMemory."""
        block = self._block(pointer, len(out))
        start = pointer - block.pointer
        out[:] = block.state.memory[start : start + len(out)]

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """See DeviceMemory."""
        return HostBuffer(memoryview(bytearray(nbytes)), lambda: None)

    def close(self) -> None:
        """See DeviceMemory."""

    def _mapped(self, fd: int, size: int, *, imported: bool) -> Block:
        memory = mmap.mmap(fd, size)
        view = ctypes.c_char.from_buffer(memory)
        pointer = ctypes.addressof(view)
        del view  # else the mapping could never be closed
        block = self.blocks[pointer] = Block(pointer, size, imported, _Mapping(fd, memory))
        return block

    def _block(self, pointer: int, nbytes: int) -> Block:
        for block in self.blocks.values():
            if block.pointer <= pointer and pointer + nbytes <= block.pointer + block.nbytes:
                return block
        raise TransportUnavailable(f"an illegal address was encountered: {pointer:#x}")


def memfd_device(*memories: MemfdMemory, uuid: str = UUID) -> Device:
    """A GPU with these ways to share; one by default."""
    return Device(uuid, "memory of this machine that stands for a GPU", memories or (MemfdMemory(),))
