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
from typing import TypeVar

import redis.asyncio
import redis.asyncio.sentinel
from redis.exceptions import RedisError, ResponseError

from headrace.coordinator.store import Key, Loaded, Stored, Table
from headrace.core.errors import RecordInvalid, StoreUnavailable

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
        if isinstance(pool := self._client.connection_pool, redis.asyncio.sentinel.SentinelConnectionPool):
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose()

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
