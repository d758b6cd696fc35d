"""TLS for gRPC and HTTP, from PEM files that may be replaced at any time (cert-manager and Kubernetes swap a link).

A server looks at its files at each new connection and a client at each new channel, so that neither is restarted for a new
certificate; connections that are up go on. New files that cannot be used are logged and counted, and the old ones stay.
Any thread may call.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog

from headrace.core.errors import ConfigInvalid
from headrace.wire.certificate import validity
from headrace.wire.file_stamp import FileStamp, file_stamp

log = structlog.get_logger()

# Files that cannot be used are looked at again after so long even if they have not changed: a certificate may become valid.
_TRY_AGAIN_S = 10.0
_MOST_READS = 5

Stamp = tuple[FileStamp, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files; empty where there is none. cert: chain, own certificate first. ca: who may sign the other side's."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigInvalid("tls_cert and tls_key go together: give both or none", field="tls_key")

    @property
    def stamp(self) -> Stamp:
        """Changes when a file does. Raises OSError."""
        return tuple(file_stamp(path) for path in (self.cert, self.key, self.ca) if path)


@dataclass(frozen=True, slots=True)
class Material:
    """What the files held at one moment, found fit to be used. not_before_s, not_after_s: since 1970; 0 without one."""

    stamp: Stamp
    cert: bytes
    key: bytes
    ca: bytes
    not_before_s: float
    not_after_s: float


def read(files: TlsFiles) -> Material:
    """Read and check the files: a certificate that is valid now, its key, a readable CA. Raises ConfigInvalid."""
    for _ in range(_MOST_READS):
        try:
            before = files.stamp
            cert, key, ca = (Path(path).read_bytes() if path else b"" for path in (files.cert, files.key, files.ca))
            valid = _check(files, cert)
            if files.stamp == before:
                return Material(before, cert, key, ca, *valid)
        except OSError as error:
            raise ConfigInvalid(
                f"{error.filename or _names(files)} cannot be used for TLS: {error.strerror or error}", path=str(error.filename)
            ) from error
    raise ConfigInvalid(f"{_names(files)} change faster than they can be read", path=files.cert or files.ca)


def _check(files: TlsFiles, cert: bytes) -> tuple[float, float]:
    begins_s = not_after_s = 0.0
    if files.cert:
        try:
            begins_s, not_after_s = validity(cert)
        except ValueError as error:
            raise ConfigInvalid(f"{files.cert} is not a PEM certificate: {error}", path=files.cert) from error
        if not begins_s <= time.time() < not_after_s:
            word = "is not valid before" if time.time() < begins_s else "expired at"
            moment = utc(begins_s if time.time() < begins_s else not_after_s)
            raise ConfigInvalid(f"the certificate in {files.cert} {word} {moment}; put a valid one there", path=files.cert)
    context(files, server=bool(files.cert))
    return begins_s, not_after_s


def utc(moment_s: float) -> str:
    """A time for people."""
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def context(files: TlsFiles, *, server: bool, require_client: bool = False) -> ssl.SSLContext:
    """A context of the standard library from the files as they are now. Raises ConfigInvalid, OSError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if files.cert:
            made.load_cert_chain(files.cert, files.key, password=_no_password)
    except ssl.SSLError as error:
        reason = "the key is not the certificate's" if "MISMATCH" in str(error) else str(error.reason or error)
        raise ConfigInvalid(f"{files.cert} and {files.key} cannot be used for TLS: {reason}", path=files.cert) from error
    try:
        if files.ca:
            made.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise ConfigInvalid(f"{files.ca} holds no PEM certificate to trust: {error.reason}", path=files.ca) from error
    if require_client:
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def _no_password() -> NoReturn:
    raise ConfigInvalid("the key for TLS is encrypted; give one without a password, readable by this process alone")


def _names(files: TlsFiles) -> str:
    return ", ".join(path for path in (files.cert, files.key, files.ca) if path)


# --- what is in use ----------------------------------------------------------------------------------------------------


class Kept:
    """What the files hold, or held when they were last of use: a refused change is told once and leaves what was before.

    load: reads and checks them, raises ConfigInvalid or OSError. on_reload: told `ok` or `refused` after each change.
    """

    def __init__(self, files: TlsFiles, load: Callable[[], Material], on_reload: Callable[[str], None]) -> None:
        self._files = files
        self._load = load
        self._lock = threading.Lock()
        self._bad: tuple[Stamp | None, float] = (None, 0.0)
        self.material: Material | None = None
        self._on_reload = on_reload

    def newest(self) -> Material:
        """For the next connection. Raises ConfigInvalid, OSError where the files have never been of use."""
        with self._lock:
            stamp: Stamp = ()  # of files that are not there
            with contextlib.suppress(OSError):
                stamp = self._files.stamp
            if self.material is None:
                self.material = self._load()
            elif stamp != self.material.stamp and not (stamp == self._bad[0] and time.monotonic() < self._bad[1]):
                self.material = self._changed(self.material, stamp)
            return self.material

    def _changed(self, before: Material, stamp: Stamp) -> Material:
        try:
            found = self._load()
        except (ConfigInvalid, OSError) as error:
            if self._bad[0] != stamp:
                log.error("certificate_refused", error=str(error), note="the one before stays in use")
                self._on_reload("refused")
            self._bad = (stamp, time.monotonic() + _TRY_AGAIN_S)
            return before
        self._bad = (None, 0.0)
        told = {"not_after": utc(found.not_after_s)} if found.not_after_s else {}
        log.info("certificate_reloaded", file=self._files.cert or self._files.ca, **told)
        self._on_reload("ok")
        return found


