"""Reads image bytes out of shards: local or remote, tars or folders.

A reader gets wishes (`Wanted`), and fills in their data. It checks each shard against the manifest before its bytes are
trusted: size and edge hash or tag for a tar, size of each file in a folder.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import AccessDenied, ConfigInvalid, HeadraceError, ShardChanged, ShardMissing, from_code
from headrace.datasets.edges import edge_hash, edge_ranges
from headrace.datasets.manifest import Manifest, Shard
from headrace.datasets.storage import ObjectMissing, ObjectReplaced, Storage
from headrace.datasets.storage_local import READ_THREADS, LocalStorage, pread_all, translate
from headrace.datasets.tasks import gather_all
from headrace.worker.sources.coalesce import Extent, coalesce

# A gap costs its bytes, a further request its latency: 64 kB is 16 us of page cache, 1 MiB some 10 ms of an object store.
LOCAL_GAP_BYTES = 64 << 10
REMOTE_GAP_BYTES = 1 << 20
MAX_EXTENT_BYTES = 16 << 20
# Waking a thread costs as much CPU as copying that many bytes from the page cache.
LEAST_BYTES_A_HOP = 256 << 10
REMOTE_REQUESTS = 64  # in flight, over all reads of one source


@dataclass(slots=True)
class Wanted:
    """One image to read. shard: number in the manifest. key: the file's path in a folder. data: filled in by the reader."""

    shard: int
    key: str
    offset: int
    length: int
    data: memoryview | None = None


@dataclass(slots=True)
class ReadCount:
    """What was read: bytes and requests."""

    read_bytes: int = 0
    requests: int = 0


class Reader(Protocol):
    """Fills in the data of all wishes, or raises ShardMissing, ShardChanged or SourceUnavailable."""

    async def read(self, wanted: Sequence[Wanted]) -> ReadCount:
        """Read all; on the event loop."""
        ...


def make_reader(manifest: Manifest, storage: Storage) -> Reader:
    """The reader for this kind of data set in this kind of place."""
    if isinstance(storage, LocalStorage):
        return LocalTarReader(manifest, storage) if manifest.kind == "webdataset" else LocalFileReader(manifest, storage)
    return RemoteTarReader(manifest, storage) if manifest.kind == "webdataset" else RemoteFileReader(manifest, storage)


def missing(shard: Shard, path: str, where: str) -> ShardMissing:
    """The error for a shard or file that is gone."""
    return ShardMissing(f"{path} is gone from {where}: restore it, or index the data set again", shard=shard.name, path=path)


def changed(shard: Shard, path: str, what: str) -> ShardChanged:
    """The error for a shard or file that is not what was indexed."""
    return ShardChanged(
        f"{path} changed since it was indexed ({what}): restore it, or index again", shard=shard.name, path=path
    )


def _by_shard(wanted: Sequence[Wanted]) -> dict[int, list[Wanted]]:
    groups: dict[int, list[Wanted]] = defaultdict(list)
    for wish in wanted:
        groups[wish.shard].append(wish)
    return groups


def _extents(wishes: Sequence[Wanted], gap_bytes: int) -> list[Extent]:
    return coalesce([wish.offset for wish in wishes], [wish.length for wish in wishes], gap_bytes, MAX_EXTENT_BYTES)


def _fill(wishes: Sequence[Wanted], extent: Extent, data: bytes | memoryview) -> None:
    view = memoryview(data)
    for item in extent.items:
        wish = wishes[item]
        begin = wish.offset - extent.start
        wish.data = view[begin : begin + wish.length]


