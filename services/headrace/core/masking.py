"""Credentials in addresses, made unreadable: the one function for everything that is shown. Pure.

Every HeadraceError masks its text, and every log line of a service its values, so that an address may be put into either as it
is. Answers of the admin API call it themselves.
"""

from __future__ import annotations

import re

MASK = "***"
# An address ends where a text goes on: at blanks, quotes and brackets, and at a comma before another address.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
_ADDRESS = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*)://([^\s\"'<>,]*(?:,(?!{_SCHEME})[^\s\"'<>,]*)*)")
# Their paths are short and hold no @, while their passwords are often not escaped.
_STORES = ("redis", "rediss", "unix", "sentinel")


def mask_address(text: str) -> str:
    """The text with user names, passwords, query values and fragments of all addresses in it replaced by ***."""
    return _ADDRESS.sub(_masked, text) if "://" in text else text


def _masked(match: re.Match[str]) -> str:
    scheme, rest = match.groups()
    if scheme.lower() in _STORES:
        _, at, rest = rest.rpartition("@")
        user = MASK + at if at else ""
    else:
        user, rest = _without_user(rest)
    path, mark, _ = rest.partition("?")
    return f"{scheme}://{user}{path.partition('#')[0]}{'?' + MASK if mark else ''}"


def _without_user(rest: str) -> tuple[str, str]:
    """(the user's mask or nothing, what follows): a user stands before the first slash, unless a password has one."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        return f"{MASK}@", rest[host.rindex("@") + 1 :]
    port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else ""
    if port and not port.isdigit() and "@" in rest:
        return f"{MASK}@", rest.rpartition("@")[2]
    return "", rest
