"""How much memory this process may still take: what the system has, its own limit, and that of its cgroup."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

from jitree.base import cgroups


def available_memory(root: Path = cgroups.ROOT, membership: Path = cgroups.MEMBERSHIP) -> int:
    """Bytes. OSError where the system does not say it."""
    with open("/proc/meminfo", "rb") as file:
        free = next((int(line.split()[1]) << 10 for line in file if line.startswith(b"MemAvailable")), -1)
    if free < 0:
        raise OSError("/proc/meminfo has no MemAvailable")
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        with open("/proc/self/statm", "rb") as file:
            free = min(free, addresses - int(file.read().split()[0]) * mmap.PAGESIZE)
    group = cgroups.allowed("memory", _left_v1, _left_v2, root, membership)
    return max(0, free if group is None else min(free, int(group)))


def _left_v2(group: Path) -> float | None:
    limit = (group / "memory.max").read_text().strip()
    if limit == "max":
        return None
    return _left(int(limit), group / "memory.current", group / "memory.stat", "inactive_file")


def _left_v1(group: Path) -> float | None:
    limit = int((group / "memory.limit_in_bytes").read_text())
    return _left(limit, group / "memory.usage_in_bytes", group / "memory.stat", "total_inactive_file")


def _left(limit: int, used: Path, figures: Path, files: str) -> int:
    """Copies of files that nothing has used lately make room."""
    rows = (line.split() for line in figures.read_text().splitlines())
    return limit - int(used.read_text()) + next((int(size) for name, size in rows if name == files), 0)
