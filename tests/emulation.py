"""Skips what emulation (`tests/aarch64/run`), or checked machine code (`tests/checked`), cannot show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path
from typing import Final

import pytest

from jitree.codegen.image.shipped import CHECKED

_IS_EMULATED: Final = "JITREE_EMULATED_PYTHON" in os.environ
_TABLES: Final = {"aarch64": _IS_EMULATED, "checked": CHECKED}
"""Folders with a table, and whether it counts here."""
_NOT_CONFINED: Final = "the system does not confine the process: Invalid argument"
"""What a sandbox in a process of its own says where there is no seccomp."""


def rows(folder: str) -> list[tuple[str, str]]:
    """Patterns of names of tests (`*` is anything), and why they are left out."""
    lines = (Path(__file__).parent / folder / "not_shown.tsv").read_text().splitlines()
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(pattern, reason) for pattern, reason in rows]


def examples(count: int) -> int:
    """How many random examples a test tries that compiles each; fewer under emulation, which takes long."""
    return count // 5 if _IS_EMULATED else count


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Marks the tests of the tables that count here."""
    patterns = [
        (re.compile(translate(pattern.replace("[", "[[]"))), f"{folder}: {reason}")
        for folder in _TABLES
        if _TABLES[folder]
        for pattern, reason in rows(folder)
    ]
    for item in items:
        for pattern, reason in patterns:
            if pattern.match(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))


def excuse(report: pytest.TestReport) -> None:
    """Makes a skipped test of one that failed since no process can be confined, under emulation."""
    if _IS_EMULATED and report.failed and _NOT_CONFINED in report.longreprtext:
        report.outcome = "skipped"
        report.longrepr = (*report.location[:1], report.location[1] or 0, "Skipped: emulation: no seccomp")
