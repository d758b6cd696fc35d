"""The CUDA driver's functions that we call, over memory of this machine: strict about what the real one demands.

With it `wire.cuda_vmm` and `wire.cuda_legacy` run line by line where no GPU is: sizes in multiples of the granularity, a
current context for each call, access given before a byte is touched, everything freed once. It shows that we keep the rules
as NVIDIA documents them, not that a driver does. Types, constants and enumerations are the real bindings'. Drivers of two
processes share memory as the real one does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as real

GRANULARITY = 2 << 20
_OK = real.CUresult.CUDA_SUCCESS
_INVALID = real.CUresult.CUDA_ERROR_INVALID_VALUE
_HANDLE = struct.Struct("<iiQ")  # pid, descriptor, bytes


@dataclass(eq=False)
class _Physical:
    """Memory and how many handles and mappings it has."""

    fd: int
    size: int
    uses: int = 1


@dataclass(eq=False)
class _Range:
    """Addresses. physical: what is mapped there. kind: reserved | plain | ipc | host."""

    memory: mmap.mmap | None
    size: int
    kind: str
    physical: _Physical | None = None
    accessible: bool = False


class FakeDriver:
    """See the module. lacks: functions that this driver is too old for. fails: function -> result. vmm: what it says of VMM."""

    def __init__(self, *, uuid: bytes = bytes(16), name: bytes = b"Fake GPU", vmm: bool = True) -> None:
        self.uuid = uuid
        self.name = name
        self.vmm = vmm
        self.lacks: set[str] = set()
        self.fails: dict[str, Any] = {}
        self.ranges: dict[int, _Range] = {}
        self.pinned: dict[int, int] = {}
        self.contexts = 0
        self.physical: dict[int, _Physical] = {}
        self._local = threading.local()
        self._next = 1

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), f"_{name}"):
            return self._function(name, getattr(self, f"_{name}"))
        return getattr(real, name)

    @property
    def clean(self) -> bool:
        """True if nothing is held any more but what a process keeps of the context."""
        return not (self.ranges or self.physical or self.pinned)

    def _function(self, name: str, function: Any) -> Any:
        def called(*arguments: Any) -> tuple[Any, ...]:
            if name in self.lacks:
                raise RuntimeError(f'Function "{name}" not found')
            if name in self.fails:
                return (self.fails[name], None)
            free = ("cuInit", "cuDevice", "cuCtxPush")
            if not name.startswith(free) and not self._stack():
                return (real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
            result: tuple[Any, ...] = function(*arguments)
            return result

        called.__name__ = name
        return called

    # --- device and context ------------------------------------------------------------------------------------------

    def _stack(self) -> list[int]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[int] = self._local.stack
        return stack

    def _cuInit(self, flags: int) -> tuple[Any, ...]:
        return (_OK,)

    def _cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return (_OK, ordinal) if ordinal == 0 else (real.CUresult.CUDA_ERROR_INVALID_DEVICE, None)

    def _cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return (_OK, self.name + b"\0")

    def _cuDeviceGetUuid_v2(self, device: int) -> tuple[Any, ...]:
        return (_OK, type("Uuid", (), {"bytes": self.uuid})())

    def _cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        return (_OK, int(self.vmm))

    def _cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.contexts += 1
        return (_OK, 77)

    def _cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.contexts -= 1
        return (_OK,)

    def _cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        self._stack().append(context)
        return (_OK,)

    def _cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return (_OK, self._stack().pop())

    def _cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return (_OK, 5)

    def _cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        return (_OK,)

    def _cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        return (_OK,)

    # --- virtual memory management -----------------------------------------------------------------------------------

    def _cuMemGetAllocationGranularity(self, prop: Any, option: Any) -> tuple[Any, ...]:
        return (_OK, GRANULARITY)

    def _cuMemCreate(self, size: int, prop: Any, flags: int) -> tuple[Any, ...]:
        wanted = real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        if size % GRANULARITY or prop.requestedHandleTypes != wanted or flags:
            return (_INVALID, None)
        return (_OK, self._hold(_Physical(_memfd(size), size)))

    def _cuMemExportToShareableHandle(self, handle: int, kind: Any, flags: int) -> tuple[Any, ...]:
        return (_OK, os.dup(self.physical[handle].fd))

    def _cuMemImportFromShareableHandle(self, fd: int, kind: Any) -> tuple[Any, ...]:
        return (_OK, self._hold(_Physical(os.dup(fd), os.fstat(fd).st_size)))

    def _cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        if size % GRANULARITY:
            return (_INVALID, None)
        self._next += 1
        pointer = self._next << 40  # nothing is there yet
        self.ranges[pointer] = _Range(None, size, "reserved")
        return (_OK, pointer)

    def _cuMemMap(self, pointer: int, size: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        found, physical = self.ranges.get(pointer), self.physical.get(handle)
        if found is None or physical is None or found.physical or not found.size == size == physical.size:
            return (_INVALID,)
        physical.uses += 1
        found.physical, found.memory = physical, mmap.mmap(physical.fd, size)
        return (_OK,)

    def _cuMemSetAccess(self, pointer: int, size: int, descriptions: list[Any], count: int) -> tuple[Any, ...]:
        if self.ranges[pointer].physical is None or len(descriptions) != count:
            return (_INVALID,)
        self.ranges[pointer].accessible = True
        return (_OK,)

    def _cuMemUnmap(self, pointer: int, size: int) -> tuple[Any, ...]:
        found = self.ranges[pointer]
        if found.physical is None or found.memory is None or found.size != size:
            return (_INVALID,)
        found.memory.close()
        physical, found.physical, found.memory = found.physical, None, None
        self._drop(physical)
        return (_OK,)

    def _cuMemAddressFree(self, pointer: int, size: int) -> tuple[Any, ...]:
        if self.ranges[pointer].physical is not None:
            return (_INVALID,)
        del self.ranges[pointer]
        return (_OK,)

    def _cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        self._drop(self.physical.pop(handle))
        return (_OK,)

    # --- plain memory and its handles --------------------------------------------------------------------------------

    def _cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        return (_OK, self._plain(_Physical(_memfd(size), size), "plain"))

    def _cuMemFree(self, pointer: int) -> tuple[Any, ...]:
        return self._free(pointer, "plain")

    def _cuIpcGetMemHandle(self, pointer: int) -> tuple[Any, ...]:
        found = self.ranges.get(pointer)
        if found is None or found.kind != "plain" or found.physical is None:  # VMM memory has none
            return (_INVALID, None)
        handle = real.CUipcMemHandle()
        data = _HANDLE.pack(os.getpid(), found.physical.fd, found.size).ljust(64, b"\0")
        ctypes.memmove(int(handle.getPtr()), data, 64)
        return (_OK, handle)

    def _cuIpcOpenMemHandle(self, handle: Any, flags: int) -> tuple[Any, ...]:
        pid, fd, size = _HANDLE.unpack(ctypes.string_at(int(handle.getPtr()), _HANDLE.size))
        try:
            return (_OK, self._plain(_Physical(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), size), "ipc"))
        except OSError:
            return (real.CUresult.CUDA_ERROR_INVALID_HANDLE, None)

    def _cuIpcCloseMemHandle(self, pointer: int) -> tuple[Any, ...]:
        return self._free(pointer, "ipc")

    # --- host memory and copies --------------------------------------------------------------------------------------

    def _cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        memory = mmap.mmap(-1, size)
        pointer = _address(memory)
        self.ranges[pointer] = _Range(memory, size, "host")
        return (_OK, pointer)

    def _cuMemFreeHost(self, pointer: int) -> tuple[Any, ...]:
        return self._free(pointer, "host")

    def _cuMemHostRegister(self, pointer: int, size: int, flags: int) -> tuple[Any, ...]:
        if pointer in self.pinned or pointer % mmap.PAGESIZE or size % mmap.PAGESIZE:
            return (_INVALID,)
        self.pinned[pointer] = size
        return (_OK,)

    def _cuMemHostUnregister(self, pointer: int) -> tuple[Any, ...]:
        return (_OK,) if self.pinned.pop(pointer, None) else (_INVALID,)

    def _cuMemcpyHtoDAsync(self, pointer: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        with self._touched(pointer, size) as (memory, start):
            if memory is None:
                return (real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
            memory[start : start + size] = ctypes.string_at(source, size)
        return (_OK,)

    def _cuMemcpyDtoHAsync(self, target: int, pointer: int, size: int, stream: int) -> tuple[Any, ...]:
        with self._touched(pointer, size) as (memory, start):
            if memory is None:
                return (real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
            ctypes.memmove(target, memory[start : start + size], size)
        return (_OK,)

    @contextmanager
    def _touched(self, pointer: int, size: int) -> Iterator[tuple[mmap.mmap | None, int]]:
        for start, found in self.ranges.items():
            if found.kind != "host" and start <= pointer and pointer + size <= start + found.size and found.accessible:
                yield found.memory, pointer - start
                return
        yield None, 0

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _hold(self, physical: _Physical) -> int:
        self._next += 1
        self.physical[self._next] = physical
        return self._next

    @staticmethod
    def _drop(physical: _Physical) -> None:
        physical.uses -= 1
        if physical.uses == 0:
            os.close(physical.fd)

    def _plain(self, physical: _Physical, kind: str) -> int:
        memory = mmap.mmap(physical.fd, physical.size)
        pointer = _address(memory)
        self.ranges[pointer] = _Range(memory, physical.size, kind, physical, accessible=True)
        return pointer

    def _free(self, pointer: int, kind: str) -> tuple[Any, ...]:
        found = self.ranges.get(pointer)
        if found is None or found.kind != kind or found.memory is None:
            return (_INVALID,)
        del self.ranges[pointer]
        found.memory.close()
        if found.physical is not None:
            self._drop(found.physical)
        return (_OK,)


def _memfd(size: int) -> int:
    fd = os.memfd_create("headrace-fake-gpu", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def _address(memory: mmap.mmap) -> int:
    view = ctypes.c_char.from_buffer(memory)
    return ctypes.addressof(view)
