"""What the cgroup of this process, and the groups above it, allow. The first sign of a container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from jitree.errors import pass_interruption

ROOT: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")

Read = Callable[[Path], "float | None"]
"""The folder of a group → what it allows; None without a limit."""


def allowed(
    controller: str, read_v1: Read, read_v2: Read, root: Path = ROOT, membership: Path = MEMBERSHIP
) -> float | None:
    """The least that the groups (version 1 or 2) of a controller allow; None without a limit."""
    try:
        lines = membership.read_text().splitlines()
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
        except (OSError, ValueError) as error:
            pass_interruption(error)
            limit = None
        if limit is not None:
            found.append(limit)
        if group in (root, root.parent) or root not in group.parents:
            return found
        group = group.parent
