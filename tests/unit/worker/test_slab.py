"""The slab: sealed, given back, and honest about a lack of memory."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from pathlib import Path

import pytest

from headrace.client.transports.mapping import create_slab
from headrace.core.errors import DiskFull, HeadraceError, OutOfDescriptors, TransportUnavailable
from headrace.telemetry import memory
from headrace.telemetry.memory import available_bytes
from headrace.worker import slab as slab_module
from headrace.worker.slab import Slab, make_slab
from tests.unit.open_files import only

SLOT = 3 * mmap.PAGESIZE


def fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("headrace-slab")


def test_slots_are_disjoint_writable_and_seen_by_another_mapping() -> None:
    slab = Slab(4, SLOT)
    for number in range(4):
        slab.slot(number)[:] = bytes([number + 1]) * SLOT
    with mmap.mmap(slab.fd, 0, prot=mmap.PROT_READ) as peer:
        assert len(peer) == slab.size == 4 * SLOT
        assert peer[:] == b"".join(bytes([number + 1]) * SLOT for number in range(4))
    assert slab.close()


def test_the_seals_hold() -> None:
    slab = Slab(2, SLOT)
    for size in (SLOT, 3 * SLOT):
        with pytest.raises(PermissionError):
            os.ftruncate(slab.fd, size)
    with pytest.raises(PermissionError):
        mmap.mmap(slab.fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(slab.fd, b"x", 0)
    reopened = os.open(f"/proc/self/fd/{slab.fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        mmap.mmap(reopened, 0, prot=mmap.PROT_WRITE)
    os.close(reopened)
    slab.slot(0)[:5] = b"still"  # the owner's mapping goes on
    assert not os.get_inheritable(slab.fd)
    slab.close()


def test_all_pages_are_there_from_the_start() -> None:
    slab = Slab(8, 64 * mmap.PAGESIZE)
    assert os.fstat(slab.fd).st_blocks * 512 >= slab.size
    slab.close()


def test_close_gives_all_back_and_may_be_repeated() -> None:
    before = fds()
    slab = Slab(2, SLOT)
    assert fds() > before and mapped() == 1
    assert slab.close() and slab.close()
    assert (fds(), mapped(), slab.fd) == (before, 0, -1)
    with pytest.raises(HeadraceError, match="closed"):
        slab.slot(0)


def test_close_survives_views_and_the_last_view_frees() -> None:
    before = fds()
    slab = Slab(2, SLOT)
    view = slab.slot(1)
    assert not slab.close()
    view[:] = b"x" * SLOT  # an engine's thread may still write
    assert mapped() == 1
    del view
    assert (fds(), mapped()) == (before, 0)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_slot_that_is_not_there(number: int) -> None:
    slab = Slab(2, SLOT)
    with pytest.raises(HeadraceError, match="no slot"):
        slab.slot(number)
    slab.close()


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, SLOT), (1, 0), (1, SLOT + 1), (-3, SLOT)])
def test_impossible_sizes_are_refused(slots: int, slot_bytes: int) -> None:
    with pytest.raises(HeadraceError, match="whole pages"):
        Slab(slots, slot_bytes)


def test_more_than_there_is_memory_is_refused_before_the_kernel_kills() -> None:
    before = fds()
    with pytest.raises(DiskFull, match="larger memory limit"):
        Slab(1, (available_bytes() // mmap.PAGESIZE + 2**20) * mmap.PAGESIZE)
    assert fds() == before


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.ENOMEM, DiskFull), (errno.EMFILE, OutOfDescriptors), (errno.EPERM, HeadraceError)],
)
def test_errors_of_the_kernel_are_translated_and_nothing_leaks(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[HeadraceError]
) -> None:
    def fail(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(slab_module.os, "posix_fallocate", fail)
    before = fds()
    with pytest.raises(kind) as caught:
        Slab(1, SLOT)
    assert type(caught.value) is kind
    assert (fds(), mapped()) == (before, 0)


@pytest.mark.parametrize("more", [0, 1])
def test_too_few_open_files_have_their_name_whichever_call_finds_none(more: int) -> None:
    """0: not even the amount of free memory can be read; 1: the memory is there and cannot be mapped."""
    before = fds()
    with only(more), pytest.raises(OutOfDescriptors, match="ulimit") as caught:
        Slab(1, SLOT)
    assert caught.value.retriable
    assert (fds(), mapped()) == (before, 0)


def test_a_kernel_without_seals_means_another_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab_module, "SEALS", 1 << 30)
    before = fds()
    with pytest.raises(TransportUnavailable, match="grpc"):
        Slab(1, SLOT)
    assert (fds(), mapped()) == (before, 0)


async def test_a_slab_that_nobody_waits_for_is_closed() -> None:
    before = fds()
    task = asyncio.create_task(make_slab(4, 4096 * mmap.PAGESIZE))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        while mapped() or fds() > before:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


def test_the_cgroups_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\nactive_file 100000\ninactive_file 200000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert available_bytes() == 1000000 - 900000 + 300000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() > 1000000


def test_a_trainers_own_slab_is_refused_as_early() -> None:
    before = fds()
    with pytest.raises(TransportUnavailable, match="larger memory limit"):
        create_slab(1, 2, (available_bytes() // mmap.PAGESIZE) * mmap.PAGESIZE)
    assert fds() == before


@pytest.mark.parametrize("more", [0, 1])
def test_a_trainers_own_slab_without_open_files_is_a_named_error(more: int) -> None:
    before = fds()
    with only(more), pytest.raises(OutOfDescriptors, match="Too many open files"):
        create_slab(1, 2, SLOT)
    assert fds() == before
