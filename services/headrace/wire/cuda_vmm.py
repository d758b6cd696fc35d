"""GPU memory shared by the driver's virtual memory management: a descriptor names it, and it lives until its last mapping goes.

That needs no more than a Unix socket between the two processes, and a batch stays readable when its worker is killed. Never
run on a GPU (docs/gpu.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from headrace.core.errors import TransportUnavailable
from headrace.wire.cuda_calls import Context, OnGpu, call
from headrace.wire.device_memory import Block, Handle, round_up

_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


@dataclass(frozen=True, slots=True)
class _Mapping:
    """handle: of the physical memory; None where it was imported, since the mapping keeps it."""

    handle: Any


class VmmMemory(OnGpu):
    """See wire.device_memory.DeviceMemory."""

    kind = "vmm"
    outlives_owner = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._granularity = 0

    def allocate(self, nbytes: int) -> Block:
        """See DeviceMemory."""
        with self._context.current():
            size = round_up(nbytes, self._granule())
            handle = call(driver.cuMemCreate, size, allocation(self.gpu), 0)
            try:
                return Block(self._map(handle, size), size, False, _Mapping(handle))
            except BaseException:
                call(driver.cuMemRelease, handle)
                raise

    def export(self, block: Block) -> Handle:
        """See DeviceMemory."""
        with self._context.current():
            return Handle(int(call(driver.cuMemExportToShareableHandle, block.state.handle, _FD, 0)))

    def import_block(self, handle: Handle, nbytes: int) -> Block:
        """See DeviceMemory."""
        if handle.fd < 0:
            raise TransportUnavailable("the worker's descriptor of its GPU memory did not come")
        with self._context.current():
            size = round_up(nbytes, self._granule())
            physical = call(driver.cuMemImportFromShareableHandle, handle.fd, _FD)
            try:
                pointer = self._map(physical, size)
            finally:
                call(driver.cuMemRelease, physical)  # the mapping keeps the memory
            return Block(pointer, size, True, _Mapping(None))

    def free(self, block: Block) -> None:
        """See DeviceMemory."""
        with self._context.current():
            call(driver.cuMemUnmap, block.pointer, block.nbytes)
            call(driver.cuMemAddressFree, block.pointer, block.nbytes)
            if block.state.handle is not None:
                call(driver.cuMemRelease, block.state.handle)

    def _map(self, handle: Any, size: int) -> int:
        """Map physical memory where there is room, readable and writable on this GPU."""
        pointer = call(driver.cuMemAddressReserve, size, 0, 0, 0)
        mapped = False
        try:
            call(driver.cuMemMap, pointer, size, 0, handle, 0)
            mapped = True
            call(driver.cuMemSetAccess, pointer, size, [access(self.gpu)], 1)
        except BaseException:
            if mapped:
                call(driver.cuMemUnmap, pointer, size)
            call(driver.cuMemAddressFree, pointer, size)
            raise
        return int(pointer)

    def _granule(self) -> int:
        if not self._granularity:
            minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            self._granularity = int(call(driver.cuMemGetAllocationGranularity, allocation(self.gpu), minimum))
        return self._granularity


def allocation(ordinal: int) -> driver.CUmemAllocationProp:
    """What to allocate: plain memory of one GPU, to be exported as a descriptor."""
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = _location(ordinal)
    wanted.requestedHandleTypes = _FD
    return wanted


def access(ordinal: int) -> driver.CUmemAccessDesc:
    """Readable and writable on one GPU: device memory can be mapped in no other way, and the probe writes."""
    wanted = driver.CUmemAccessDesc()
    wanted.location = _location(ordinal)
    wanted.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return wanted


def _location(ordinal: int) -> driver.CUmemLocation:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location
