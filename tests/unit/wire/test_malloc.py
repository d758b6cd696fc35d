"""The allocator really keeps freed blocks after tuning."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from headrace.wire.malloc import tune_malloc
if sys.argv[1] == "tuned":
    assert tune_malloc(single_arena=True)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    bytes(bytearray(38 << 20))
before = faults()
for _ in range(5):
    bytes(bytearray(38 << 20))
print((faults() - before) // 5)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_tuning_ends_the_page_faults() -> None:
    assert page_faults("plain") > 1000  # else this test shows nothing here
    assert page_faults("tuned") < 100
