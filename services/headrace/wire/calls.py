"""How a client calls others: by TLS or not, with which token, and why a call does not get through."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import CoordinatorUnavailable, HeadraceError, PeerGone
from headrace.wire.secret import Secret, refuse_plaintext
from headrace.wire.tls import ClientTls, Stamp
from headrace.wire.tls_probe import Explainer


class Calls:
    """Of one client. Any thread may call."""

    def __init__(self, tls: ClientTls | None = None, token: Secret | None = None, *, allow_plaintext: bool = False) -> None:
        self.tls = tls
        self.token = token
        self._allow_plaintext = allow_plaintext
        self._explain = Explainer(tls)

    @property
    def stamp(self) -> Stamp | None:
        """A channel made under another one is of older files, and made anew before it is called."""
        return None if self.tls is None else self.tls.stamp

    def tokens(self) -> dict[str, Any]:
        """Keyword arguments of a call: nothing without a token."""
        return {} if self.token is None else {"metadata": self.token.metadata}

    @property
    def hello_token(self) -> str:
        """What HELLO carries: all tokens, since a worker may not have heard yet that a newer one replaced an older."""
        return "" if self.token is None else "\n".join(self.token.tokens)

    def check_plaintext(self, *addresses: str) -> None:
        """Raise ConfigInvalid where the token would go to these addresses without TLS."""
        if self.token is not None and self.tls is None:
            hosts = [address.rpartition(":")[0] for address in addresses]
            refuse_plaintext(hosts, self._allow_plaintext, "this trainer")

    def explain(self, address: str, error: HeadraceError) -> str:
        """What of TLS keeps a call from getting through, for a message; empty where that is not it. Blocks for a second or so.

        Not for a call that was not answered in time: faults of TLS show at once, and who hangs shall not cost more time.
        """
        if not isinstance(error, CoordinatorUnavailable | PeerGone):
            return ""
        host, _, port = address.rpartition(":")
        return self._explain(host.strip("[]"), int(port)) if port.isdecimal() else ""
