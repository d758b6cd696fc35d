"""host:port texts, read in one place."""

from __future__ import annotations

from headrace.core.errors import ConfigInvalid


def split_address(address: str) -> tuple[str, int]:
    """('host', port) of host:port or [v6]:port. Raises ConfigInvalid."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise ConfigInvalid(f"{address!r} is not host:port", address=address)
    return host.removeprefix("[").removesuffix("]"), int(port)
