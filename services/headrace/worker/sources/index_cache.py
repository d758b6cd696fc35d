"""Reads shard indexes by range and keeps what was read, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from headrace.core.errors import ManifestInvalid
from headrace.datasets.manifest import Manifest, Shard, hash_bytes
from headrace.datasets.shard_index import HEADER_BYTES, RECORD_BYTES, IndexBlock, blob_range, decode_block, decode_index
from headrace.datasets.storage import ObjectMissing, Storage

CACHE_BYTES = 256 << 20  # indexes of some four million samples
# A small index is one read, and its hash is checked. Where all indexes fit the cache, 1 MiB (some 15,000 samples) is small;
# where they don't, a read would mostly fetch what is dropped again, and blocks of 20 kB are read instead.
WHOLE_BYTES_IF_ALL_FIT = 1 << 20
WHOLE_BYTES_ELSE = 32 << 10
BLOCK_ROWS = 256
WHOLE = -1

BlockKey = tuple[int, int]


class IndexCache:
    """Blocks of one manifest's indexes; one event loop. Concurrent wishes for one block share one read."""

    def __init__(
        self,
        manifest: Manifest,
        storage: Storage,
        cache_bytes: int = CACHE_BYTES,
        whole_bytes: int | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._shards = manifest.shards
        self._storage = storage
        self._cache_bytes = cache_bytes
        all_fit = sum(shard.index_bytes for shard in manifest.shards) <= cache_bytes
        self._whole_bytes = whole_bytes if whole_bytes is not None else WHOLE_BYTES_IF_ALL_FIT if all_fit else WHOLE_BYTES_ELSE
        self._block_rows = block_rows
        self._blocks: OrderedDict[BlockKey, IndexBlock] = OrderedDict()
        self._loading: dict[BlockKey, asyncio.Task[IndexBlock]] = {}
        self.nbytes = 0
        self.read_bytes = 0
        self.requests = 0

    def key_of(self, shard: int, row: int) -> BlockKey:
        """Which block holds a row of a shard."""
        if self._shards[shard].index_bytes <= self._whole_bytes:
            return (shard, WHOLE)
        return (shard, row // self._block_rows)

    async def get(self, key: BlockKey) -> IndexBlock:
        """A block, read if it isn't kept. Raises ManifestInvalid or SourceUnavailable."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            return block
        task = self._loading.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(key))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._loaded(key, done))
        return await asyncio.shield(task)  # a cancelled reader must not fail the others

    def _loaded(self, key: BlockKey, task: asyncio.Task[IndexBlock]) -> None:
        del self._loading[key]
        if task.cancelled() or task.exception() is not None:
            return  # whoever awaits it gets the error
        block = task.result()
        self._blocks[key] = block
        self.nbytes += block.nbytes
        while self.nbytes > self._cache_bytes and len(self._blocks) > 1:
            _, old = self._blocks.popitem(last=False)
            self.nbytes -= old.nbytes

    async def _load(self, key: BlockKey) -> IndexBlock:
        shard = self._shards[key[0]]
        try:
            if key[1] == WHOLE:
                return await self._load_whole(shard)
            return await self._load_block(shard, key[1] * self._block_rows)
        except ObjectMissing as error:
            raise ManifestInvalid(
                f"the index of shard {shard.name} is gone ({shard.index}): index the data set again",
                shard=shard.name,
                index=shard.index,
            ) from error

    async def _load_whole(self, shard: Shard) -> IndexBlock:
        data = await self._storage.get(shard.index, self._whole_bytes)
        self._count(len(data))
        if hash_bytes(data) != shard.index_hash:
            raise ManifestInvalid(
                f"index {shard.index} is not the one in the manifest: index again", shard=shard.name, index=shard.index
            )
        block = decode_index(data, shard.index, shard.bytes)
        if len(block.records) != shard.samples:
            raise ManifestInvalid(
                f"index {shard.index} has {len(block.records)} samples, not {shard.samples}", shard=shard.name
            )
        return block

    async def _load_block(self, shard: Shard, first: int) -> IndexBlock:
        rows = min(self._block_rows, shard.samples - first)
        records = await self._range(shard, HEADER_BYTES + first * RECORD_BYTES, rows * RECORD_BYTES)
        blob_start, blob_end = blob_range(records, shard.index)
        blob_base = HEADER_BYTES + shard.samples * RECORD_BYTES
        if not 0 <= blob_start <= blob_end <= shard.index_bytes - blob_base:
            raise ManifestInvalid(f"index {shard.index} leads outside of itself: index again", shard=shard.name)
        blob = await self._range(shard, blob_base + blob_start, blob_end - blob_start)
        return decode_block(records, blob, first, shard.bytes, shard.index)

    async def _range(self, shard: Shard, start: int, length: int) -> memoryview:
        data = await self._storage.get_range(shard.index, start, length)
        self._count(len(data))
        if len(data) != length:
            raise ManifestInvalid(f"index {shard.index} is cut: index the data set again", shard=shard.name, index=shard.index)
        return data

    def _count(self, read_bytes: int) -> None:
        self.read_bytes += read_bytes
        self.requests += 1

    async def close(self) -> None:
        """Stop reads in flight and forget all blocks."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._blocks.clear()
        self.nbytes = 0
