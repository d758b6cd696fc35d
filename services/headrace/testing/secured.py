"""TLS and tokens of a test's fleet: files, the flags that name them, and the variables of its trainers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.testing.certificates import Authority, mount, paths


@dataclass(slots=True)
class Secured:
    """Everything lies below `directory`: services/ and trainers/ hold certificates, tokens/ a file for each token.

    tls: mutual TLS for gRPC, and TLS for HTTP. tokens: of the fleet, of jobs, and of the admin API.
    """

    directory: Path
    tls: bool
    tokens: bool
    authority: Authority

    @staticmethod
    def make(directory: Path, *, tls: bool, tokens: bool) -> Secured:
        """With fresh keys and tokens."""
        made = Secured(directory, tls, tokens, Authority())
        if tls:
            for who in ("services", "trainers"):
                made.renew(who)
        if tokens:
            for name in ("fleet", "job", "admin"):
                made.put_tokens(name, secrets.token_hex(32))
        return made

    def renew(self, who: str, content: dict[str, bytes] | None = None) -> None:
        """Give `services` or `trainers` a new certificate; they are not told."""
        mount(self.directory / who, content or self.authority.issue())

    def put_tokens(self, name: str, *tokens: str) -> None:
        """Replace the tokens in a file."""
        mount(self.directory / "tokens", {**self._all_tokens(), name: "\n".join(tokens).encode()})

    def token(self, name: str) -> str:
        """The newest token of a file."""
        return self.token_file(name).read_text().splitlines()[0]

    def token_file(self, name: str) -> Path:
        """Where `fleet`, `job` or `admin` lies."""
        return self.directory / "tokens" / name

    @property
    def ca(self) -> str:
        """File of the certificate that all others are signed with."""
        return paths(self.directory / "trainers").ca

    def _all_tokens(self) -> dict[str, bytes]:
        files = [self.token_file(name) for name in ("fleet", "job", "admin")]
        return {file.name: file.read_bytes() for file in files if file.exists()}

    @property
    def service_args(self) -> Sequence[str]:
        """Flags that both services have."""
        files = paths(self.directory / "services")
        flags = ["--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca, "--require-client-cert"]
        return [*(flags if self.tls else []), *(self._flag("fleet") if self.tokens else [])]

    @property
    def coordinator_args(self) -> Sequence[str]:
        """Flags of a coordinator."""
        return [*self.service_args, *([*self._flag("admin"), "--require-job-token"] if self.tokens else [])]

    def _flag(self, name: str) -> list[str]:
        return [f"--{name}-token-file", str(self.token_file(name))]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a trainer."""
        files = paths(self.directory / "trainers")
        tls = {"HEADRACE_TLS_CA": files.ca, "HEADRACE_TLS_CERT": files.cert, "HEADRACE_TLS_KEY": files.key}
        return {**(tls if self.tls else {}), **({"HEADRACE_TOKEN_FILE": str(self.token_file("job"))} if self.tokens else {})}
