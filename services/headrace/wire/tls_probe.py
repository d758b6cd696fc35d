"""Finds out why a connection cannot be made: gRPC says 'Socket closed' where a certificate is missing, or TLS altogether.

One connection of its own with the standard library's TLS, which names the reason. Only for messages: nothing is decided by it.
Blocks for at most the deadline; any thread.
"""

from __future__ import annotations

import socket
import ssl
import time

from headrace.core.errors import HeadraceError
from headrace.wire.tls import ClientTls, TlsFiles, context, read

DEADLINE_S = 1.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def explain(host: str, port: int, tls: ClientTls | None, deadline_s: float = DEADLINE_S) -> str:
    """What is wrong between this client's TLS settings and that server, and what to do; empty where nothing is found."""
    own = "" if tls is None else _own_fault(tls)
    if own:
        return own
    try:
        with socket.create_connection((host, port), timeout=deadline_s) as connection:
            return _without_tls(connection) if tls is None else _with_tls(connection, host, tls)
    except OSError:
        return ""  # not reached at all: gRPC's own words are right


def _own_fault(tls: ClientTls) -> str:
    try:
        read(tls.files)  # as they are now: channels may have what was there before
    except HeadraceError as error:
        return error.message
    return ""


def _without_tls(connection: socket.socket) -> str:
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname = False
    anything.verify_mode = ssl.CERT_NONE
    anything.set_alpn_protocols(["h2"])
    told = "the server speaks TLS and this side does not: set tls_ca to the certificate of who signs the server's"
    try:
        with anything.wrap_socket(connection):
            return told
    except ssl.SSLError as error:
        return told if "ALERT" in (error.reason or "").upper() else ""
    except OSError:
        return ""


def _with_tls(connection: socket.socket, host: str, tls: ClientTls) -> str:
    name = tls.server_name or host
    try:
        made = context(tls.files, server=False)
        made.set_alpn_protocols(["h2"])
        with made.wrap_socket(connection, server_hostname=name) as secure:
            # Under TLS 1.3 a server judges the client's certificate after the client's handshake is done.
            secure.sendall(_PREFACE)
            return "" if secure.recv(1) else _closed(tls.files)  # gRPC's servers close without an alert
    except ssl.SSLCertVerificationError as error:
        return _verification(error, name, tls)
    except ssl.SSLError as error:
        return _refusal(error, tls.files)
    except TimeoutError:
        return "the server does not answer to TLS: it may serve without; then leave tls_ca away"
    except (ConnectionError, HeadraceError):
        return _closed(tls.files)


def _verification(error: ssl.SSLCertVerificationError, name: str, tls: ClientTls) -> str:
    reason = error.verify_message or str(error)
    if "mismatch" in reason.lower():
        return (
            f"the server's certificate is not made out for {name}: connect by a name that is in it, have one made for {name}, "
            f"or say which name to expect (tls_worker_name, for workers) ({reason})"
        )
    if "expired" in reason or "not yet valid" in reason:
        return f"the server's certificate is not valid now: renew it, and check both clocks ({reason})"
    return f"the server's certificate is not signed by {tls.files.ca}: set tls_ca to the CA that signed it ({reason})"


def _refusal(error: ssl.SSLError, files: TlsFiles) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        if not files.cert:
            return f"the server demands a client certificate: set tls_cert and tls_key ({reason})"
        return f"the server refuses the client certificate in {files.cert}: it must be signed by the server's tls_ca ({reason})"
    if any(word in reason for word in ("wrong version", "record layer", "unexpected eof", "http request")):
        return "the server does not speak TLS: leave tls_ca away, or give the server tls_cert and tls_key"
    return f"the TLS handshake fails: {reason}"


def _closed(files: TlsFiles) -> str:
    if not files.cert:
        return "the server ends the connection, as one that demands a client certificate: set tls_cert and tls_key"
    return (
        f"the server ends the connection, as one that refuses the client certificate in {files.cert}: it must be signed by the "
        "server's tls_ca"
    )


class Explainer:
    """Explains failures of one client, each server at most once in a while; remembers the last answer. Any thread."""

    def __init__(self, tls: ClientTls | None, pause_s: float = 5.0) -> None:
        self._tls = tls
        self._pause_s = pause_s
        self._known: dict[tuple[str, int], tuple[float, str]] = {}

    def __call__(self, host: str, port: int) -> str:
        """See `explain`."""
        known = self._known.get((host, port))
        if known is None or time.monotonic() - known[0] > self._pause_s:
            known = self._known[host, port] = (time.monotonic(), explain(host, port, self._tls))
        return known[1]
