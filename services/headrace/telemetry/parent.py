"""Die with the parent: services started by the demo, a test or another service never outlive it, even after `kill -9`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_VARIABLE = "_HEADRACE_PARENT_PID"  # set by whoever starts the process; closes the race below
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def exit_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; survives exec.

    Call it first thing in main(). Linux: prctl; so the starter's *thread* must live as long as the child is wanted. Elsewhere
    a daemon thread watches the parent's id. Returns at once; ends the process if the parent is already gone.
    """
    started_by = int(os.environ.pop(PARENT_VARIABLE, os.getppid()))  # popped: it is not for our own children
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(started_by,), name="headrace-parent", daemon=True).start()
    if os.getppid() != started_by:  # it ended before we asked
        os._exit(1)


def _watch(started_by: int) -> None:
    while os.getppid() == started_by:
        time.sleep(_POLL_S)
    os._exit(1)
