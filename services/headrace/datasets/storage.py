"""Opens the place where a data set lies: a local directory or a prefix in an object store.

Addresses: a plain path, `file://`, `s3://`, `gs://`, `az://`, `http://` or `https://`. Object stores take credentials and
endpoints from their usual environment variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...). Paths inside a storage are
relative, with `/`, and never leave it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, HeadraceError, ManifestInvalid
from headrace.core.masking import mask_address

REMOTE_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"})
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


class ObjectMissing(HeadraceError):
    """Nothing is stored at that path; callers turn it into ShardMissing or ManifestMissing."""

    code = "object_missing"
    grpc_status = "NOT_FOUND"


class ObjectReplaced(HeadraceError):
    """What is stored at that path has another tag than demanded; readers ask again or turn it into ShardChanged."""

    code = "object_replaced"
    grpc_status = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object. size: bytes. etag: the store's own tag, empty for local files."""

    path: str
    size: int
    etag: str


class Storage(Protocol):
    """A directory or prefix. All calls run on one event loop; blocking work is done in threads below it.

    Every call raises ObjectMissing where nothing is there, SourceUnavailable after the retries of what may pass, AccessDenied
    where we are refused, and ConfigInvalid for a path or an address that cannot work.
    """

    address: str  # for messages: credentials masked
    is_local: bool

    async def get(self, path: str, most_bytes: int = limits.IMAGE_BYTES) -> bytes:
        """The whole object. Raises ManifestInvalid for one that is longer, before its bytes are read."""
        ...

    async def get_range(self, path: str, start: int, length: int, tag: str = "") -> memoryview:
        """Bytes [start, start + length); shorter only where the object ends before.

        tag: as `head` gave it; raises ObjectReplaced if the object has another by now. Local files have none.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write the whole object, or nothing of it. Raises DiskFull."""
        ...

    async def head(self, path: str) -> ObjectInfo:
        """Size and tag."""
        ...

    async def list(self) -> list[ObjectInfo]:
        """All regular files below, sorted by path; hidden directories and symbolic links are left out."""
        ...

    async def close(self) -> None:
        """Free connections and threads; idempotent."""
        ...


def check_size(path: str, size: int, most_bytes: int, where: str) -> None:
    """Raise ManifestInvalid for an object that is too long to be what is looked for."""
    if size > most_bytes:
        raise ManifestInvalid(f"{path} at {where} has {size} bytes; at most {most_bytes} are read", path=path, limit=most_bytes)


def join_address(directory: str, name: str) -> str:
    """Address of `name` (a relative path, or an address of its own) below a directory's address."""
    if not name:
        return directory
    if _SCHEME.match(name) or name.startswith("/"):
        return name
    return f"{directory.rstrip('/')}/{name}"


def split_address(address: str) -> tuple[str, str]:
    """(directory's address, file name)."""
    directory, _, name = address.rpartition("/")
    if not directory:
        return ("/" if address.startswith("/") else "."), name
    if directory.endswith(":/"):
        raise ConfigInvalid(
            f"{mask_address(address)!r} names a bucket or host, not a file in it", address=mask_address(address)
        )
    return directory, name


def check_path(path: str) -> str:
    """The path itself. Raises ConfigInvalid unless it is relative, normal and stays below its root."""
    parts = path.split("/")
    if not path or "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise ConfigInvalid(f"{path!r} is not a plain relative path", path=path)
    return path


def local_path(address: str) -> Path | None:
    """The local path that an address names, or None for a remote one. Raises ConfigInvalid for an unknown scheme."""
    match = _SCHEME.match(address)
    if "\0" in address:
        raise ConfigInvalid(f"{address[:100]!r} has a character that no address has", address=address[:100])
    if match is None:
        try:
            return Path(address).expanduser()
        except RuntimeError as error:  # no such user
            raise ConfigInvalid(f"{address} cannot be found: {error}", address=address) from error
    scheme = match.group(1).lower()
    if scheme == "file":  # what stands before the path would be another host
        return Path(unquote("/" + address[match.end() :].partition("/")[2]))
    if scheme in REMOTE_SCHEMES:
        return None
    raise ConfigInvalid(
        f"{scheme}:// is not an address that can be read; use a path, file://, s3://, gs://, az:// or http(s)://",
        address=mask_address(address),
    )


def open_storage(address: str) -> Storage:
    """Open a directory's address; nothing is read yet. Raises ConfigInvalid."""
    path = local_path(address)
    if path is not None:
        from headrace.datasets.storage_local import LocalStorage

        return LocalStorage(path)
    from headrace.datasets.storage_object import ObjectStorage

    return ObjectStorage(address)
