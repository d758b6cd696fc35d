"""GPU memory shared by the older IPC handles: 64 bytes name a block, whose mapping must not be used once its owner is gone.

For GPUs and drivers without descriptors. The block is a plain allocation of its own: a handle maps the whole of it, and memory
from pools or virtual memory management has none. Never run on a GPU (docs/gpu.md).
"""

from __future__ import annotations

import ctypes

from cuda.bindings import driver

from headrace.core.errors import TransportUnavailable
from headrace.wire.cuda_calls import OnGpu, call
from headrace.wire.device_memory import Block, Handle, round_up

# Smaller allocations may share a block with others, and a handle would map those as well.
GRANULARITY = 2 << 20
HANDLE_BYTES = 64


class LegacyMemory(OnGpu):
    """See wire.device_memory.DeviceMemory."""

    kind = "legacy"
    outlives_owner = False

    def allocate(self, nbytes: int) -> Block:
        """See DeviceMemory."""
        size = round_up(nbytes, GRANULARITY)
        with self._context.current():
            return Block(int(call(driver.cuMemAlloc, size)), size, False)

    def export(self, block: Block) -> Handle:
        """See DeviceMemory."""
        with self._context.current():
            return Handle(data=handle_bytes(call(driver.cuIpcGetMemHandle, block.pointer)))

    def import_block(self, handle: Handle, nbytes: int) -> Block:
        """See DeviceMemory."""
        lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        with self._context.current():
            pointer = int(call(driver.cuIpcOpenMemHandle, handle_of(handle.data), int(lazy)))
        return Block(pointer, round_up(nbytes, GRANULARITY), True)

    def free(self, block: Block) -> None:
        """See DeviceMemory."""
        with self._context.current():
            call(driver.cuIpcCloseMemHandle if block.imported else driver.cuMemFree, block.pointer)


def handle_bytes(handle: driver.CUipcMemHandle) -> bytes:
    """A handle as it travels. The bindings give no field of it, so its memory is read."""
    return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)


def handle_of(data: bytes) -> driver.CUipcMemHandle:
    """The handle of such bytes. Raises TransportUnavailable if they are not as many."""
    if len(data) != HANDLE_BYTES:
        raise TransportUnavailable(f"the worker's handle of its GPU memory has {len(data)} bytes, not {HANDLE_BYTES}")
    handle = driver.CUipcMemHandle()
    ctypes.memmove(int(handle.getPtr()), data, HANDLE_BYTES)
    return handle
