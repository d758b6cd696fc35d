"""What a service makes of its settings of TLS and tokens, and the one line that says where it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import structlog

from headrace.wire.secret import refuse_plaintext
from headrace.wire.tls import ClientTls, ServerTls, TlsFiles

log = structlog.get_logger()


class TlsSettings(Protocol):
    """The settings that both services have, see telemetry.security_settings."""

    tls_cert: str
    tls_key: str
    tls_ca: str
    require_client_cert: bool
    require_client_cert_http: bool
    allow_plaintext_tokens: bool


def files_of(settings: TlsSettings) -> TlsFiles:
    """The files that the settings name. Raises ConfigInvalid."""
    return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)


def server_tls(
    settings: TlsSettings, on_reload: Callable[[str], None], on_refused: Callable[[str], None] = lambda _: None
) -> ServerTls | None:
    """What a service serves with; None: without TLS. Raises ConfigInvalid."""
    files = files_of(settings)
    if not files.cert and not settings.require_client_cert and not settings.require_client_cert_http:
        return None
    return ServerTls(
        files,
        require_client=settings.require_client_cert,
        require_client_http=settings.require_client_cert_http,
        on_reload=on_reload,
        on_refused=on_refused,
    )


def client_tls(settings: TlsSettings) -> ClientTls | None:
    """What a service calls others with: TLS where it has a `tls_ca`. Raises ConfigInvalid."""
    return ClientTls(files_of(settings)) if settings.tls_ca else None


def check_plaintext(settings: TlsSettings, has_tokens: bool, tls: bool, hosts: Iterable[str], what: str) -> None:
    """Raise ConfigInvalid where tokens would travel without TLS beyond this machine."""
    if has_tokens and not tls:
        refuse_plaintext(hosts, settings.allow_plaintext_tokens, what)


def tell_open(addresses: Iterable[str], **lacks: Any) -> None:
    """One line for a service that is open in some way. lacks: name -> whether it is lacking."""
    missing = [name for name, lacking in lacks.items() if lacking]
    if missing:
        log.warning(
            "not_secured",
            addresses=", ".join(address for address in addresses if address),
            lacks=", ".join(missing),
            note="whoever reaches these addresses can read or use what these would guard; see 'TLS and tokens' in the README",
        )
