"""Manifests as opening a job needs them: read once for all ranks, and answered within a call's deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Read:
    """A read of a manifest. had_s: since when somebody has its outcome; None while nobody does."""

    begun_s: float
    task: asyncio.Task[ManifestFacts]
    had_s: float | None = None


class Manifests:
    """Manifests by address, each read once in a while: all ranks open their job at about the same time."""

    def __init__(self, read: ReadManifest, keep_s: float, patience_s: float = _PATIENCE_S) -> None:
        self._read = read
        self._keep_s = keep_s
        self._patience_s = patience_s
        self._reads: dict[str, _Read] = {}

    async def get(self, address: str, new: bool = False) -> ManifestFacts:
        """Read a manifest, or wait for whoever does. Raises what reading raises; failures are not kept.

        new: for a job that is not known yet: the data set may have been indexed again just now, so none that was read before
        but by its other ranks.

        An object store may be tried for longer than a call lasts: SourceUnavailable then says so in time, and the caller's
        next try waits for the same read.
        """
        self._forget_old(address if new else "", time.monotonic())
        read = self._reads.get(address) or self._begin(address)
        # Not awaited itself: one caller that goes away must not end the others' read.
        await asyncio.wait({read.task}, timeout=self._patience_s)
        now_s = time.monotonic()
        if not read.task.done():
            raise SourceUnavailable(
                f"the manifest is not read after {now_s - read.begun_s:.0f} s: check that the coordinator reaches "
                f"{mask_address(address)} and has credentials for it",
                manifest=mask_address(address),
            )
        read.had_s = read.had_s or now_s
        if (read.task.cancelled() or read.task.exception() is not None) and self._reads.get(address) is read:
            del self._reads[address]
        return read.task.result()

    def _begin(self, address: str) -> _Read:
        reading = sum(not read.task.done() for read in self._reads.values())
        limits.at_most(reading + 1, limits.MANIFEST_READS, "manifests being read at a time", SourceUnavailable)
        read = _Read(time.monotonic(), asyncio.ensure_future(self._read(address)))
        read.task.add_done_callback(_seen)
        self._reads[address] = read
        return read

    def _forget_old(self, wanted_anew: str, now_s: float) -> None:
        """Forget what was read long ago, and of one address also what others had before the ranks that ask now.

        Who waits for a slow read takes its outcome however long it took: it counts from when somebody had it.
        """
        for address, read in list(self._reads.items()):
            old = now_s - read.begun_s > self._keep_s
            had_before = address == wanted_anew and read.had_s is not None and now_s - read.had_s > _OTHER_RANKS_S
            if read.task.done() and (old or had_before):
                del self._reads[address]

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
