"""Asks a coordinator's admin API, for commands that show what it knows."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
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
from headrace.wire.tls import ClientTls, TlsFiles, context, read
from headrace.wire.tls_probe import explain

DEADLINE_S = 15.0
ADMIN = click.option(
    "--admin",
    default="127.0.0.1:7301",
    show_default=True,
    envvar="HEADRACE_ADMIN",
    show_envvar=True,
    help="HOST:PORT of a coordinator's admin API.",
)
VARIABLES = (
    "Where the admin API speaks TLS, HEADRACE_TLS_CA names the PEM file of who signed its certificate, and HEADRACE_TLS_CERT "
    "and HEADRACE_TLS_KEY this command's own certificate if it demands one. Its token is in the file that "
    "HEADRACE_ADMIN_TOKEN_FILE names, or in HEADRACE_ADMIN_TOKEN."
)
# Messages that services and commands share name settings by their own names.
_NAMED = "of a command each setting is a variable, HEADRACE_ and its name in capitals"


def get_job(admin: str, job: str, what: str = "") -> Any:
    """GET of `/api/jobs/<job>[/<what>]` as plain data; see `get`. Raises JobUnknown, too."""
    try:
        return get(admin, f"jobs/{quote(job, safe='')}{f'/{what}' if what else ''}", job=job)
    except JobUnknown as error:
        # A coordinator that has not read the store knows of no job, whether it is open or not.
        why = unread(get(admin, "replica"))
        if why:
            raise StoreUnavailable(f"whether job {job} is open is not known yet: {why} (asked at {admin})", job=job) from error
        raise


def unread(replica: Mapping[str, Any]) -> str:
    """Why a coordinator knows nothing of jobs and workers, of its answer to `/api/replica`; empty where it has read them."""
    if replica["loaded"]:
        return ""
    if replica["store_error"]:
        return f"this coordinator has not read the store since it began: {str(replica['store_error']).rstrip('.')}"
    return "this coordinator is still reading the store"


def get(admin: str, what: str, *, job: str = "", deadline_s: float = DEADLINE_S) -> Any:
    """GET of `/api/<what>` as plain data; admin: host:port, or a URL.

    HEADRACE_ADMIN_TOKEN_FILE or HEADRACE_ADMIN_TOKEN is shown, and HEADRACE_TLS_CA makes it HTTPS. Raises StoreUnavailable,
    CoordinatorUnavailable, Unauthenticated or ConfigInvalid.
    """
    try:
        files = TlsFiles(variable("tls_cert"), variable("tls_key"), variable("tls_ca"))
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{error.message}; {_NAMED}", **error.ids) from error
    base = _base(admin, files)
    url = f"{base.rstrip('/')}/api/{what}"
    request = urllib.request.Request(url, headers=_headers(base))  # noqa: S310 - http(s) as checked in _base
    opener = _opener(files, base)
    try:
        with opener.open(request, timeout=deadline_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(error, job, admin, shown=request.has_header("Authorization")) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
            reason = "what answers there does not speak HTTP"
        told = _tls_fault(admin, base, files, reason)
        if not told:
            told = f"no admin API answers at {admin} ({reason}): name a coordinator's admin address by --admin HOST:PORT"
        raise CoordinatorUnavailable(told, address=admin) from error


def _base(admin: str, files: TlsFiles) -> str:
    """The address as a URL. Raises ConfigInvalid."""
    base = admin if "://" in admin else f"{'https' if files.ca else 'http'}://{admin}"
    try:
        parts = urlsplit(base)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        fits = False
    if not fits or not base.isprintable() or " " in base:
        raise ConfigInvalid(f"--admin must be HOST:PORT or an http(s):// address, not {admin!r}", address=admin)
    return base


def _tls_fault(admin: str, base: str, files: TlsFiles, reason: object) -> str:
    """What of TLS keeps the address from answering, and what to set; empty where that is not it."""
    parts = urlsplit(base)
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme == "http":
        if not explain(host, port, None):
            return ""
        remedy = (
            f"write https://{parts.netloc}" if files.ca else "set HEADRACE_TLS_CA to the PEM file of who signed its certificate"
        )
        return f"the port at {admin} speaks TLS and this command does not: {remedy}"
    if not files.ca:
        if not isinstance(reason, ssl.SSLCertVerificationError):
            return ""
        trust = "set HEADRACE_TLS_CA to the PEM file of who signed it"
        return f"the certificate of {admin} is not one that this machine trusts ({reason.verify_message}): {trust}"
    found = explain(host, port, ClientTls(files))
    return f"{admin}: {found}; {_NAMED}" if found else ""


def _headers(base: str) -> dict[str, str]:
    try:
        token = secret("admin_token", variable("admin_token"), variable("admin_token_file"))
        if token is None:
            return {}
        if base.startswith("http://"):
            host = urlsplit(base).hostname or ""
            refuse_plaintext([host], switch("allow_plaintext_tokens"), "this command")
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{error.message}; {_NAMED}", **error.ids) from error
    return dict(token.metadata[:1])


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The token is for the address that was given, and for no other."""


def _opener(files: TlsFiles, base: str) -> urllib.request.OpenerDirector:
    try:
        read(files)  # it names the file that is at fault, which the standard library does not
        trust = context(files, server=False)
    except OSError as error:
        raise ConfigInvalid(f"the files for TLS cannot be used: {error.strerror}; {_NAMED}") from error
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{_setting(files, error)}{error.message}", **error.ids) from error
    if not files.ca and base.startswith("https://"):
        trust.load_default_certs()
    return urllib.request.build_opener(_Stay, urllib.request.HTTPSHandler(context=trust))


def _setting(files: TlsFiles, error: ConfigInvalid) -> str:
    """The variable that names the file of an error."""
    names = {files.key: "HEADRACE_TLS_KEY", files.cert: "HEADRACE_TLS_CERT", files.ca: "HEADRACE_TLS_CA"}
    found = names.get(str(error.ids.get("path", "")))
    return f"{found}: " if found else ""


def _refused(error: urllib.error.HTTPError, job: str, admin: str, *, shown: bool) -> HeadraceError:
    try:
        detail = str(json.load(error)["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        detail = f"HTTP status {error.code}"
    if error.code == 401 and shown:
        file = variable("admin_token_file")
        source = f"the file {file} (HEADRACE_ADMIN_TOKEN_FILE)" if file else "HEADRACE_ADMIN_TOKEN"
        text = f"the admin API at {admin} does not know the token in {source}: put the coordinators' admin token there"
        return Unauthenticated(text, address=admin)
    if error.code == 401:
        return Unauthenticated(f"this command shows no token, and {detail} (asked at {admin})", address=admin)
    if error.code == 404:
        return JobUnknown(f"{detail} (asked at {admin})", job=job)
    if error.code == 503:
        return StoreUnavailable(detail, job=job)
    return CoordinatorUnavailable(f"the admin API at {admin} refuses: {detail}", address=admin)
