"""Names from data sets as a terminal may show them."""

from __future__ import annotations


def printable(name: str) -> str:
    """The name with control characters written out: a tar may name its files as it likes, and terminals obey escape codes."""
    return name if name.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)
