"""What every setting of a service keeps to, whatever its name."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from pydantic import field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.core.errors import ConfigInvalid
from headrace.core.masking import mask_address
from headrace.telemetry.addresses import reachable_address, split_address


class ServiceSettings(BaseSettings):
    """Numbers are finite, and addresses are checked before anything starts: a worker that told trainers one that cannot be
    would get lanes that nobody could fetch."""

    model_config = SettingsConfigDict(allow_inf_nan=False)

    @field_validator("grpc_address", "admin_address", "metrics_address", check_fields=False)
    @classmethod
    def _listens(cls, value: str) -> str:
        """Where a service listens: port 0 takes a free one. Empty where the setting allows it; who listens there refuses it."""
        if value:
            _told(split_address, value, ", such as 0.0.0.0:7310 or [::]:7310")
        return value

    @field_validator("advertise", check_fields=False)
    @classmethod
    def _advertised(cls, value: str) -> str:
        if value:
            _told(reachable_address, value)
        return value

    @field_validator("coordinator", check_fields=False)
    @classmethod
    def _coordinators(cls, value: str) -> str:
        for address in value.split(","):
            _told(reachable_address, address.strip())
        return value

    @field_validator("store", check_fields=False)
    @classmethod
    def _store(cls, value: str) -> str:
        """The hosts alone; the rest is the store client's."""
        for address in _store_hosts(value):
            try:
                reachable_address(address)
            except ConfigInvalid:
                # Without the host's own text: where a password was not escaped that may be a piece of it.
                raise ValueError(
                    f"the store address {mask_address(value)} cannot be read: HOST:PORT with a port of 1 to 65535, and escape "
                    "what is special in a password (%40 for @)"
                ) from None
        return value


def _store_hosts(url: str) -> list[str]:
    """The host:port of a store's address, with a port each; none where it has no host, or is no address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []  # the store client says so
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("redis", "rediss", "sentinel") or not hosts:
        return []
    found = [host.strip() for host in hosts.split(",")] if parts.scheme == "sentinel" else [hosts]
    return [f"{host}:1" if host.endswith("]") or ":" not in host else host for host in found]


def _told(check: Callable[[str], object], value: str, advice: str = "") -> None:
    try:
        check(value)
    except ConfigInvalid as error:
        raise ValueError(f"{error.message}{advice}") from None