def _spread(jobs: Iterable[tuple[int, Callable[[], None]]]) -> list[list[Callable[[], None]]]:
    """Deal (bytes, job) pairs to at most READ_THREADS lists of about equal bytes: one thread hop a list, not a read."""
    ordered = sorted(jobs, key=lambda pair: -pair[0])
    threads = min(READ_THREADS, 1 + sum(size for size, _ in ordered) // LEAST_BYTES_A_HOP)
    lists: list[list[Callable[[], None]]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for size, job in ordered:
        least = loads.index(min(loads))
        lists[least].append(job)
        loads[least] += size + 4096
    return [jobs_of_one for jobs_of_one in lists if jobs_of_one]


async def _run_all(storage: LocalStorage, jobs: Iterable[tuple[int, Callable[[], None]]]) -> None:
    def runner(batch: list[Callable[[], None]]) -> Callable[[], None]:
        def run() -> None:
            for job in batch:
                job()

        return run

    await gather_all(storage.run(runner(batch)) for batch in _spread(jobs))


class LocalTarReader:
    """Tars on a local disk, by `pread` in a few threads. A file is opened anew for each batch: 20 us, and no descriptor
    outlives its use."""

    def __init__(self, manifest: Manifest, storage: LocalStorage) -> None:
        self._shards = manifest.shards
        self._storage = storage
        self._checked: dict[int, tuple[int, ...]] = {}  # shard -> the very file that was checked; any thread

    async def read(self, wanted: Sequence[Wanted]) -> ReadCount:
        """Read all, neighbours at once."""
        count = ReadCount()
        jobs: list[tuple[int, Callable[[], None]]] = []
        for number, wishes in _by_shard(wanted).items():
            for extent in _extents(wishes, LOCAL_GAP_BYTES):
                count.requests += 1
                count.read_bytes += extent.length
                jobs.append((extent.length, self._job(number, wishes, extent)))
        await _run_all(self._storage, jobs)
        return count

    def _job(self, number: int, wishes: Sequence[Wanted], extent: Extent) -> Callable[[], None]:
        return lambda: _fill(wishes, extent, self._read_extent(number, extent))

    def _read_extent(self, number: int, extent: Extent) -> bytes:
        shard = self._shards[number]
        try:
            fd = self._storage.open_fd(shard.name)
        except ObjectMissing as error:
            raise missing(shard, shard.name, self._storage.address) from error
        except (ConfigInvalid, AccessDenied) as error:
            raise from_code(error.code, error.message, {**error.ids, "shard": shard.name}) from error
        try:
            self._check(number, shard, fd)
            data = pread_all(fd, extent.length, extent.start)
        except OSError as error:
            raise translate(error, self._storage.root / shard.name) from error
        finally:
            os.close(fd)
        if len(data) != extent.length:
            raise changed(shard, shard.name, f"it ends at {extent.start + len(data)} bytes")
        return data

    def _check(self, number: int, shard: Shard, fd: int) -> None:
        status = os.fstat(fd)
        size = status.st_size
        if size != shard.bytes:
            raise changed(shard, shard.name, f"{size} bytes, not {shard.bytes}")
        # Checked again whenever the file was replaced or written to: a job runs for weeks.
        file = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        if self._checked.get(number) != file:
            if edge_hash(*(pread_all(fd, length, start) for start, length in edge_ranges(size))) != shard.edge_hash:
                raise changed(shard, shard.name, "other content at its start or end")
            self._checked[number] = file


class LocalFileReader:
    """An image folder on a local disk."""

    def __init__(self, manifest: Manifest, storage: LocalStorage) -> None:
        self._shards = manifest.shards
        self._storage = storage

    async def read(self, wanted: Sequence[Wanted]) -> ReadCount:
        """Read all files."""
        await _run_all(self._storage, [(wish.length, self._job(wish)) for wish in wanted])
        return ReadCount(sum(wish.length for wish in wanted), len(wanted))

    def _job(self, wish: Wanted) -> Callable[[], None]:
        def job() -> None:
            shard = self._shards[wish.shard]
            try:
                data = self._storage.read_sync(wish.key, 0, -1)
            except ObjectMissing as error:
                raise missing(shard, wish.key, self._storage.address) from error
            if len(data) != wish.length:
                raise changed(shard, wish.key, f"{len(data)} bytes, not {wish.length}")
            wish.data = memoryview(data)

        return job


class RemoteTarReader:
    """Tars in an object store, by byte range, many requests in flight."""

    def __init__(self, manifest: Manifest, storage: Storage) -> None:
        self._shards = manifest.shards
        self._storage = storage
        self._slots = asyncio.Semaphore(REMOTE_REQUESTS)
        self._checks: dict[int, asyncio.Task[str]] = {}
        self._untagged: set[int] = set()  # shards whose server does not know its own tags again

    async def read(self, wanted: Sequence[Wanted]) -> ReadCount:
        """Read all, neighbours at once."""
        count = ReadCount()
        groups = _by_shard(wanted)
        reads = []
        for number, wishes in groups.items():
            for extent in _extents(wishes, REMOTE_GAP_BYTES):
                count.requests += 1
                count.read_bytes += extent.length
                reads.append(self._read_extent(number, wishes, extent))
        await gather_all(reads)
        return count

    async def _read_extent(self, number: int, wishes: Sequence[Wanted], extent: Extent) -> None:
        shard = self._shards[number]
        try:
            data = await self._get(number, shard, extent)
        except ObjectReplaced:
            self._checks.pop(number, None)  # another object by now: it may be the right one, put back
            data = await self._get_again(number, shard, extent)
        if len(data) != extent.length:
            raise changed(shard, shard.name, f"it ends at {extent.start + len(data)} bytes")
        _fill(wishes, extent, data)

    async def _get_again(self, number: int, shard: Shard, extent: Extent) -> memoryview:
        """After a refusal by tag; where the check's own tag is refused, the tag counts only if the manifest has it."""
        try:
            return await self._get(number, shard, extent)
        except ObjectReplaced as error:
            if shard.etag:
                raise changed(shard, shard.name, "it was replaced again, or its store refuses the tag that it names") from error
        self._untagged.add(number)
        self._checks.pop(number, None)
        return await self._get(number, shard, extent)

    async def _get(self, number: int, shard: Shard, extent: Extent) -> memoryview:
        tag = await self._checked(number)
        async with self._slots:
            try:
                return await self._storage.get_range(shard.name, extent.start, extent.length, tag)
            except ObjectMissing as error:
                raise missing(shard, shard.name, self._storage.address) from error
            except ObjectReplaced:
                raise
            except HeadraceError:
                await self._check(number)  # a range beyond a shortened object fails like a fault that may pass
                raise

    async def _checked(self, number: int) -> str:
        """Check a shard once, and give the tag of what was checked; a failed check is made again by the next read."""
        task = self._checks.get(number)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(self._check(number))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._checks[number] = task
        return await asyncio.shield(task)

    async def _check(self, number: int) -> str:
        """The object's tag, empty where it has none or the server may not know it again."""
        shard = self._shards[number]
        try:
            info = await self._storage.head(shard.name)
            if info.size != shard.bytes:
                raise changed(shard, shard.name, f"{info.size} bytes, not {shard.bytes}")
            weak = info.etag.startswith("W/")  # such a tag never matches
            tag = "" if weak or number in self._untagged else info.etag
            if shard.etag and info.etag:
                if info.etag != shard.etag:
                    raise changed(shard, shard.name, f"tag {info.etag}, not {shard.etag}")
                return tag
            edges = [await self._storage.get_range(shard.name, start, length, tag) for start, length in edge_ranges(info.size)]
        except ObjectMissing as error:
            raise missing(shard, shard.name, self._storage.address) from error
        except ObjectReplaced as error:
            if not tag:
                raise changed(shard, shard.name, "it was replaced while it was checked") from error
            self._untagged.add(number)  # no tag was recorded, and what is there must pass the check all the same
            return await self._check(number)
        if edge_hash(*edges) != shard.edge_hash:
            raise changed(shard, shard.name, "other content at its start or end")
        return tag


class RemoteFileReader:
    """An image folder in an object store."""

    def __init__(self, manifest: Manifest, storage: Storage) -> None:
        self._shards = manifest.shards
        self._storage = storage
        self._slots = asyncio.Semaphore(REMOTE_REQUESTS)

    async def read(self, wanted: Sequence[Wanted]) -> ReadCount:
        """Read all objects."""
        await gather_all(self._read_one(wish) for wish in wanted)
        return ReadCount(sum(wish.length for wish in wanted), len(wanted))

    async def _read_one(self, wish: Wanted) -> None:
        shard = self._shards[wish.shard]
        async with self._slots:
            try:
                data = await self._storage.get(wish.key)
            except ObjectMissing as error:
                raise missing(shard, wish.key, self._storage.address) from error
        if len(data) != wish.length:
            raise changed(shard, wish.key, f"{len(data)} bytes, not {wish.length}")
        wish.data = memoryview(data)
