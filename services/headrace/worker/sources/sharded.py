"""The source of indexed data sets: WebDataset tars and image folders, on local disks and in object stores.

One source per manifest, on the worker's event loop. The way of a read: ids -> (shard, row) by the manifest's counts -> index
records, from the cache or by range -> extents -> bytes, many requests in flight. Samples hold views of what was read: nothing
is copied.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core import limits
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import ManifestInvalid
from headrace.datasets.manifest import ANYWHERE, Manifest, load_manifest_from
from headrace.datasets.roots import Roots
from headrace.datasets.shard_index import HAS_CRC, IndexBlock
from headrace.datasets.storage import Storage, open_storage
from headrace.datasets.tasks import gather_all
from headrace.worker.engines.protocol import Sample
from headrace.worker.sources.index_cache import IndexCache
from headrace.worker.sources.protocol import ReadBatch, Reserve
from headrace.worker.sources.readers import Wanted, make_reader


async def open_source(manifest_address: str, expected_hash: str = "", roots: Roots = ANYWHERE) -> ShardedSource:
    """Open a manifest's samples for reading.

    Raises ManifestMissing, ManifestInvalid (also if the manifest there is not `expected_hash`), SourceUnavailable, or
    AccessDenied where `roots` does not allow the manifest's place or its shards'.
    """
    manifest, directory = await load_manifest_from(manifest_address, expected_hash, roots)
    data = roots.data_address(directory, manifest.root)
    return ShardedSource(manifest, open_storage(directory), open_storage(data))


class ShardedSource:
    """Implements worker.sources.protocol.Source."""

    def __init__(self, manifest: Manifest, index_storage: Storage, data_storage: Storage) -> None:
        self.manifest = manifest
        self.samples = manifest.samples
        self.manifest_hash = manifest.hash
        self._storages = (index_storage, data_storage)
        self._index = IndexCache(manifest, index_storage)
        self._reader = make_reader(manifest, data_storage)
        self._starts = np.concatenate([[0], manifest.ends]).astype(np.int64)

    async def read(self, sample_ids: Sequence[int], reserve: Reserve | None = None) -> ReadBatch:
        """Read these samples; see the protocol."""
        ids = np.asarray(sample_ids, np.int64)
        index_bytes, index_requests = self._index.read_bytes, self._index.requests
        shards, places = await self._places(ids)
        samples: list[Sample] = []
        wanted: list[Wanted] = []
        for shard, (block, row) in zip(shards, places, strict=True):
            record = block.records[row]
            wanted.append(Wanted(shard, block.key(row), int(record["offset"]), int(record["length"])))
        reasons = [_reason(block.records[row]) for block, row in places]
        wishes = [wish for wish, reason in zip(wanted, reasons, strict=True) if reason == "none"]
        if reserve is not None:
            await reserve(sum(wish.length for wish in wishes))
        count = await self._reader.read(wishes)
        if self.manifest.checksums:
            await asyncio.to_thread(_check_sums, places, wanted, reasons)
        for sample_id, wish, reason in zip(ids.tolist(), wanted, reasons, strict=True):
            samples.append(Sample(sample_id, wish.key, wish.data if reason == "none" else None, reason))
        labels, label_json = self._labels(places)
        return ReadBatch(
            samples,
            labels,
            label_json,
            count.read_bytes + self._index.read_bytes - index_bytes,
            count.requests + self._index.requests - index_requests,
        )

    async def read_labels(self, sample_ids: Sequence[int]) -> NDArray[np.int64] | NDArray[np.uint8] | None:
        """Labels alone, from the index; None for JSON ones."""
        _, places = await self._places(np.asarray(sample_ids, np.int64))
        return self._labels(places)[0]

    async def close(self) -> None:
        """Free connections, threads and caches."""
        await self._index.close()
        for storage in self._storages:
            await storage.close()

    def _locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        outside = ids[(ids < 0) | (ids >= self.samples)]
        if outside.size:
            raise ManifestInvalid(
                f"sample {int(outside[0])} is not in the manifest of {self.samples} samples",
                sample=int(outside[0]),
                manifest=self.manifest_hash,
            )
        shards = np.searchsorted(self._starts, ids, side="right").astype(np.int64) - 1
        return shards, ids - self._starts[shards]

    async def _places(self, ids: NDArray[np.int64]) -> tuple[list[int], list[tuple[IndexBlock, int]]]:
        """Of each id: its shard, and the index block that describes it with the row in it."""
        shards, rows = (values.tolist() for values in self._locate(ids))
        of_id = [self._index.key_of(shard, row) for shard, row in zip(shards, rows, strict=True)]
        keys = list(dict.fromkeys(of_id))
        blocks = dict(zip(keys, await gather_all(self._index.get(key) for key in keys), strict=True))
        return shards, [(blocks[key], row - blocks[key].first) for key, row in zip(of_id, rows, strict=True)]

    def _labels(self, places: list[tuple[IndexBlock, int]]) -> tuple[NDArray[np.int64] | NDArray[np.uint8] | None, list[bytes]]:
        if self.manifest.label_kind == "json":
            return None, [block.payload(row) or b"null" for block, row in places]
        if self.manifest.label_kind == "int":
            return np.array([int(block.records[row]["label"]) for block, row in places], np.int64), []
        hot = np.zeros((len(places), self.manifest.label_width), np.uint8)
        for i, (block, row) in enumerate(places):
            hot[i, _multi_label(block.payload(row), self.manifest.label_width)] = 1
        return hot, []


def _reason(record: np.void) -> str:
    """Why a sample is bad by its record alone. An index that was not made by this version may list larger images."""
    reason = BAD_REASONS[int(record["reason"])]
    return "too_large" if reason == "none" and int(record["length"]) > limits.IMAGE_BYTES else reason


def _multi_label(payload: bytes, width: int) -> NDArray[np.uint32]:
    """The set columns of a row. Raises ManifestInvalid where index and manifest do not fit one another."""
    columns = np.frombuffer(payload[: len(payload) // 4 * 4], np.dtype("<u4"))
    if len(payload) % 4 or np.any(columns >= width):
        raise ManifestInvalid(f"the index has a label beyond the manifest's {width} columns: index the data set again")
    return columns


def _check_sums(places: list[tuple[IndexBlock, int]], wanted: list[Wanted], reasons: list[str]) -> None:
    """Give samples whose bytes do not fit their CRC-32 the reason `checksum`."""
    for i, ((block, row), wish) in enumerate(zip(places, wanted, strict=True)):
        record = block.records[row]
        if wish.data is not None and record["flags"] & HAS_CRC and zlib.crc32(wish.data) != int(record["crc32"]):
            reasons[i] = "checksum"
