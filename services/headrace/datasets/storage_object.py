"""Object stores and HTTP servers, by obstore."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import obstore
from obstore import Bytes
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore, from_url

from headrace.core import limits
from headrace.core.errors import AccessDenied, ConfigInvalid, SourceUnavailable
from headrace.core.masking import mask_address
from headrace.datasets.storage import ObjectInfo, ObjectMissing, ObjectReplaced, check_path, check_size

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How faults that may pass are retried.

    attempts: tries in all; each is itself retried twice by obstore on 5xx and dropped connections, so some ten seconds of
    trouble pass unseen. first_delay_s doubles, with jitter. request_s: limit of one request with its body. deadline_s: limit
    of all tries together, so that a store which answers nothing is told as well.
    """

    attempts: int = 6
    first_delay_s: float = 0.25
    request_s: float = 60.0
    deadline_s: float = 120.0


class ObjectStorage:
    """A prefix in a bucket, or below an HTTP address.

    Errors of obstore are told in one line and not chained: their text holds the address with its credentials.
    """

    is_local = False

    def __init__(self, address: str, retry: Retry | None = None) -> None:
        self.address = mask_address(address)
        self._retry = retry or Retry()
        limit = timedelta(seconds=self._retry.request_s)
        try:
            self._store: ObjectStore = from_url(
                address,
                client_options={"timeout": limit, "connect_timeout": timedelta(seconds=5), "allow_http": True},
                retry_config={"max_retries": 2, "retry_timeout": limit},
            )
        except (BaseError, ValueError) as error:
            raise ConfigInvalid(f"{self.address} cannot be opened: {_short(error)}", address=self.address) from None

    async def get(self, path: str, most_bytes: int = limits.IMAGE_BYTES) -> bytes:
        """The whole object."""
        result = await self._call(path, lambda: obstore.get_async(self._store, path))
        check_size(path, result.meta["size"], most_bytes, self.address)
        return (await self._call(path, result.bytes_async)).to_bytes()

    async def get_range(self, path: str, start: int, length: int, tag: str = "") -> memoryview:
        """Bytes [start, start + length) of an object, of the very one that has this tag if one is given."""
        if length == 0:
            return memoryview(b"")
        if not tag:
            return memoryview(
                await self._call(path, lambda: obstore.get_range_async(self._store, path, start=start, length=length))
            )

        async def guarded() -> Bytes:
            try:
                result = await obstore.get_async(self._store, path, options={"range": (start, start + length), "if_match": tag})
                return await result.bytes_async()
            except PreconditionError:
                raise ObjectReplaced(f"{self.address}: {path} was replaced", path=path, address=self.address) from None

        return memoryview(await self._call(path, guarded))

    async def put(self, path: str, data: bytes) -> None:
        """Write an object; stores do that all or nothing."""
        await self._call(path, lambda: obstore.put_async(self._store, path, data))

    async def head(self, path: str) -> ObjectInfo:
        """Size and tag of an object."""
        meta = await self._call(path, lambda: obstore.head_async(self._store, path))
        return ObjectInfo(path, meta["size"], meta["e_tag"] or "")

    async def list(self) -> list[ObjectInfo]:
        """All objects below the prefix, sorted by path."""

        async def collect() -> list[ObjectInfo]:
            pages = obstore.list(self._store, chunk_size=10_000)
            return [ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or "") async for page in pages for meta in page]

        found = await self._call("", collect)
        return sorted((info for info in found if not _hidden(info.path)), key=lambda info: info.path)

    async def close(self) -> None:
        """Connections close with the last reference to the store."""

    async def _call(self, path: str, request: Callable[[], Awaitable[T]]) -> T:
        if path:
            check_path(path)
        delay_s = self._retry.first_delay_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry.deadline_s
        for attempt in range(1, self._retry.attempts + 1):
            try:
                async with asyncio.timeout_at(deadline):
                    return await request()
            except FileNotFoundError:
                raise ObjectMissing(
                    f"{self.address}: {path or 'the prefix'} is not there", path=path, address=self.address
                ) from None
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise AccessDenied(
                    f"{self.address} refuses access: check the credentials and what they allow ({_short(error)})",
                    path=path,
                    address=self.address,
                ) from None
            except (InvalidPathError, NotSupportedError, UnknownConfigurationKeyError) as error:
                raise ConfigInvalid(
                    f"{self.address} cannot do that: {_short(error)}", path=path, address=self.address
                ) from None
            except (BaseError, OSError, ValueError) as error:
                if attempt == self._retry.attempts or loop.time() + delay_s >= deadline or _beyond_end(error):
                    raise SourceUnavailable(
                        f"{self.address} failed {attempt} time{'s' * (attempt > 1)}: {_short(error)}",
                        path=path,
                        address=self.address,
                    ) from None
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter against herds, not a secret
            delay_s *= 2
        raise AssertionError("the last attempt returns or raises")


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _beyond_end(error: BaseException) -> bool:
    """True for a range past the object's end, which no retry heals: the object is not the one that was indexed."""
    text = str(error)
    return "InvalidRange" in text or "416 Range Not Satisfiable" in text or "status: 416" in text


def _short(error: BaseException) -> str:
    """First line of obstore's long debug text, without the credentials that addresses in it may hold."""
    text = str(error).strip()
    first = text.splitlines()[0][:600] if text else type(error).__name__
    return mask_address(first)[:300]
