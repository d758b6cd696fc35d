"""The manifest: an immutable list of a data set's shards, named by its own hash.

A manifest is stored as `manifest-<hash>.json`, its canonical JSON, so that `b2sum -l 128` of the file is its name;
`manifest.json` beside it is a small pointer to the newest one. A manifest is never overwritten by different content.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.core import limits
from headrace.core.errors import HeadraceError, ManifestInvalid, ManifestMissing
from headrace.core.masking import mask_address
from headrace.core.pipeline_spec import shown
from headrace.datasets.roots import Roots
from headrace.datasets.storage import ObjectMissing, Storage, check_path, join_address, open_storage, split_address

Kind = Literal["webdataset", "folder"]
LabelKind = Literal["int", "multi", "json"]

ANYWHERE = Roots(anywhere=True)
VERSION = 1
POINTER = "manifest.json"
_POINTER_FIELD = "headrace_manifest"
_NAMED = re.compile(r"manifest-([0-9a-f]{32})\.json")


@dataclass(frozen=True, slots=True)
class Shard:
    """One tar, or one slice of an image folder's sorted file list.

    name: path below the data set's root (webdataset), or the slice's name (folder). bytes: size of the tar, or sum of the
    slice's files. edge_hash: BLAKE2b-128 of the tar's first and last 16 KiB, cheap to check, empty for slices. etag: the
    object store's tag, empty for local files. index: path of the index below the manifest. index_hash: its BLAKE2b-128.
    """

    name: str
    bytes: int
    samples: int
    edge_hash: str
    etag: str
    index: str
    index_bytes: int
    index_hash: str


@dataclass(frozen=True)
class Manifest:
    """A data set as a job sees it.

    root: address of the data; empty where it is the manifest's own directory. label_width: columns of a multi-label row, else
    1. classes: names by label, empty where there are none. num_classes: count of classes where known, else 0. max_key_bytes,
    max_label_bytes: the longest key and JSON label, for the slot's size. bad: samples that the index already knows to be bad.
    checksums: whether the index has a CRC-32 of each image.
    """

    kind: Kind
    label_kind: LabelKind
    label_width: int
    num_classes: int
    samples: int
    bad: int
    max_key_bytes: int
    max_label_bytes: int
    classes: tuple[str, ...]
    shards: tuple[Shard, ...]
    root: str = ""
    checksums: bool = False
    version: int = VERSION

    @cached_property
    def content(self) -> bytes:
        """The canonical JSON that is stored and hashed."""
        data = {name: getattr(self, name) for name in _MANIFEST_FIELDS}
        data["shards"] = [{name: getattr(shard, name) for name in _SHARD_FIELDS} for shard in self.shards]
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @cached_property
    def hash(self) -> str:
        """Hex BLAKE2b-128 of the content."""
        return hash_bytes(self.content)

    @property
    def file_name(self) -> str:
        """What the manifest is stored as."""
        return f"manifest-{self.hash}.json"

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """int64[shards]: sample ids of shard i are ends[i-1] to ends[i] - 1."""
        return np.cumsum([shard.samples for shard in self.shards], dtype=np.int64)

    def shard_of(self, sample: int) -> str:
        """Name of the shard that holds a sample; empty where no shard does."""
        shard = int(np.searchsorted(self.ends, sample, side="right"))
        return self.shards[shard].name if 0 <= sample < self.samples else ""

    @staticmethod
    def from_content(content: bytes, where: str) -> Manifest:
        """Read stored content. Raises ManifestInvalid."""
        try:
            data = json.loads(content)
            return _from_dict(data)
        except HeadraceError as error:
            raise ManifestInvalid(f"{where} is not a usable manifest: {error.message}", manifest=where) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ManifestInvalid(
                f"{where} is not a manifest ({error}): make it again by `headrace index`", manifest=where
            ) from error


_SHARD_FIELDS = tuple(field.name for field in fields(Shard))
_MANIFEST_FIELDS = tuple(field.name for field in fields(Manifest))


def hash_bytes(data: bytes | memoryview) -> str:
    """Hex BLAKE2b-128, as all hashes of data sets are."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def is_manifest(name: str) -> bool:
    """True for the name of a manifest or of a pointer to one."""
    return name == POINTER or _NAMED.fullmatch(name) is not None


async def load_manifest(address: str, roots: Roots = ANYWHERE) -> Manifest:
    """Load a manifest by the address of its file, of its pointer or of its directory.

    Raises ManifestMissing, ManifestInvalid (malformed, or not of the hash that names it), SourceUnavailable, or AccessDenied
    where `roots` has neither the address nor that of the shards.
    """
    manifest, directory = await load_manifest_from(address, roots=roots)
    roots.data_address(directory, manifest.root)
    return manifest


