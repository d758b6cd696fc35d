"""Finds what kind of data set lies at an address, and its files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, ShardInvalid, ShardMissing
from headrace.core.masking import mask_address
from headrace.datasets.manifest import Kind, is_manifest
from headrace.datasets.scan import is_image_path
from headrace.datasets.storage import ObjectInfo, ObjectMissing, Storage, local_path, open_storage, split_address
from headrace.datasets.tasks import gather_all

_COMPRESSED = (".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4", ".tgz", ".tbz2", ".txz", ".tzst")
_UNPACK = "unpack it, since a compressed tar cannot be read by range"
_SHOWN = 5  # names of files that are left out
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(slots=True)
class Layout:
    """A data set's files. address: of the directory that holds them. files: tars, or images, sorted by path. notes: what is to
    be known and no fault."""

    address: str
    storage: Storage
    kind: Kind
    files: list[ObjectInfo]
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def find_layout(address: str) -> Layout:
    """List what is there. Raises ShardMissing if there is neither a tar nor an image, ShardInvalid for what is no tar."""
    if not address.strip():  # a path of no characters would be the current directory
        raise ConfigInvalid("the address is empty, as of a shell variable that is not set: name a directory, or tars")
    if _is_tar(address):
        return await _named_tars(address)
    if _is_a_file(address):
        raise _no_tar(address)
    if address.lower().startswith(("http://", "https://")):
        raise ConfigInvalid(
            "an HTTP server cannot be listed: name the shards by braces, as in https://host/train-{0000..0146}.tar",
            address=mask_address(address),
        )
    storage = open_storage(address)
    try:
        return _listed(address, storage, await storage.list())
    except BaseException as error:
        await storage.close()
        if not isinstance(error, ObjectMissing):
            raise
        raise ShardMissing(f"nothing at {mask_address(address)}: correct the address", address=mask_address(address)) from error


def _listed(address: str, storage: Storage, files: list[ObjectInfo]) -> Layout:
    """The layout of all files of a directory."""
    tars = [info for info in files if _is_tar(info.path)]
    images = [info for info in files if is_image_path(info.path)]
    compressed = [info.path for info in files if _is_compressed(info.path)]
    if tars:
        warnings = [f"{len(images)} images beside the tars are left out"] if images else []
        if compressed:
            warnings.append(f"{len(compressed)} compressed tars are left out, first {compressed[0]!r}: {_UNPACK}")
        return Layout(address, storage, "webdataset", tars, warnings)
    if images:
        others = [info.path for info in files if not (is_image_path(info.path) or is_manifest(info.path.rpartition("/")[2]))]
        return Layout(address, storage, "folder", images, notes=_left_out(others))
    if compressed:
        raise ShardInvalid(
            f"no tar and no image, but {len(compressed)} compressed tars at {mask_address(address)}, first {compressed[0]!r}:"
            f" {_UNPACK}",
            shard=compressed[0],
        )
    raise ShardMissing(
        f"no tar and no image among {len(files)} files at {mask_address(address)}: their names would end in .tar, or like an"
        " image's (.jpg, .png, ...); links and hidden names are not followed",
        address=mask_address(address),
    )


def _left_out(paths: list[str]) -> list[str]:
    if not paths:
        return []
    names = ", ".join(map(repr, paths[:_SHOWN])) + (", ..." if len(paths) > _SHOWN else "")
    return [f"{len(paths)} files are left out, as their names do not end like an image's (.jpg, .png, ...): {names}"]


def _is_tar(name: str) -> bool:
    return name.lower().endswith(".tar")


def _is_compressed(name: str) -> bool:
    return name.lower().endswith(_COMPRESSED)


def _is_a_file(address: str) -> bool:
    """True for a file on a local disk; elsewhere, and of several by braces, for what the name says is a compressed tar."""
    path = local_path(address)
    if path is not None and not _BRACES.search(address):
        return os.path.isfile(path)  # noqa: PTH113 - that of a Path raises where a directory may not be read
    return _is_compressed(address)


def _no_tar(address: str) -> ShardInvalid:
    """For the address of a file that is none of a data set."""
    shown = mask_address(address)
    if _is_compressed(address):
        return ShardInvalid(f"{shown} is a compressed tar: {_UNPACK}", shard=shown)
    return ShardInvalid(f"{shown} is no tar, whose name would end in .tar: name one, or the directory of the data", shard=shown)


async def _named_tars(address: str) -> Layout:
    directory, pattern = split_address(address)
    names = expand_braces(pattern)
    storage = open_storage(directory)
    try:
        files = await gather_all(storage.head(name) for name in names)
    except ObjectMissing as error:
        await storage.close()
        raise ShardMissing(
            f"{error.message}: correct the address, or copy the shard again", shard=str(error.ids["path"])
        ) from error
    return Layout(directory, storage, "webdataset", files)


def expand_braces(pattern: str, most: int = limits.SHARDS) -> list[str]:
    """`a-{000..002}.tar` -> a-000.tar, a-001.tar, a-002.tar; a name without braces is itself. Raises ConfigInvalid."""
    limits.at_most(len(pattern), limits.ADDRESS_CHARS, "characters in a pattern of shards", ConfigInvalid)
    names, rest = [""], pattern
    while (match := _BRACES.search(rest)) is not None:
        first, last = match.groups()
        if len(last) > 18 or len(first) > 18 or int(last) < int(first):
            raise ConfigInvalid(f"{match.group()[:60]} is not a range of shards")
        count = (int(last) - int(first) + 1) * len(names)
        limits.at_most(count, most, "shards that the braces name", ConfigInvalid)
        limits.at_most(count * len(pattern), limits.LIST_BYTES, "characters of shards' names", ConfigInvalid)
        numbers = [f"{rest[: match.start()]}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        names = [name + number for name in names for number in numbers]
        rest = rest[match.end() :]
    return [name + rest for name in names]
