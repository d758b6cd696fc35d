"""The store on Redis or Valkey: three Lua scripts (see `lua/`), one round trip a call.

Whole tables are cached by their stamp, so that a tick over tables that did not change transfers a few bytes. Redis' own
errors become StoreUnavailable here and nowhere else. Connections are made when needed: a store that is down at the start,
or goes away and comes back, needs no restart of the coordinator.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError, ResponseError

from headrace.coordinator.store import Key, Loaded, Stored, Table
from headrace.core import limits
from headrace.core.errors import ConfigInvalid, RecordInvalid, StoreUnavailable
from headrace.core.masking import mask_address

_Result = TypeVar("_Result")
# Lua's unpack and Redis' own limits make a script call with more arguments fail.
_MAX_ITEMS = 1000
_MOST_HINT_BYTES = 200
_STAMP_DIGITS = 40
# What a server answers to whoever shows no password: to the client's first words, to any later ones, and older servers.
_NO_PASSWORD = ("HELLO must be called with the client already authenticated", "Authentication required", "NOAUTH")
_DIGITS = re.compile(rb"[0-9]{1,40}")
# Each has a connection of its own, which stays open. A call takes a millisecond, so that a thousand ranks that report at once
# wait for some milliseconds; without a bound the pool's own would refuse the hundred-and-first of them.
_CALLS_AT_ONCE = 16


class RedisStore:
    """See `store.Store`. One event loop. prefix: before all keys, so that installations can share a server.

    turn_s: longest wait of a call for its turn.
    """

    def __init__(self, client: redis.asyncio.Redis, prefix: str, where: str, turn_s: float = 2.0) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._turn_s = turn_s
        self._prefix = prefix
        self._where = where
        self._channel = f"{prefix}:hints"
        self._load = client.register_script(_script("load"))
        self._commit = client.register_script(_script("commit"))
        self._add_once = client.register_script(_script("add_once"))
        self._cache: dict[Table, tuple[int, dict[str, Stored]]] = {}
        self._raw: dict[Table, dict[bytes, tuple[bytes, str, Stored]]] = {}

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        """See Store."""
        args: list[str | int] = []
        # Taken before the call: another call may replace the cache meanwhile, and this answer counts on what it sent.
        cached = {table: self._cache.get(table, (0, {})) for table in wanted}
        for table, fields in wanted.items():
            args += [cached[table][0] if fields is None else -1, len(fields or ()), *(fields or ())]
        now, *answers = await self._ask(self._load(keys=[self._key(table) for table in wanted], args=args))
        tables: dict[Table, Mapping[str, Stored]] = {}
        stamps: dict[Table, int] = {}
        for (table, fields), (stamp, values) in zip(wanted.items(), answers, strict=True):
            stamps[table] = _stamp(stamp)
            if fields is not None:
                tables[table] = {field: _stored(value) for field, value in zip(fields, values or (), strict=False) if value}
            elif values is None:
                tables[table] = cached[table][1]
            else:
                self._cache[table] = _stamp(stamp), self._read(table, values)
                tables[table] = self._cache[table][1]
        return Loaded(int(now), tables, stamps)

    def _read(self, table: Table, values: Sequence[bytes]) -> dict[str, Stored]:
        """A whole table. Of ten thousand records a second or two change some: those that did not are not read again."""
        known, raw = self._raw.get(table, {}), dict[bytes, tuple[bytes, str, Stored]]()
        for field, value in zip(values[::2], values[1::2], strict=True):
            if field != b"#":
                found = known.get(field)
                if found is None or found[0] != value:
                    found = value, field.decode(errors="replace"), _stored(value)
                raw[field] = found
        self._raw[table] = raw
        return {name: record for _, name, record in raw.values()}

    async def commit(self, expected: Mapping[Key, int], writes: Mapping[Key, bytes | None], hint: str = "") -> int:
        """See Store."""
        tables = list(dict.fromkeys(key.table for key in (*expected, *writes)))
        number = {table: i + 1 for i, table in enumerate(tables)}
        args: list[str | int | bytes] = [self._channel, hint, len(expected), len(writes)]
        for key, stamp in expected.items():
            args += [number[key.table], key.field, stamp]
        for key, data in writes.items():
            args += [number[key.table], key.field, "d" if data is None else "w", data or b""]
        return int(await self._ask(self._commit(keys=[self._key(table) for table in tables], args=args)) or 0)

    async def add_once(self, table: Table, items: Mapping[str, bytes], limit: int) -> int:
        """See Store."""
        new = 0
        pairs = list(items.items())
        for start in range(0, len(pairs), _MAX_ITEMS):
            args: list[str | int | bytes] = [limit]
            for field, data in pairs[start : start + _MAX_ITEMS]:
                args += [field, data]
            new += int(await self._ask(self._add_once(keys=[self._key(table)], args=args)))
        return new

    async def hints(self) -> AsyncIterator[str]:
        """See Store."""
        with self._translated():
            async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                await channel.subscribe(self._channel)
                while True:
                    # The deadline lets a connection that died silently be noticed by the client's health check.
                    message = await channel.get_message(timeout=5.0)
                    if message is not None:
                        yield message["data"][:_MOST_HINT_BYTES].decode(errors="replace")

    def forget(self, group: str) -> None:
        """See Store."""
        self._cache = {table: cached for table, cached in self._cache.items() if table.group != group}
        self._raw = {table: raw for table, raw in self._raw.items() if table.group != group}

    async def ping(self) -> None:
        """See Store: writes one small key, since a replica or a full server answers PING and refuses writes."""
        await self._ask(self._client.set(f"{self._prefix}:ping", b"1", px=60_000))

    async def weaknesses(self) -> tuple[str, ...]:
        """See Store. Stores that others run mostly refuse to show their settings."""
        try:
            told = await self._ask(self._client.config_get("appendonly", "maxmemory-policy"))
        except (StoreUnavailable, RecordInvalid):
            return ()
        settings = {_text(name): _text(value) for name, value in told.items()}
        found = list[str]()
        if settings.get("appendonly", "yes") != "yes":
            found.append("keeps no append-only file: its restart forgets what was written since a snapshot; set appendonly yes")
        if (policy := settings.get("maxmemory-policy", "noeviction")) != "noeviction":
            found.append(f"may throw records away when its memory is full ({policy}): set maxmemory-policy noeviction")
        return tuple(found)

    async def close(self) -> None:
        """See Store."""
        await self._client.aclose()

    def _key(self, table: Table) -> str:
        return f"{self._prefix}:{{{table.group}}}:{table.kind}"

    async def _ask(self, call: Awaitable[_Result]) -> _Result:
        with self._translated():
            try:
                async with asyncio.timeout(self._turn_s):
                    await self._turns.acquire()
            except BaseException:
                if isinstance(call, Coroutine):
                    call.close()  # it was never begun
                raise
            try:
                return await call
            finally:
                self._turns.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ResponseError as error:
            if "WRONGTYPE" in str(error):  # one key that is no table; the store itself is well
                raise RecordInvalid(
                    f"a key of ours at {self._where} holds something else than records: remove it", store=self._where
                ) from error
            raise StoreUnavailable(f"the store at {self._where} cannot be used: {_told(error)}", store=self._where) from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"the store at {self._where} cannot be used: {_told(error)}", store=self._where) from error


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if any(words in text for words in _NO_PASSWORD):
        return f"it asks for a password and was given none: name the file of one by --store-password-file ({text})"
    return text


def _script(name: str) -> str:
    return resources.files("headrace.coordinator").joinpath("lua", f"{name}.lua").read_text()


def _stored(value: bytes) -> Stored:
    """What somebody else wrote may have no stamp: then it has the one that the scripts see in it, and is what it is."""
    stamp, _, data = value.partition(b" ")
    return Stored(_stamp(stamp), data)


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _stamp(text: bytes) -> int:
    if text.isdigit() and len(text) <= _STAMP_DIGITS:
        return int(text)
    digits = _DIGITS.match(text)
    return int(digits.group()) if digits else 0


class _PasswordFile(CredentialProvider):
    """The store's password from a file, read for each new connection; the user is the one in the address."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """See redis. An unreadable file is an OSError, as an unreachable store is."""
        password = self._path.read_text(encoding="utf-8").strip()
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """See redis."""
        return self.get_credentials()


