"""Asks a coordinator's admin API, for commands that show what it knows."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

import click

from headrace.client.security import switch, variable
from headrace.core.errors import (
    ConfigInvalid,
    CoordinatorUnavailable,
    HeadraceError,
    JobUnknown,
    StoreUnavailable,
    Unauthenticated,
)
from headrace.wire.secret import refuse_plaintext, secret
from headrace.wire.tls import TlsFiles, context

DEADLINE_S = 15.0
ADMIN = click.option(
    "--admin",
    default="127.0.0.1:7301",
    show_default=True,
    envvar="HEADRACE_ADMIN",
    help="HOST:PORT of a coordinator's admin API.",
)


def get_job(admin: str, job: str, what: str = "") -> Any:
    """GET of `/api/jobs/<job>[/<what>]` as plain data; see `get`. Raises JobUnknown, too."""
    return get(admin, f"jobs/{quote(job, safe='')}{f'/{what}' if what else ''}", job=job)


def get(admin: str, what: str, *, job: str = "", deadline_s: float = DEADLINE_S) -> Any:
    """GET of `/api/<what>` as plain data; admin: host:port, or a URL.

    HEADRACE_ADMIN_TOKEN_FILE or HEADRACE_ADMIN_TOKEN is shown, and HEADRACE_TLS_CA makes it HTTPS. Raises StoreUnavailable,
    CoordinatorUnavailable, Unauthenticated or ConfigInvalid.
    """
    files = TlsFiles(variable("tls_cert"), variable("tls_key"), variable("tls_ca"))
    base = admin if "://" in admin else f"{'https' if files.ca else 'http'}://{admin}"
    if not base.startswith(("http://", "https://")):
        raise ConfigInvalid(f"--admin must be HOST:PORT or an http(s):// address, not {admin!r}", address=admin)
    url = f"{base.rstrip('/')}/api/{what}"
    request = urllib.request.Request(url, headers=_headers(base))  # noqa: S310 - http(s) as checked above
    try:
        with _opener(files, base).open(request, timeout=deadline_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(error, job, admin) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CoordinatorUnavailable(
            f"no admin API answers at {admin} ({reason}): name a coordinator's admin address by --admin HOST:PORT",
            address=admin,
        ) from error


def _headers(base: str) -> dict[str, str]:
    token = secret("admin_token", variable("admin_token"), variable("admin_token_file"))
    if token is None:
        return {}
    if base.startswith("http://"):
        host = urlsplit(base).hostname or ""
        refuse_plaintext([host], switch("allow_plaintext_tokens"), "this command")
    return dict(token.metadata[:1])


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The token is for the address that was given, and for no other."""


def _opener(files: TlsFiles, base: str) -> urllib.request.OpenerDirector:
    try:
        trust = context(files, server=False)
    except OSError as error:
        raise ConfigInvalid(f"{error.filename} cannot be used for TLS: {error.strerror}", path=str(error.filename)) from error
    if not files.ca and base.startswith("https://"):
        trust.load_default_certs()
    return urllib.request.build_opener(_Stay, urllib.request.HTTPSHandler(context=trust))


def _refused(error: urllib.error.HTTPError, job: str, admin: str) -> HeadraceError:
    try:
        detail = str(json.load(error)["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        detail = f"HTTP status {error.code}"
    if error.code == 401:
        return Unauthenticated(f"{detail} (asked at {admin})", address=admin)
    if error.code == 404:
        return JobUnknown(f"{detail} (asked at {admin})", job=job)
    if error.code == 503:
        return StoreUnavailable(detail, job=job)
    return CoordinatorUnavailable(f"the admin API at {admin} refuses: {detail}", address=admin)
