"""What this process may use: open files, cores, memory against the slots; and the clock that milestones are taken by."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.checks.finding import Finding
from headrace.core.defaults import READ_AHEAD_BYTES
from headrace.telemetry.descriptors import SERVICE_NEEDS, free_descriptors
from headrace.telemetry.memory import CGROUP, available_bytes
from headrace.wire import slot_format

_SUBJECT = "limits"
# Of every rank a worker holds a connection, a slab and a mapping; of every shard some connections to the store.
_COMFORTABLE_FILES = 1024
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
# These are read without a call into the kernel; others cost microseconds each time.
_FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"})
_KEY_BYTES = 256
# What a worker takes besides: interpreter, libraries, buffers of gRPC (as in the chart's values).
_BASE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker here is to bear. ranks: those of all jobs at once. slots: ready batches a rank."""

    batch_size: int = 256
    height: int = 224
    width: int = 224
    value_bytes: int = 1
    ranks: int = 8
    slots: int = 4
    read_ahead_bytes: int = READ_AHEAD_BYTES

    @property
    def slot_bytes(self) -> int:
        """Of one slot, names and labels included."""
        pixels = self.batch_size * self.height * self.width * 3 * self.value_bytes
        return slot_format.slot_bytes(pixels, slot_format.max_meta_bytes(self.batch_size, _KEY_BYTES, 0, 1))


def check(load: Load, cgroup: Path = CGROUP) -> list[Finding]:
    """All of them."""
    return [_files(), _cores(cgroup), _memory(load), _clock(_CLOCK)]


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = free_descriptors()
    found = f"{_limit(soft)}, up to {_limit(hard)}"
    if free < SERVICE_NEEDS:
        advice = f"A service needs {SERVICE_NEEDS} to begin with and {free} are free: raise the limit (ulimit -n, LimitNOFILE)"
        return Finding(_SUBJECT, "open files", "bad", found, advice)
    if free < _COMFORTABLE_FILES:
        advice = f"Enough for some {(free - SERVICE_NEEDS) // 4} ranks: raise the limit (ulimit -n) before there are more"
        return Finding(_SUBJECT, "open files", "note", found, advice)
    return Finding(_SUBJECT, "open files", "ok", found)


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else str(value)


def _cores(cgroup: Path) -> Finding:
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup)
    if quota is not None and quota < cores - 0.5:
        advice = (
            f"Set --threads {max(1, int(quota))}: by itself a worker starts one a core that it sees, and the kernel stops all "
            f"of them whenever the quota is used up"
        )
        return Finding(_SUBJECT, "cores", "note", f"{cores}, with a quota of {quota:g}", advice)
    return Finding(_SUBJECT, "cores", "ok", str(cores))


def cpu_quota(cgroup: Path) -> float | None:
    """Cores' worth of time that the cgroup may use; None: no bound, or no cgroup of version 2."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory(load: Load) -> Finding:
    available = available_bytes()
    slabs = load.ranks * load.slots * load.slot_bytes
    needed = slabs + load.read_ahead_bytes + _BASE_BYTES
    bears = max(0, available - load.read_ahead_bytes - _BASE_BYTES) // (load.slots * load.slot_bytes)
    found = f"{_mib(available)} free here, {_mib(needed)} needed"
    what = (
        f"{load.ranks} ranks x {load.slots} slots x {_mib(load.slot_bytes)}, {_mib(load.read_ahead_bytes)} read ahead, "
        f"{_mib(_BASE_BYTES)} for the process"
    )
    if available >= needed:
        return Finding(_SUBJECT, "memory", "ok", f"{found}: {what}")
    if bears:
        advice = (
            f"Room for {bears} of {load.ranks} ranks ({what}): raise the memory limit, or give --ranks, --batch-size and "
            f"--slots as your job has them"
        )
        return Finding(_SUBJECT, "memory", "note", found, advice, of="worker")
    advice = (
        f"Not enough for one rank ({what}): raise the memory limit, or take smaller batches or a smaller --read-ahead-bytes"
    )
    return Finding(_SUBJECT, "memory", "bad", found, advice, of="worker")


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def _clock(path: Path) -> Finding:
    try:
        source = path.read_text().strip()
    except OSError:
        source = "unknown"
    if source in _FAST_CLOCKS or source == "unknown":
        return Finding(_SUBJECT, "clock", "ok", f"{source}; milestones of one boot compare without an offset")
    advice = f"Reading {source} costs a call into the kernel: boot with clocksource=tsc if the machine's is stable"
    return Finding(_SUBJECT, "clock", "note", source, advice)
