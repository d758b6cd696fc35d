"""Manifests as opening a job needs them: read once for all ranks, and answered within a call's deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.core import limits
from headrace.core.errors import ManifestInvalid, SourceUnavailable
from headrace.core.masking import mask_address
from headrace.datasets.storage import join_address, split_address

_OTHER_RANKS_S = 1.0
_PATIENCE_S = 4.0  # below the client's deadline of a call


class ManifestFacts(Protocol):
    """What a job takes from its manifest; datasets.manifest.Manifest has it."""

    @property
    def hash(self) -> str: ...
    @property
    def samples(self) -> int: ...
    @property
    def max_key_bytes(self) -> int: ...
    @property
    def max_label_bytes(self) -> int: ...
    @property
    def label_kind(self) -> str: ...
    @property
    def label_width(self) -> int: ...
    def shard_of(self, sample: int) -> str: ...


ReadManifest = Callable[[str], Awaitable[ManifestFacts]]


class Manifests:
    """Manifests by address, each read once in a while: all ranks open their job at about the same time."""

    def __init__(self, read: ReadManifest, keep_s: float, patience_s: float = _PATIENCE_S) -> None:
        self._read = read
        self._keep_s = keep_s
        self._patience_s = patience_s
        self._tasks: dict[str, tuple[float, asyncio.Task[ManifestFacts]]] = {}
        self._read_s: dict[str, float] = {}

    async def get(self, address: str, new: bool = False) -> ManifestFacts:
        """Read a manifest, or wait for whoever does. Raises what reading raises; failures are not kept.

        new: for a job that is not known yet: the data set may have been indexed again just now, so none that was read before
        but by its other ranks.

        An object store may be tried for longer than a call lasts: SourceUnavailable then says so in time, and the caller's
        next try waits for the same read.
        """
        now = time.monotonic()
        for old in [key for key, (since, task) in self._tasks.items() if task.done() and now - since > self._keep_s]:
            del self._tasks[old]
        self._read_s = {known: read_s for known, read_s in self._read_s.items() if known in self._tasks}
        if new and now - self._read_s.get(address, now) > _OTHER_RANKS_S and self._tasks[address][1].done():
            del self._tasks[address]
        if address not in self._tasks:
            reading = sum(not task.done() for _, task in self._tasks.values())
            limits.at_most(reading + 1, limits.MANIFEST_READS, "manifests being read at a time", SourceUnavailable)
            self._tasks[address] = (now, asyncio.ensure_future(self._read(address)))
            self._tasks[address][1].add_done_callback(_seen)
            self._read_s.pop(address, None)
        since, task = self._tasks[address]
        # Not awaited itself: one caller that goes away must not end the others' read.
        await asyncio.wait({task}, timeout=self._patience_s)
        if not task.done():
            raise SourceUnavailable(
                f"the manifest is not read after {time.monotonic() - since:.0f} s: check that the coordinator reaches "
                f"{mask_address(address)} and has credentials for it",
                manifest=mask_address(address),
            )
        self._read_s.setdefault(address, time.monotonic())  # since when somebody has it: who waits for a slow read takes that
        if task.cancelled() or task.exception() is not None:
            self._tasks.pop(address, None)
        return task.result()

    async def of_hash(self, dataset: str, manifest_hash: str) -> ManifestFacts:
        """The very manifest that a job was opened with, also where the data set was indexed again since. Raises as `get`."""
        manifest = await self.get(dataset)
        if manifest.hash == manifest_hash:
            return manifest
        directory = split_address(dataset)[0] if dataset.endswith(".json") else dataset
        manifest = await self.get(join_address(directory, f"manifest-{manifest_hash}.json"))
        if manifest.hash != manifest_hash:
            raise ManifestInvalid(f"{mask_address(dataset)} has no manifest {manifest_hash} any more", manifest=manifest_hash)
        return manifest


def _seen(task: asyncio.Task[Any]) -> None:
    """If no caller is left to take its failure, asyncio need not complain."""
    if not task.cancelled():
        task.exception()
