"""Where data sets may lie: which addresses a job may name, and which a manifest may name in turn.

A job names its manifest, and a manifest names where its shards lie; neither is the operator's. The rule:

- A manifest in an object store or on a web server names shards on that same store or server (scheme and bucket or host), a
  manifest on a local disk may name any place: who can write there has the machine's data anyway.
- Where the operator lists `data_roots`, manifests and shards alike lie below one of these, and nothing else counts.

Paths of shards, indexes and files are relative and stay below their root, whatever their manifest says (`storage.check_path`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from headrace.core.errors import AccessDenied
from headrace.core.masking import mask_address
from headrace.datasets.storage import join_address, local_path


@dataclass(frozen=True, slots=True)
class Roots:
    """allowed: addresses; empty for the rule's first part. anywhere: for commands, which run as whoever started them."""

    allowed: tuple[str, ...] = ()
    anywhere: bool = False

    @staticmethod
    def of(setting: str) -> Roots:
        """From addresses with commas between. Raises ConfigInvalid for one that cannot be read."""
        allowed = tuple(part.strip() for part in setting.split(",") if part.strip())
        for address in allowed:
            local_path(address)
        return Roots(allowed)

    def check_dataset(self, address: str) -> None:
        """Raise AccessDenied unless a job may name this address."""
        if self.allowed and not self._is_allowed(address):
            raise _denied(address, "data sets lie below", self.allowed)

    def data_address(self, directory: str, root: str) -> str:
        """Where the shards of a manifest in `directory` lie that names `root`. Raises AccessDenied."""
        address = join_address(directory, root)
        if self.anywhere:
            return address
        if self.allowed:
            if not self._is_allowed(address):
                raise _denied(address, "shards lie below", self.allowed)
        elif local_path(directory) is None and not _below(address, _store_of(directory)):
            raise _denied(address, "a manifest may only name shards on its own store, which is", (_store_of(directory),))
        return address

    def _is_allowed(self, address: str) -> bool:
        return self.anywhere or any(_below(address, root) for root in self.allowed)


def _below(address: str, root: str) -> bool:
    """True if an address is the root or lies below it, with nothing in it that could lead out again."""
    path, root_path = local_path(address), local_path(root)
    if path is not None and root_path is not None:
        real, real_root = os.path.realpath(path), os.path.realpath(root_path)
        return real == real_root or real.startswith(real_root.rstrip("/") + "/")
    if path is not None or root_path is not None:
        return False
    try:
        found, wanted = urlsplit(address), urlsplit(root)
        places = [(part.scheme.lower(), part.netloc.rpartition("@")[2].lower()) for part in (found, wanted)]
    except ValueError:
        return False
    parts = unquote(found.path).split("/")
    leads_out = ".." in parts or "." in parts or "\\" in found.path
    prefix = wanted.path.rstrip("/") + "/"
    return places[0] == places[1] and not leads_out and (found.path.rstrip("/") + "/").startswith(prefix)


def _store_of(address: str) -> str:
    """Scheme and bucket or host."""
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.partition('/')[0].partition('?')[0]}"


def _denied(address: str, rule: str, allowed: tuple[str, ...]) -> AccessDenied:
    shown = mask_address(", ".join(allowed))
    return AccessDenied(
        f"{mask_address(address)} may not be read: {rule} {shown}; the operator can allow more by --data-roots",
        address=address,
    )
