"""One block of shared memory, allocated once and cut into fixed slots.

A memfd needs no /dev/shm and no name, crosses container namespaces by SCM_RIGHTS, and goes when the last process that
maps it does. After the owner's own mapping is made it is sealed: nobody can shrink, grow or unseal it, and nobody can
make another writable mapping, so a trainer can neither crash the worker by truncating nor scribble on a batch.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import TypeVar

from headrace.core.errors import DiskFull, HeadraceError, TransportUnavailable
from headrace.telemetry.failures import out_of_descriptors
from headrace.telemetry.memory import available_bytes

_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 0x1
_F_SEAL_SHRINK = 0x2
_F_SEAL_GROW = 0x4
_F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1
SEALS = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE

_NO_SPACE = {errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EOVERFLOW}

Made = TypeVar("Made")


class Slab:
    """`slots` slots of `slot_bytes` bytes, mapped writable here and sealed for everyone else.

    Every page is allocated in the constructor, so that a lack of memory shows as DiskFull here and not as a signal in
    the middle of a batch, and no engine ever pays for a page fault. Raises TransportUnavailable where the kernel cannot
    seal. The constructor takes about 0.3 s/GB: call it through `make_slab` from an event loop.
    """

    __slots__ = ("_fd", "_map", "slot_bytes", "slots")

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if slots < 1 or slot_bytes < mmap.PAGESIZE or slot_bytes % mmap.PAGESIZE:
            raise HeadraceError(f"a slab needs slots of whole pages, not {slots} of {slot_bytes} bytes")
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._fd = -1
        self._map: mmap.mmap | None = None
        size = slots * slot_bytes
        try:
            if size > available_bytes():
                raise _no_memory(size)
            self._fd = os.memfd_create("headrace-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self._fd, size)
            os.posix_fallocate(self._fd, 0, size)
            self._map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self._seal()
        except (OSError, OverflowError) as error:
            self.close()
            raise _creation_error(error, size) from error
        except HeadraceError:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor to pass on; -1 after `close`."""
        return self._fd

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.slots * self.slot_bytes

    def slot(self, number: int) -> memoryview:
        """A writable view of slot `number`, from 0 to slots - 1."""
        if self._map is None:
            raise HeadraceError("the slab is closed")
        if not 0 <= number < self.slots:
            raise HeadraceError(f"no slot {number} in a slab of {self.slots}")
        return memoryview(self._map)[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def close(self) -> bool:
        """Give the memory back; may be called again.

        Returns False if views of slots are still held: the descriptor is closed, and the mapping goes with the last view.
        A peer's mapping is its own and stays.
        """
        unmapped = True
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                unmapped = False
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        return unmapped

    def _seal(self) -> None:
        try:
            fcntl.fcntl(self._fd, _F_ADD_SEALS, SEALS)
        except OSError as error:
            raise TransportUnavailable(
                f"this kernel cannot seal shared memory ({error.strerror}); Linux 5.1 or later is needed, or use grpc"
            ) from error


async def make_slab(slots: int, slot_bytes: int) -> Slab:
    """A Slab, made in a thread."""
    return await in_thread(lambda: Slab(slots, slot_bytes), Slab.close)


async def in_thread(make: Callable[[], Made], close: Callable[[Made], object]) -> Made:
    """What `make` returns, called in a thread. If the caller is cancelled meanwhile, it is closed as soon as it is there."""
    future = asyncio.get_running_loop().run_in_executor(None, make)

    def close_unwanted(made: asyncio.Future[Made]) -> None:
        if not made.cancelled() and made.exception() is None:
            close(made.result())

    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(close_unwanted)
        raise


def _no_memory(size: int) -> DiskFull:
    return DiskFull(
        f"no memory for a slab of {size / 2**20:.0f} MiB: give the worker a larger memory limit, "
        "or the job a smaller batch or window",
        bytes=size,
    )


def _creation_error(error: OSError | OverflowError, size: int) -> HeadraceError:
    if isinstance(error, OverflowError) or error.errno in _NO_SPACE:
        return _no_memory(size)
    what = f"cannot make a slab of {size / 2**20:.0f} MiB"
    return out_of_descriptors(error, what, bytes=size) or HeadraceError(f"{what}: {error.strerror}", bytes=size)
