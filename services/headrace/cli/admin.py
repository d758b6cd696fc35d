"""Asks a coordinator's admin API, for commands that show what it knows."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from headrace.core.errors import ConfigInvalid, CoordinatorUnavailable, HeadraceError, JobUnknown, StoreUnavailable

DEADLINE_S = 15.0
DEFAULT = "127.0.0.1:7301"


def get_job(admin: str, job: str, what: str = "") -> Any:
    """GET of `/api/jobs/<job>[/<what>]` as plain data; admin: host:port, or a URL.

    Raises JobUnknown, StoreUnavailable, CoordinatorUnavailable or ConfigInvalid.
    """
    base = admin if "://" in admin else f"http://{admin}"
    if not base.startswith(("http://", "https://")):
        raise ConfigInvalid(f"--admin must be HOST:PORT or an http(s):// address, not {admin!r}", address=admin)
    url = f"{base.rstrip('/')}/api/jobs/{quote(job, safe='')}{f'/{what}' if what else ''}"
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:  # noqa: S310 - http(s) as checked above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refused(error, job, admin) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CoordinatorUnavailable(
            f"no admin API answers at {admin} ({reason}): name a coordinator's admin address by --admin HOST:PORT",
            address=admin,
        ) from error


def _refused(error: urllib.error.HTTPError, job: str, admin: str) -> HeadraceError:
    try:
        detail = str(json.load(error)["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        detail = f"HTTP status {error.code}"
    if error.code == 404:
        return JobUnknown(f"{detail} (asked at {admin})", job=job)
    if error.code == 503:
        return StoreUnavailable(detail, job=job)
    return CoordinatorUnavailable(f"the admin API at {admin} refuses: {detail}", address=admin)
