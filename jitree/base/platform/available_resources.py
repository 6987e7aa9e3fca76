"""Finds how many processors and how much memory this process may use.

The system, the limits of the process and its cgroup say so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jitree.base.platform.threads import allowed_processors
from jitree.errors import pass_interruption

ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")

Read = Callable[[Path], "float | None"]
"""The folder of a group → what it allows; None without a limit."""

_QUOTA_IS_GOOD_FOR: Final = 1.0
"""Seconds. A look takes a quarter of a millisecond; an orchestrator may change the quota of what runs."""
_seen: tuple[float, float | None] = 0.0, None
"""Until when the quota is good, by ``time.monotonic``, and the quota."""


def available_processors(thread: int = 0) -> int:
    """Counts processors a thread may use (0: this one): its affinity, and its cgroup's quota, rounded up."""
    global _seen
    count, now = len(allowed_processors(thread)), time.monotonic()
    until, quota = _seen
    if now >= until:
        quota = processor_quota()
        _seen = now + _QUOTA_IS_GOOD_FOR, quota
    return count if quota is None else max(1, min(count, -int(-quota // 1)))


def processor_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """How many processors' worth of time the cgroup may take; None without a limit."""
    return _allowed("cpu", _quota_v1, _quota_v2, root, membership)


def _quota_v2(group: Path) -> float | None:
    quota, period = (group / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    quota = int((group / "cpu.cfs_quota_us").read_text())
    return None if quota <= 0 else quota / int((group / "cpu.cfs_period_us").read_text())


def available_memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """How many bytes this process may still take. OSError where the system does not say it."""
    import resource

    with open("/proc/meminfo", "rb") as file:
        free = next((int(line.split()[1]) << 10 for line in file if line.startswith(b"MemAvailable")), -1)
    if free < 0:
        raise OSError("/proc/meminfo has no MemAvailable")
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if addresses != resource.RLIM_INFINITY:
        with open("/proc/self/statm", "rb") as file:
            free = min(free, addresses - int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    group = _allowed("memory", _left_v1, _left_v2, root, membership)
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


def _allowed(controller: str, read_v1: Read, read_v2: Read, root: Path, membership: Path) -> float | None:
    """The least that the groups (version 1 or 2) of a controller allow; None without a limit."""
    try:
        lines = os.fsdecode(membership.read_bytes()).splitlines()
    except OSError as error:
        pass_interruption(error)
        return None
    limits: list[float] = []
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        controllers, path = fields[1].split(","), fields[2].strip("/")
        if controllers == [""]:
            limits += _limits(root, path, read_v2)
        elif controller in controllers:
            for folder in (",".join(controllers), controller):
                limits += _limits(root / folder, path, read_v1)
    return min(limits, default=None)


def _limits(root: Path, path: str, read: Read) -> list[float]:
    """Of the group and its parents. Inside a container the path may not exist: then only the root counts."""
    group = root / path
    found = []
    while True:
        try:
            limit = read(group)
        except (OSError, ValueError, ZeroDivisionError) as error:
            pass_interruption(error)
            limit = None
        if limit is not None:
            found.append(limit)
        if group in (root, root.parent) or root not in group.parents:
            return found
        group = group.parent
