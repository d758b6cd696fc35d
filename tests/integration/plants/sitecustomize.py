"""Python runs this at its start if the folder is on PYTHONPATH: a real process leaks, for the tests of the leak check.

HEADRACE_TEST_PLANTS: JSON, a list of [kind, [words]]: processes whose command line has all the words leak that kind.
"""

import json
import os
import sys
import threading
import time

kept: list[object] = []


def descriptor(number: int) -> None:
    kept.append(open(os.devnull))  # noqa: SIM115, PTH123


def thread(number: int) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True, name=f"planted-{number}").start()


def memory(number: int) -> None:
    kept.append(os.urandom(1 << 20) * 4)


def shared_memory(number: int) -> None:
    import mmap

    planted = os.memfd_create("planted")
    os.truncate(planted, 1 << 20)
    kept.append(mmap.mmap(planted, 1 << 20))
    os.close(planted)


def store_key(number: int) -> None:
    import redis

    url = sys.orig_argv[sys.orig_argv.index("--store") + 1]
    redis.Redis.from_url(url, single_connection_client=True).set(f"headrace:{{job:lasting}}:planted-{number}", b"x")


KINDS = {kind.__name__: kind for kind in (descriptor, thread, memory, shared_memory, store_key)}


def leak(kind: str) -> None:
    number = 0
    while True:
        time.sleep(1)
        try:
            KINDS[kind](number)
        except Exception:  # noqa: BLE001 - the store is being restarted: later
            continue
        number += 1


line = " ".join(sys.orig_argv)
for planted_kind, words in json.loads(os.environ.get("HEADRACE_TEST_PLANTS", "[]")):
    if all(word in line for word in words):
        threading.Thread(target=leak, args=(planted_kind,), daemon=True).start()
