"""TLS and token of a trainer: what `headrace.connect` is given, else HEADRACE_* variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from headrace.core.errors import ConfigInvalid
from headrace.wire.calls import Calls
from headrace.wire.secret import secret
from headrace.wire.tls import ClientTls, TlsFiles

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Empty and None take the variable HEADRACE_<NAME>, else there is none.

    token_file, token: the job's; all its ranks show the same. tls_ca: PEM file of who signs the servers' certificates: then
    all connections speak TLS. tls_cert, tls_key: this trainer's certificate, where servers demand one. tls_worker_name: name in
    the workers' certificates, where that is not their host. allow_plaintext_tokens: the token may go elsewhere without TLS.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_worker_name: str = ""
    allow_plaintext_tokens: bool | None = None

    def calls(self, addresses: tuple[str, ...]) -> tuple[Calls, Calls]:
        """How coordinators and workers are called. Raises ConfigInvalid."""
        given = self.token or self.token_file
        text, path = (self.token, self.token_file) if given else (variable("token"), variable("token_file"))
        token = secret("token", text, path)
        files = TlsFiles(*(getattr(self, name) or variable(name) for name in ("tls_cert", "tls_key", "tls_ca")))
        if files.cert and not files.ca:
            raise ConfigInvalid("tls_cert without tls_ca: give the CA that signed the servers' certificates", field="tls_ca")
        allowed = self.allow_plaintext_tokens if self.allow_plaintext_tokens is not None else switch("allow_plaintext_tokens")
        worker_name = self.tls_worker_name or variable("tls_worker_name")
        coordinators = Calls(ClientTls(files) if files.ca else None, token, allow_plaintext=allowed)
        workers = Calls(ClientTls(files, worker_name) if files.ca else None, token, allow_plaintext=allowed)
        coordinators.check_plaintext(*addresses)
        return coordinators, workers


def variable(name: str) -> str:
    """What HEADRACE_<NAME> holds, or empty."""
    return os.environ.get(f"HEADRACE_{name.upper()}", "").strip()


def switch(name: str) -> bool:
    """Whether HEADRACE_<NAME> is on. Raises ConfigInvalid."""
    value = variable(name).lower()
    if value not in (*_YES, *_NO):
        raise ConfigInvalid(f"HEADRACE_{name.upper()} must be 1 or 0, not {value!r}", setting=name)
    return value in _YES
