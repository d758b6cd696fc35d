"""Indexes a data set: finds its shards and samples, and writes manifest and shard indexes.

Order of writing: indexes (each named by its hash), then the manifest (named by its hash), then the pointer. Whoever reads
meanwhile sees the old data set or the new one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from headrace.core.errors import ConfigInvalid, LabelInvalid, ShardInvalid, ShardMissing
from headrace.core.masking import mask_address
from headrace.datasets.edges import edge_hash, edge_ranges
from headrace.datasets.exclude import Excluded, not_there
from headrace.datasets.labels import LabelRule, Rule, choose_rule, number_names
from headrace.datasets.layout import Layout, find_layout
from headrace.datasets.manifest import Manifest, Shard, hash_bytes, store_manifest
from headrace.datasets.pointer import check_pointer
from headrace.datasets.report import IndexReport, Tally, check_usable, make_manifest, tell_labels
from headrace.datasets.scan import Found, folder_entries, scan_tar, tar_entries
from headrace.datasets.shard_index import encode_index
from headrace.datasets.storage import ObjectInfo, ObjectMissing, Storage, local_path, open_storage
from headrace.datasets.tar import split_name
from headrace.datasets.tasks import gather_all

INDEX_DIRECTORY = ".index"

BadPolicy = Literal["keep", "skip", "fail"]


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How to index.

    labels: rule, or `auto` to choose by what is there. classes: class name -> number; empty to collect and sort names.
    exclude: keys to leave out, or (shard, key). bad: samples found bad are kept (and substituted in training, each time
    counted), skipped, or fail the indexing. checksums: read all bytes once and keep a CRC-32 of each image. out: where to
    write, empty for beside the data. replace: also where the manifest there is of other data. slice_files: files of a slice of
    an image folder. parallel: shards at a time.
    """

    labels: Rule | Literal["auto"] = "auto"
    classes: Mapping[str, int] = field(default_factory=dict)
    exclude: frozenset[Excluded] = frozenset()
    bad: BadPolicy = "keep"
    checksums: bool = False
    out: str = ""
    replace: bool = False
    slice_files: int = 4096
    parallel: int = 16


Progress = Callable[[int, int], None]  # shards done, shards in all
Part = tuple[str, list[ObjectInfo]]  # a shard: its name, and its tar or its slice of the sorted file list


async def build_index(address: str, options: IndexOptions | None = None, progress: Progress | None = None) -> Manifest:
    """Index the data set at `address` and write its manifest; see `build_report`."""
    return (await build_report(address, options, progress)).manifest


async def build_report(address: str, options: IndexOptions | None = None, progress: Progress | None = None) -> IndexReport:
    """Index the data set at `address`: a directory or prefix, one tar, or tars by braces (`a-{000..146}.tar`).

    Raises ShardMissing (nothing there), ShardInvalid (a shard that is empty or no tar, or no usable sample), LabelInvalid,
    ConfigInvalid (also for a place with a manifest of other data), DiskFull or SourceUnavailable; then no manifest is written.
    """
    options = options or IndexOptions()
    if local_path(address) is None and "@" in urlsplit(address).netloc and options.out:
        raise ConfigInvalid(f"{mask_address(address)}: give credentials by environment, or they would stand in the manifest")
    layout = await find_layout(address)
    out = open_storage(options.out) if options.out else layout.storage
    try:
        return await _Indexer(layout, out, options, progress or (lambda done, total: None)).run()
    finally:
        await out.close()
        await layout.storage.close()