# --- servers ---------------------------------------------------------------------------------------------------------


class ServerTls:
    """A server's certificate, kept new. require_client, require_client_http: a client must show a certificate signed by `ca`.

    on_reload: told `ok` or `refused` after each change of the files. on_refused: told why, for each HTTP client of an asyncio
    server whose handshake fails (gRPC tells nobody). Raises ConfigInvalid where the files cannot be used now.
    """

    def __init__(
        self,
        files: TlsFiles,
        *,
        require_client: bool = False,
        require_client_http: bool = False,
        on_reload: Callable[[str], None] = lambda _: None,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not files.cert:
            raise ConfigInvalid("a server's TLS needs tls_cert and tls_key", field="tls_cert")
        if (require_client or require_client_http) and not files.ca:
            raise ConfigInvalid("client certificates are required, but there is no tls_ca to check them by", field="tls_ca")
        self._files = files
        self._require = require_client
        self._require_http = require_client_http
        self._handshakes = _told(on_refused)
        self._kept = Kept(files, self._load, on_reload)
        self.newest()

    @property
    def validity_s(self) -> tuple[float, float]:
        """From when to when the certificate in use is valid, seconds since 1970."""
        material = self._kept.material
        assert material is not None
        return material.not_before_s, material.not_after_s

    def newest(self) -> Material:
        """What new connections get: the files as they are, or as they were when they were last of use."""
        return self._kept.newest()

    def _load(self) -> Material:
        found = read(self._files)
        made = context(self._files, server=True, require_client=self._require_http)
        made.sslobject_class = self._handshakes
        self._http = made
        return found

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For `add_secure_port`, of grpc and of grpc.aio."""
        served = self.newest()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            newest = self.newest()
            if newest is served:
                return None
            served = newest
            return _grpc_configuration(newest)

        # None is 'no change' to gRPC; its type stubs do not know.
        return grpc.dynamic_ssl_server_credentials(_grpc_configuration(served), renewed, self._require)  # type: ignore[arg-type]

    def http_context(self) -> ssl.SSLContext:
        """For asyncio's servers and for `wrap_socket`: each connection is made with the newest certificate."""
        return _NewestContext(self)

    def newest_http(self) -> ssl.SSLContext:
        """The context of the next HTTP connection."""
        self.newest()
        return self._http


def _grpc_configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca or None)


def _told(on_refused: Callable[[str], None]) -> type[ssl.SSLObject]:
    class Told(ssl.SSLObject):
        def do_handshake(self) -> None:
            """See ssl. asyncio itself drops a connection whose handshake fails, and says nothing."""
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                on_refused((error.reason or str(error)).lower().replace("_", " "))
                raise

    return Told


class _NewestContext(ssl.SSLContext):
    """Makes nothing itself: an SSLContext that is loaded anew half-way would serve a certificate with another's key."""

    _owner: ServerTls

    def __new__(cls, owner: ServerTls) -> _NewestContext:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._owner = owner
        return made

    def __init__(self, owner: ServerTls) -> None:
        """See __new__."""

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """See ssl."""
        return self._owner.newest_http().wrap_socket(*args, **kwargs)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """See ssl."""
        return self._owner.newest_http().wrap_bio(*args, **kwargs)


# --- clients ---------------------------------------------------------------------------------------------------------


class ClientTls:
    """How a client speaks TLS. files: `ca` is who signs servers' certificates; `cert` and `key` only where servers require one.

    server_name: the name that must be in the server's certificate, instead of the host of its address; empty: that host.
    """

    def __init__(self, files: TlsFiles, server_name: str = "") -> None:
        if not files.ca:
            raise ConfigInvalid("a client's TLS needs tls_ca, the certificate of who signs the servers'", field="tls_ca")
        self.files = files
        self.server_name = server_name
        self._kept = Kept(files, lambda: read(files), lambda _: None)

    @property
    def stamp(self) -> Stamp | None:
        """Of what new channels get: changes when files change that can be used; None while there were none such."""
        try:
            return self._kept.newest().stamp
        except ConfigInvalid:
            return None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a new channel: the files as they are, or as they were when last of use. Raises ConfigInvalid."""
        found = self._kept.newest()
        return grpc.ssl_channel_credentials(found.ca, found.key or None, found.cert or None)

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Options of the channel."""
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


Options = tuple[tuple[str, int | str], ...]


def open_channel(address: str, options: Options, tls: ClientTls | None) -> grpc.Channel:
    """A channel; without TLS if `tls` is None. Raises ConfigInvalid."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials(), options=(*options, *tls.options))


def open_aio_channel(address: str, options: Options, tls: ClientTls | None) -> grpc.aio.Channel:
    """As `open_channel`, for asyncio."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=(*options, *tls.options))
