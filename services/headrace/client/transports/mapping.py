"""Slabs as the trainer sees them: mapped read-only, with a life that ends when the last batch in it is done with.

A slab is cut into `slots` slots of `slot_bytes`; index i lies in slot `i % slots`. The mapping lives as long as its
connection, a batch in it, or an array of the trainer over it; views are handed out by `view` and taken back by `take_back`.
Arrays hold the mapping itself, not the view: `close` is refused while there is one, and is tried again, or the last array's
end unmaps what was forgotten with its stream.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass, field

import numpy as np

from headrace.client.gpu import Pinner
from headrace.client.logs import log
from headrace.client.transports.device_slab import ImportedSlab
from headrace.core import limits
from headrace.core.errors import OutOfDescriptors, ProtocolMismatch, TransportUnavailable
from headrace.telemetry.failures import out_of_descriptors
from headrace.telemetry.memory import available_bytes
from headrace.wire.slot_format import PAGE, PIXEL_OFFSET

# Not in Python's fcntl module before 3.12.
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4
_F_SEAL_WRITE, _F_SEAL_FUTURE_WRITE = 8, 16
MAX_SLAB_BYTES = limits.SLAB_BYTES


@dataclass(slots=True)
class Slab:
    """One mapped slab. number: unique in this process. transport: rung that fills it.

    in_use: its connection (or fetcher) still writes to it. device: where the pixels lie if not here. pinned: a GPU copies from
    it without anybody's waiting.
    """

    number: int
    slots: int
    slot_bytes: int
    generation: int
    transport: str
    memory: mmap.mmap
    in_use: bool = True
    device: ImportedSlab | None = None
    _pinner: Pinner | None = None
    _views: dict[int, memoryview] = field(default_factory=dict)

    def view(self, index: int) -> memoryview:
        """The slot of `index`, read-only; the same object until it is taken back."""
        if index not in self._views:
            start = (index % self.slots) * self.slot_bytes
            with memoryview(self.memory) as whole:
                self._views[index] = whole[start : start + self.slot_bytes]
        return self._views[index]

    @property
    def pinned(self) -> bool:
        """See the class."""
        return self._pinner is not None

    def pin(self, pinner: Pinner) -> None:
        """Pin all of it until it is unmapped. Raises TransportUnavailable."""
        pinner.pin(self._address(), self.slots * self.slot_bytes)
        self._pinner = pinner

    def _address(self) -> int:
        with memoryview(self.memory) as whole:
            return int(np.frombuffer(whole, np.uint8).ctypes.data)

    def _unpin(self) -> None:
        pinner, self._pinner = self._pinner, None
        if pinner is not None:
            try:
                pinner.unpin(self._address())
            except TransportUnavailable as error:  # the driver is going down, with the process
                log.warning("slab_not_unpinned", transport=self.transport, reason=error.message)

    def take_back(self, below: int) -> None:
        """End our views of indexes below a number. Arrays made from them go on: each holds the mapping."""
        for index in list(self._views):
            if index >= below:
                continue
            try:
                self._views[index].release()
            except BufferError:  # something reads this very view; closing waits for that
                continue
            del self._views[index]

    def close(self, below: int) -> bool:
        """Unmap, if no view and no array is left after taking back those below a number. True if it is gone."""
        self.take_back(below)
        if self._views:
            return False
        if self.device is not None:
            if not self.device.close():
                return False
            self.device = None
        self._unpin()
        try:
            self.memory.close()
        except BufferError:  # an array of the trainer
            return False
        return True


def map_slab(
    fd: int, number: int, *, slots: int, slot_bytes: int, generation: int, transport: str, who: str, foreign: bool = False
) -> Slab:
    """Map a producer's descriptor read-only. The descriptor stays the caller's to close.

    Raises OutOfDescriptors, and ProtocolMismatch if it does not hold what `who` says, or could be truncated later: reading
    would then kill us. So would pages that are missing, or that are taken away: another process's memory (foreign) has them
    all, and its seal against writing by others also keeps everyone from punching holes into it.
    """
    if slots < 1 or slot_bytes < PIXEL_OFFSET or slot_bytes % PAGE or slots * slot_bytes > MAX_SLAB_BYTES:
        raise ProtocolMismatch(f"{who} announces a slab of {slots} slots of {slot_bytes} bytes: impossible", worker=who)
    found = os.fstat(fd)
    if found.st_size < slots * slot_bytes:
        raise ProtocolMismatch(f"the slab of {who} has {found.st_size} bytes, not {slots} slots of {slot_bytes}", worker=who)
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
        if not seals & _F_SEAL_SHRINK:
            raise ProtocolMismatch(f"the slab of {who} is not sealed against shrinking: it is not read", worker=who)
        if foreign and not seals & (_F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE):
            raise ProtocolMismatch(f"the slab of {who} is not sealed against writing: it is not read", worker=who)
        if foreign and found.st_blocks * 512 < slots * slot_bytes:
            raise ProtocolMismatch(f"the slab of {who} has memory for {found.st_blocks * 512} of its bytes only", worker=who)
        memory = mmap.mmap(fd, slots * slot_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except OSError as error:
        what = f"the slab of {who} cannot be mapped"
        lack = out_of_descriptors(error, what, worker=who)
        raise lack or ProtocolMismatch(f"{what}: {error}", worker=who) from error
    return Slab(number, slots, slot_bytes, generation, transport, memory)


def create_slab(number: int, slots: int, slot_bytes: int) -> tuple[Slab, int]:
    """A slab of our own for the fetcher, and its descriptor, which is the caller's to close.

    Raises TransportUnavailable if there is no memory for it, and OutOfDescriptors.
    The fetcher touches all of it at once: what is not there now would make the kernel kill a process, not tell us.
    """
    size = slots * slot_bytes
    try:
        available = available_bytes()
        if size > min(available, MAX_SLAB_BYTES):
            raise TransportUnavailable(
                f"no memory for a slab of {size / 2**20:.0f} MiB ({slots} batches to receive into; {available / 2**20:.0f} MiB "
                "are free): give the trainer a larger memory limit, or the job a smaller batch or window",
                bytes=size,
            )
        fd = os.memfd_create("headrace-fetch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
            return map_slab(
                fd, number, slots=slots, slot_bytes=slot_bytes, generation=0, transport="grpc", who="this process"
            ), fd
        except BaseException:
            os.close(fd)
            raise
    except (OSError, OutOfDescriptors) as error:
        if lack := out_of_descriptors(error, "the memory to receive batches into cannot be made"):
            raise lack from error
        raise TransportUnavailable(f"no memory for {slots} slots of {slot_bytes} bytes to fetch into: {error}") from error
