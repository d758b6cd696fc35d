"""Tokens: where they come from, how they travel, how they are compared. Never in a log, a message or a command line.

A token travels as `authorization: Bearer TOKEN`, in gRPC's metadata and in HTTP. A file may hold several, one a line: the
first is the newest, and all are accepted and shown, so that one can be replaced while others still have the old one. A file
is read again when it changes. Any thread may call.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Iterable
from pathlib import Path

import structlog

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, Unauthenticated
from headrace.core.job_token import MAX_TOKENS, any_equal
from headrace.wire.file_stamp import NO_FILE, FileStamp, stamp_of

log = structlog.get_logger()

HEADER = "authorization"
MIN_CHARS = 16
MAX_CHARS = limits.TOKEN_CHARS
# No comma: between it and us proxies may join several headers into one.
_TOKEN = re.compile(rf"[\x21-\x2b\x2d-\x7e]{{{MIN_CHARS},{MAX_CHARS}}}")
_MAX_FILE_BYTES = 16384

Metadata = tuple[tuple[str, str], ...]


class Secret:
    """One or more tokens. name: of the setting, for messages. path: a file, preferred; text: the token itself.

    Raises ConfigInvalid where what is there now is no token. A file that later cannot be read, or holds none, is logged once
    and the tokens before stay.
    """

    def __init__(self, name: str, *, text: str = "", path: str = "") -> None:
        self._name = name
        self._path = Path(path) if path else None
        self._lock = threading.Lock()
        self._stamp: FileStamp | None = None
        self._tokens: tuple[str, ...] = ()
        self._fault = ""
        if self._path is None:
            self._tokens = _parsed(name, text)
        else:
            self._read(self._path)

    def __repr__(self) -> str:
        return f"Secret({self._name})"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The newest first."""
        with self._lock:
            if self._path is not None:
                try:
                    self._read(self._path)
                except ConfigInvalid as error:
                    self._fault = error.message
                    log.error("token_refused", error=error.message, note="the one before stays in use")
            return self._tokens

    @property
    def fault(self) -> str:
        """Why the file as it is now is of no use, so that the tokens before it stay; empty while it is."""
        return self._fault if self.tokens else ""

    @property
    def metadata(self) -> Metadata:
        """What a call carries."""
        return tuple((HEADER, f"Bearer {token}") for token in self.tokens)

    def matches(self, given: Iterable[str]) -> bool:
        """True if one of the given is one of ours; takes as long for a wrong one as for a right one."""
        return any_equal(self.tokens, tuple(given))

    def demand(self, given: Iterable[str], who: str, remedy: str) -> None:
        """Raise Unauthenticated unless it matches. who: for the message; remedy: what to set, never the token."""
        presented = tuple(given)
        if not self.matches(presented):
            word = "a token that is not the one of this fleet" if presented else "no token"
            raise Unauthenticated(f"{who} shows {word}; {remedy}")

    def _read(self, path: Path) -> None:
        try:
            stat = path.stat()
            stamp = stamp_of(stat)
            if stamp == self._stamp:
                return
            self._stamp = stamp  # also of what is refused: it is told once
            if stat.st_size > _MAX_FILE_BYTES:
                raise ConfigInvalid(f"{self._name}: {path} is too large for a file of tokens", path=str(path))
            self._tokens = _parsed(f"{self._name} ({path})", path.read_text(encoding="utf-8", errors="replace"))
            self._fault = ""
        except OSError as error:
            if self._stamp == NO_FILE:
                return
            self._stamp = NO_FILE
            raise ConfigInvalid(f"{self._name}: {path} cannot be read: {error.strerror}", path=str(path)) from error


def _parsed(name: str, text: str) -> tuple[str, ...]:
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    fit = 1 <= len(tokens) <= MAX_TOKENS and len("\n".join(tokens)) <= limits.TOKENS_CHARS
    if not fit or not all(_TOKEN.fullmatch(token) for token in tokens):
        raise ConfigInvalid(
            f"{name} must hold 1 to {MAX_TOKENS} tokens, one a line, each {MIN_CHARS} to {MAX_CHARS} visible ASCII characters "
            f"without commas, and {limits.TOKENS_CHARS} in all; `openssl rand -hex 32` makes one",
            setting=name,
        )
    return tokens


def secret(name: str, text: str, path: str) -> Secret | None:
    """The Secret of a setting and its `_file`, which wins; None where neither is set. Raises ConfigInvalid."""
    return Secret(f"{name}_file", path=path) if path else Secret(name, text=text) if text else None


def shown(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, ...]:
    """The tokens that a call carries, at most MAX_TOKENS."""
    values = (value for key, value in metadata or () if key == HEADER and isinstance(value, str))
    found = (part.strip() for value in values for part in value.split(","))
    return tuple(value[7:].strip() for value in found if value[:7].lower() == "bearer ")[:MAX_TOKENS]


def well_formed(token: str) -> bool:
    """True for what a setting would be taken for: whoever makes up a job's token must not choose one that can be guessed."""
    return _TOKEN.fullmatch(token) is not None


def is_loopback(host: str) -> bool:
    """True for a host that is reached on this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_plaintext(hosts: Iterable[str], allowed: bool, what: str) -> None:
    """Raise ConfigInvalid where tokens would travel unencrypted beyond this machine, unless that is allowed."""
    outside = [host for host in hosts if not is_loopback(host)]
    if outside and not allowed:
        raise ConfigInvalid(
            f"{what} would send or take tokens without TLS over {', '.join(sorted(set(outside)))}, where others can read them: "
            "give the tls_ settings, or allow_plaintext_tokens if that network is trusted",
            setting="allow_plaintext_tokens",
        )
