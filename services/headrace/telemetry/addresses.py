"""host:port texts, read in one place."""

from __future__ import annotations

import re

from headrace.core.errors import ConfigInvalid


def split_address(address: str) -> tuple[str, int]:
    """('host', port) of host:port or [v6]:port. Raises ConfigInvalid."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigInvalid(f"{address[:300]!r} is not host:port", address=address[:300])
    return host.removeprefix("[").removesuffix("]"), int(port)
