"""How much memory this process could still take."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that this process could still take, by the machine and by its memory cgroup (version 2, as mounted in a pod).

    Without this check the kernel would fill the memory and then kill a process instead of returning an error.
    """
    meminfo = _key_values(Path("/proc/meminfo"))
    available = meminfo["MemAvailable:"] * 1024
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        stat = _key_values(CGROUP / "memory.stat")
    except (OSError, ValueError):  # no cgroup of version 2 here, or no limit ("max")
        return available
    page_cache = stat.get("active_file", 0) + stat.get("inactive_file", 0)
    return min(available, limit - used + page_cache)


def _key_values(path: Path) -> dict[str, int]:
    return {fields[0]: int(fields[1]) for fields in map(str.split, path.read_text().splitlines()) if len(fields) > 1}