async def load_manifest_from(address: str, expected_hash: str = "", roots: Roots = ANYWHERE) -> tuple[Manifest, str]:
    """Load a manifest and say in which directory's address it lies.

    With `expected_hash`, that very manifest is looked for first, so that a pointer which has moved on does no harm.
    """
    roots.check_dataset(address)
    directory, name = split_address(address) if address.endswith(".json") else (address, POINTER)
    storage = open_storage(directory)
    try:
        if expected_hash:
            try:
                return await _load_file(storage, f"manifest-{expected_hash}.json"), directory
            except ManifestMissing:
                pass  # a manifest stored under another name, or another manifest: decided below
        manifest = await _load_file(storage, name)
    finally:
        await storage.close()
    if expected_hash and manifest.hash != expected_hash:
        raise ManifestInvalid(
            f"the manifest at {mask_address(address)} is {manifest.hash}, not {expected_hash}: the data set was indexed again"
            " since the job was opened; open a new job, or restore the old manifest",
            manifest=manifest.hash,
            expected=expected_hash,
        )
    return manifest, directory


async def _load_file(storage: Storage, name: str) -> Manifest:
    where = join_address(storage.address, name)
    try:
        content = await storage.get(check_path(name), limits.MANIFEST_BYTES)
    except ObjectMissing as error:
        raise ManifestMissing(
            f"no manifest at {where}: make one by `headrace index`, or correct the address", manifest=where
        ) from error
    target = _pointer_target(content, where)
    if target is not None:
        return await _load_file(storage, target)
    manifest = Manifest.from_content(content, where)
    named = _NAMED.fullmatch(name)
    if named is not None and named.group(1) != hash_bytes(content):
        raise ManifestInvalid(
            f"{where} holds {hash_bytes(content)}: it was changed or cut; restore it, or index again", manifest=where
        )
    return manifest


def _pointer_target(content: bytes, where: str) -> str | None:
    if len(content) > 1024 or _POINTER_FIELD.encode() not in content:
        return None
    try:
        target = json.loads(content)[_POINTER_FIELD]
    except (ValueError, TypeError, KeyError) as error:
        raise ManifestInvalid(f"{where} is not a manifest pointer: index again", manifest=where) from error
    if not isinstance(target, str) or not _NAMED.fullmatch(target):
        raise ManifestInvalid(f"{where} points to {target!r}, which is no manifest's name: index again", manifest=where)
    return target


async def store_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the manifest under its hash, then the pointer to it. Raises DiskFull or SourceUnavailable."""
    await storage.put(manifest.file_name, manifest.content)
    await storage.put(POINTER, json.dumps({_POINTER_FIELD: manifest.file_name}).encode() + b"\n")


def _from_dict(data: dict[str, Any]) -> Manifest:
    if data.get("version") != VERSION:
        raise ManifestInvalid(f"version {shown(data.get('version'))} is not {VERSION}: index again with this release")
    unknown = set(data) - set(_MANIFEST_FIELDS)
    if unknown:
        raise ManifestInvalid(f"unknown field {shown(min(unknown))}")
    for name in ("shards", "classes"):
        if not isinstance(data[name], list):
            raise ManifestInvalid(f"{name} is no list")
    limits.at_most(len(data["shards"]), limits.SHARDS, "shards", ManifestInvalid)
    shards = tuple(Shard(**shard) for shard in data["shards"])
    manifest = Manifest(**{**data, "shards": shards, "classes": tuple(data["classes"])})
    _validate(manifest)
    return manifest


_MOST = {
    "bytes": 2**62, "index_bytes": limits.INDEX_BYTES, "samples": limits.SAMPLES, "bad": limits.SAMPLES, "version": VERSION,
    "num_classes": limits.CLASSES, "label_width": limits.MULTI_CLASSES,
    "max_key_bytes": limits.KEY_BYTES, "max_label_bytes": limits.LABEL_BYTES,
}  # fmt: skip


def _check_types(record: Manifest | Shard) -> None:
    """Numbers within their limits, texts that are texts: all comes from a file that somebody else may have written."""
    for each in fields(record):
        value = getattr(record, each.name)
        if each.name in _MOST:
            if type(value) is not int or value < 0:
                raise ManifestInvalid(f"{each.name} is {shown(value)}, which is no count")
            limits.at_most(value, _MOST[each.name], each.name, ManifestInvalid)
        elif each.type == "bool":
            if type(value) is not bool:
                raise ManifestInvalid(f"{each.name} is {shown(value)}, neither true nor false")
        elif each.name not in ("shards", "classes"):
            if not isinstance(value, str):
                raise ManifestInvalid(f"{each.name} is {shown(value)}, which is no text")
            limits.text(value, each.name, limits.ADDRESS_CHARS, ManifestInvalid)


def _validate(manifest: Manifest) -> None:
    _check_types(manifest)
    if manifest.kind not in get_args(Kind) or manifest.label_kind not in get_args(LabelKind):
        raise ManifestInvalid(f"unknown kind {shown(manifest.kind)} or label kind {shown(manifest.label_kind)}")
    for shard in manifest.shards:
        _check_types(shard)
        check_path(shard.name)
        check_path(shard.index)
    if sum(shard.samples for shard in manifest.shards) != manifest.samples:
        raise ManifestInvalid("the shards' samples do not add up")
    if manifest.label_width < 1:
        raise ManifestInvalid("a width is out of range")
    limits.at_most(len(manifest.classes), limits.CLASSES, "classes", ManifestInvalid)
    for name in manifest.classes:
        if not isinstance(name, str):
            raise ManifestInvalid(f"class name {shown(name)} is no text")
        limits.text(name, "a class name", limits.KEY_BYTES, ManifestInvalid)