class _Indexer:
    """One run of indexing."""

    def __init__(self, layout: Layout, out: Storage, options: IndexOptions, progress: Progress) -> None:
        self._layout = layout
        self._out = out
        self._options = options
        self._progress = progress
        self._slots = asyncio.Semaphore(options.parallel)
        self._done = 0
        self._tally = Tally()
        self._rule = LabelRule("none", {})
        self._exclude = options.exclude
        if layout.kind == "folder":  # a key is a whole path, and slices are cut anew each time
            self._exclude = frozenset(entry if isinstance(entry, str) else entry[1] for entry in options.exclude)

    async def run(self) -> IndexReport:
        await self._check_pointer()  # before all is read for nothing
        parts = self._parts()
        rule = await self._choose_rule()
        self._rule = LabelRule(rule, self._classes() if rule != "none" else {})
        self._progress(0, len(parts))
        if self._rule.collects_names:  # names get their numbers when all are known, so the entries are kept till then
            scanned = await gather_all(self._scan(part, len(parts)) for part in parts)
            names = Counter(name for found, _ in scanned for name in found.names if name)
            self._rule, warning = number_names(self._rule, names)
            self._tally.warnings += [warning] if warning else []
            for found, shard in scanned:
                found.number(self._rule)
                self._judge(shard.name, found)
            shards = await gather_all(self._write(found, shard) for found, shard in scanned)
        else:
            shards = await gather_all(self._scan_and_write(part, len(parts)) for part in parts)
        return await self._finish(shards)

    async def _check_pointer(self) -> list[str]:
        if self._options.replace:
            return []
        return await check_pointer(self._options.out or self._layout.address, self._layout)

    def _parts(self) -> list[Part]:
        files, step = self._layout.files, self._options.slice_files
        if self._layout.kind == "webdataset":
            return [(info.path, [info]) for info in files]
        return [(f"slice-{i // step:05d}", files[i : i + step]) for i in range(0, len(files), step)]

    def _classes(self) -> Mapping[str, int]:
        """The given classes; for an image folder, else, its directories' names, sorted."""
        if self._options.classes or self._layout.kind != "folder":
            return self._options.classes
        names = {info.path.rpartition("/")[0].rpartition("/")[2] for info in self._layout.files}
        return {name: i for i, name in enumerate(sorted(names - {""}))}

    async def _choose_rule(self) -> Rule:
        files, labels = self._layout.files, self._options.labels
        if self._layout.kind == "folder":
            if labels not in ("auto", "folder", "none"):
                raise ConfigInvalid(f"an image folder has labels by folder, not by {labels!r}", labels=labels)
            in_folders = any("/" in info.path for info in files)
            return choose_rule(set(), in_folders, True) if labels == "auto" else labels
        if labels != "auto":
            return labels
        for info in files:
            scan = await scan_tar(self._layout.storage, info.path, info.size, False)
            if scan.members:
                names = [split_name(member.name) for member in scan.members]
                return choose_rule({extension for _, extension in names}, any("/" in key for key, _ in names), False)
        raise ShardInvalid(f"no samples in {self._layout.storage.address}: all {len(files)} shards are empty")

    async def _scan_and_write(self, part: Part, total: int) -> Shard:
        return await self._write(*await self._scan(part, total))

    async def _scan(self, part: Part, total: int) -> tuple[Found, Shard]:
        name, files = part
        is_tar = self._layout.kind == "webdataset"
        async with self._slots:
            try:
                found, edge = await (self._tar(files[0]) if is_tar else self._slice(files))
            except ObjectMissing as error:
                raise ShardMissing(f"{name} vanished while it was indexed: index again", shard=name) from error
        self._judge(name, found)
        self._done += 1
        self._progress(self._done, total)
        size = sum(info.size for info in files)
        return found, Shard(name, size, 0, edge, files[0].etag if is_tar else "", "", 0, "")

    async def _tar(self, info: ObjectInfo) -> tuple[Found, str]:
        storage = self._layout.storage
        scan = await scan_tar(storage, info.path, info.size, self._options.checksums)
        edges = [await storage.get_range(info.path, start, length) for start, length in edge_ranges(info.size)]
        return tar_entries(info.path, scan, self._rule, self._exclude), edge_hash(*edges)

    async def _slice(self, files: list[ObjectInfo]) -> tuple[Found, str]:
        rows: list[tuple[str, int, int | None]] = []
        for info in files:
            crc32 = zlib.crc32(await self._layout.storage.get(info.path)) if self._options.checksums else None
            rows.append((info.path, info.size, crc32))
        return folder_entries(rows, self._rule, self._exclude), ""

    def _judge(self, name: str, found: Found) -> None:
        """Apply the policy for bad samples."""
        if self._options.bad == "fail" and found.details:
            key, reason, detail = found.details[0]
            error = LabelInvalid if reason == "bad_label" else ShardInvalid
            raise error(f"sample {key!r} in {name}: {detail}; correct it, or use --bad keep or skip", shard=name, key=key)
        if self._options.bad == "skip":
            good = [i for i, entry in enumerate(found.entries) if entry.reason == "none"]
            found.entries = [found.entries[i] for i in good]
            found.names = [found.names[i] for i in good]

    async def _write(self, found: Found, shard: Shard) -> Shard:
        data = encode_index(found.entries, shard.bytes)
        digest = hash_bytes(data)
        path = f"{INDEX_DIRECTORY}/{shard.name}.{digest[:16]}.idx"
        async with self._slots:
            await self._out.put(path, data)
        self._tally.add(shard.name, found, self._rule)
        return replace(shard, samples=len(found.entries), index=path, index_bytes=len(data), index_hash=digest)

    async def _finish(self, shards: list[Shard]) -> IndexReport:
        layout, options = self._layout, self._options
        check_usable(self._tally, layout.storage.address)
        tell_labels(self._tally, self._rule)
        root = ""
        if options.out:
            path = local_path(layout.address)
            root = layout.address if path is None else str(path.resolve())
        classes = tuple(_names_by_number(self._rule.classes))
        manifest = make_manifest(
            layout.kind,
            rule=self._rule,
            tally=self._tally,
            shards=shards,
            classes=classes,
            root=root,
            checksums=options.checksums,
        )
        self._tally.warnings += layout.warnings
        self._tally.notes += layout.notes
        if stray := not_there(self._exclude, self._tally.matched):
            self._tally.warnings.insert(0, stray)
        self._tally.notes += await self._check_pointer()  # again, since others may have indexed meanwhile
        await store_manifest(self._out, manifest)
        return IndexReport(manifest, options.out or layout.address, self._tally)


def _names_by_number(classes: Mapping[str, int]) -> list[str]:
    """Class names placed at their numbers; gaps are filled with the number."""
    names = [str(i) for i in range(max(classes.values(), default=-1) + 1)]
    for name, number in classes.items():
        names[number] = name
    return names
