"""A worker whose GPU is memory of this machine: `python -m headrace.testing.memfd_worker worker ... --gpu 0`.

It is the real worker; only what opens a GPU is another (testing.memfd_device). `--faults a,b` plants faults there.
"""

from __future__ import annotations

import sys

from headrace.testing.memfd_device import MemfdMemory, memfd_device
from headrace.worker import app


def main(argv: list[str]) -> None:
    """Run the worker; the first argument is its name as a command."""
    faults: frozenset[str] = frozenset()
    if "--faults" in argv:
        at = argv.index("--faults")
        faults = frozenset(argv[at + 1].split(","))
        argv = [*argv[:at], *argv[at + 2 :]]
    app.open_device = lambda ordinal: memfd_device(MemfdMemory(faults=faults))  # type: ignore[attr-defined]
    app.main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
