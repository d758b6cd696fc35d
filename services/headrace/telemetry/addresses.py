"""host:port texts, read in one place."""

from __future__ import annotations

import ipaddress
import re

from headrace.core.errors import ConfigInvalid

# Letters of any language: what a resolver makes of a name is its own affair.
_NAME = re.compile(r"[\w.-]{1,253}")


def split_address(address: str) -> tuple[str, int]:
    """('host', port) of host:port or [v6]:port. Raises ConfigInvalid."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigInvalid(f"{address[:300]!r} is not host:port", address=address[:300])
    return host.removeprefix("[").removesuffix("]"), int(port)


def reachable_address(address: str) -> tuple[str, int]:
    """The same of an address that others connect to: a host, a port of 1 to 65535, IPv6 in brackets. Raises ConfigInvalid."""
    shown = address[:300]
    advice = "write HOST:PORT with a port of 1 to 65535, such as node-3.example:7310, 10.0.0.5:7310 or [fd00::5]:7310"
    try:
        host, port = split_address(address)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{error.message}: {advice}", address=shown) from None
    bare = address.rpartition(":")[0]
    if not port or not (_is_ip(host) if bare != host else _NAME.fullmatch(host)):
        raise ConfigInvalid(f"{shown!r} is no address that others could connect to: {advice}", address=shown)
    return host, port


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
