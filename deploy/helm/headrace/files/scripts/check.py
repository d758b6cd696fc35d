"""`helm test`: asks a coordinator whether it is ready, and how many workers live. Exit status 1 and a sentence if not.

HEADRACE_TLS_CA makes it HTTPS; HEADRACE_ADMIN_TOKEN_FILE has the admin API's token. Only the standard library.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

base, wanted, deadline_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ca = os.environ.get("HEADRACE_TLS_CA", "")
context = ssl.create_default_context(cafile=ca) if ca else None
headers = {}
if path := os.environ.get("HEADRACE_ADMIN_TOKEN_FILE", ""):
    headers["authorization"] = f"Bearer {Path(path).read_text(encoding='utf-8').split()[0]}"


def get(path):
    request = urllib.request.Request(base + path, headers=headers)  # noqa: S310 - the chart writes the address
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
        return json.load(answer)


def found():
    """What is wrong, or empty."""
    try:
        get("/readyz")
        live = [worker["worker"] for worker in get("/api/workers") if worker["live"] and not worker["draining"]]
    except urllib.error.HTTPError as error:
        hint = "; is the Secret of the tokens the one that it was started with?" if error.code == 401 else ""
        return f"{base} answers {error.code}: {error.read(500).decode(errors='replace')}{hint}"
    except (OSError, ValueError) as error:
        return f"{base} does not answer: {error}; look at the coordinator's log, and whether a NetworkPolicy is in the way"
    if len(live) < wanted:
        return f"{len(live)} of at least {wanted} workers live ({', '.join(live) or 'none'}): look at their logs"
    print(f"ready, {len(live)} workers: {', '.join(live)}")
    return ""


until = time.monotonic() + deadline_s
while (trouble := found()) and time.monotonic() < until:
    time.sleep(2)
sys.exit(f"headrace: {trouble}" if trouble else 0)
