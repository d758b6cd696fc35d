"""From the address of a Redis or Valkey, or of the Sentinels that watch one, to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from headrace.coordinator.store_redis import RedisStore
from headrace.core import limits
from headrace.core.errors import ConfigInvalid
from headrace.core.masking import mask_address

_SENTINEL_PORT = 26379


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
            return RedisStore(_by_sentinel(parts, options, password_file), prefix, where, timeout_s)
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


class _Sentinels(redis.asyncio.sentinel.Sentinel):
    """Sentinels that say in words why none of them names a master; each may be there several times, with other logins."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the master. Raises MasterNotFoundError."""
        why: dict[str, str] = {}
        unreachable: set[str] = set()
        for sentinel in list(self.sentinels):
            host = "{host}:{port}".format_map(sentinel.connection_pool.connection_kwargs)
            if host in unreachable:
                continue
            try:
                masters: Any = await sentinel.sentinel_masters()
            except (RedisError, OSError) as error:
                # The store's own login comes first, and so does what is wrong with it.
                why.setdefault(host, f"{host}: {str(error).rstrip('.') or type(error).__name__}")
                if not isinstance(error, AuthenticationError | ResponseError):
                    unreachable.add(host)
                continue
            state = masters.get(service_name)
            if state is not None and self.check_master_state(state, service_name):
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)  # asked first next time
                return state["ip"], state["port"]
            why[host] = f"{host} watches no {service_name!r}" if state is None else f"{host} takes its master for dead"
        raise MasterNotFoundError(f"no Sentinel names a master of {service_name!r}: {'; '.join(why.values())}")


def _by_sentinel(parts: SplitResult, options: dict[str, Any], password_file: str) -> redis.asyncio.Redis:
    """A client that asks the Sentinels who the master is, each time that it connects."""
    service, _, db = parts.path.strip("/").partition("/")
    hosts = [_host_and_port(host.strip()) for host in parts.netloc.rpartition("@")[2].split(",")]
    if not service:
        raise ValueError("expected sentinel://host:port,host:port/service")
    logins = _logins(unquote(parts.username or ""), unquote(parts.password or ""), password_file)
    make: Any = _Sentinels
    manager = make([], db=int(db or 0), **{**options, "credential_provider": logins[0]})
    for login in logins:
        manager.sentinels += make(hosts, sentinel_kwargs={**options, "credential_provider": login}).sentinels
    client: redis.asyncio.Redis = manager.master_for(service)
    return client


def _logins(user: str, password: str, password_file: str) -> list[CredentialProvider | None]:
    """What is shown, the store's own first.

    A Sentinel has no password, or the store's; with a user of its name, or without users. The first that answers is asked.
    """
    if password_file:
        shown: list[CredentialProvider] = [_PasswordFile(Path(password_file), name) for name in dict.fromkeys((user, ""))]
    elif user or password:
        shown = [UsernamePasswordCredentialProvider(name or None, password) for name in dict.fromkeys((user, ""))]
    else:
        shown = []
    return [*shown, None]


def _host_and_port(host: str) -> tuple[str, int]:
    """Raises ValueError."""
    found = urlsplit(f"//{host}")
    if not found.hostname or host.endswith(":"):
        raise ValueError("a host is missing")
    port = _SENTINEL_PORT if found.port is None else found.port
    if port == 0:
        raise ValueError("port 0")
    return found.hostname, port