def connect(url: str, prefix: str = "headrace", timeout_s: float = 2.0, *, password_file: str = "", ca: str = "") -> RedisStore:
    """A store at redis://, rediss:// or unix://, or sentinel://host:port,host:port/service[/db]; connects when first used.

    password_file: read for each new connection; the address then has no password. ca: PEM file of who signed the certificate
    of a rediss:// store. Raises ConfigInvalid for anything else.
    """
    # Once more on a fresh connection, for those that a restart of the store broke; a commit may be repeated, since its
    # compare-and-set then fails and the caller reads what it wrote.
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 1),
        "health_check_interval": 15,
    }
    limits.at_most(len(url), limits.ADDRESS_CHARS, "characters in the store's address", ConfigInvalid, field="store")
    where = mask_address(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(where) from None
    if password_file:
        if not Path(password_file).is_file() or parts.password:
            raise ConfigInvalid(
                f"store_password_file {password_file} must be a file, and the store's address have no password", field="store"
            )
        options["credential_provider"] = _PasswordFile(Path(password_file), parts.username or "")
        url = url.replace(f"{parts.netloc.rpartition('@')[0]}@", "", 1) if "@" in parts.netloc else url
    if ca:
        if parts.scheme != "rediss" or not Path(ca).is_file():
            raise ConfigInvalid(f"store_tls_ca {ca} must be a file, and the store a rediss:// address", field="store")
        options["ssl_ca_certs"] = ca
    try:
        if parts.scheme == "sentinel":
            return RedisStore(_by_sentinel(url, options), prefix, where, timeout_s)
        if parts.scheme in ("redis", "rediss", "unix"):
            return RedisStore(redis.asyncio.Redis.from_url(url, **options), prefix, where, timeout_s)
    except ValueError:
        raise _unreadable(where) from None
    raise ConfigInvalid(f"the store must be redis://, rediss://, unix:// or sentinel://, not {where!r}", field="store")


def _unreadable(where: str) -> ConfigInvalid:
    # Without the parser's words: they may hold a piece of a password.
    return ConfigInvalid(
        f"the store address {where} cannot be read: host:port, and escape what is special in a password (%40 for @)",
        field="store",
    )


def _by_sentinel(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("expected sentinel://host:port,host:port/service")
    sentinels = []
    for host in map(str.strip, hosts.split(",")):
        name, _, port = host.rpartition(":") if ":" in host else (host, ":", "26379")
        sentinels.append((name, int(port)))
    make: Any = redis.asyncio.sentinel.Sentinel
    password = user.lstrip(":") or None
    client: redis.asyncio.Redis = make(
        sentinels, sentinel_kwargs=dict(options), password=password, db=int(db or 0), **options
    ).master_for(service)
    return client
