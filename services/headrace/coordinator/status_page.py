"""The status page: a few plain files, served without a token since they hold no data. Their script asks the admin API."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI, Response

# Nothing from elsewhere, nothing inline, no frame around it, no form that is sent anywhere: the page's own script alone runs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
    "/fill.js": ("fill.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PATHS = frozenset(_FILES)


def add_to(app: FastAPI) -> None:
    """Serve the page at `/`."""
    for path, (name, kind) in _FILES.items():
        data = (resources.files("headrace.coordinator") / "page" / name).read_bytes()
        app.get(path, include_in_schema=False)(_serving(Response(data, media_type=kind, headers=_HEADERS)))


def _serving(response: Response):  # type: ignore[no-untyped-def]
    async def serve() -> Response:
        return response

    return serve
