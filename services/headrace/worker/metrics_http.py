"""The worker's `/metrics`, `/healthz` and `/readyz` over HTTP or HTTPS, a thread for each request.

A scraper that stalls holds up nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.core import limits
from headrace.core.errors import ConfigInvalid, PortInUse
from headrace.telemetry.addresses import split_address
from headrace.telemetry.descriptors import pause_without_descriptors
from headrace.worker.health import Health

log = structlog.get_logger()

_STALL_S = limits.HTTP_REQUEST_S  # between two bytes of a request; also the TLS handshake's
MOST_SCRAPES = 32  # at a time, each with a thread
_STOP_S = 5.0
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer:
    """Listens at once. Raises PortInUse or ConfigInvalid. port: the one that it got."""

    def __init__(self, address: str, registry: CollectorRegistry, tls: ssl.SSLContext | None, health: Health) -> None:
        host, port = split_address(address)
        try:
            self._server = _Server((host, port), tls)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"metrics address {address} is taken; give another by --metrics-address", address=address
                ) from error
            raise ConfigInvalid(f"metrics address {address} cannot be used: {error.strerror}", address=address) from error
        self._server.set_app(_application(registry, health))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_S)


def _application(registry: CollectorRegistry, health: Health) -> _Application:
    """WSGI; needs no token: probes have none."""
    metrics: _Application = make_wsgi_app(registry)
    probes = {"/healthz": health.not_alive, "/readyz": health.not_ready}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in ("/", "/metrics"):
            return metrics(environ, start_response)
        if path not in probes:
            return _text(start_response, "404 Not Found", f"here are /metrics, {', '.join(probes)}")
        reason = probes[path]()
        return _text(start_response, "503 Service Unavailable" if reason else "200 OK", reason or "ok")

    return answer


def _text(start_response: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Handler(WSGIRequestHandler):
    timeout = _STALL_S

    def log_message(self, format: str, *args: Any) -> None:
        """One line a scrape would be most of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # the base class's 5 would have a scraper wait behind a flood for seconds

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._open_lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the base class, without its look-up of this host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The handshake waits for the request's own thread."""
        try:
            accepted, peer = super().get_request()
        except OSError as error:
            pause_without_descriptors(error)  # the base class would try again at once, for ever
            raise
        if self._tls is None:
            return accepted, peer
        try:
            return self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False), peer
        except BaseException:
            accepted.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own. Of too many the oldest is ended, so that whoever comes new is heard."""
        with self._open_lock:
            self._open[request] = None
            oldest = self._open.popitem(last=False)[0] if len(self._open) > MOST_SCRAPES else None
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A request is done with."""
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away, or speaks no TLS: nothing of ours."""
        log.debug("scrape_failed", peer=str(client_address), exc_info=True)
