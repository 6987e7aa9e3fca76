"""Skips under emulation what it cannot show: `tests/aarch64/run` says where, docs/platforms.md why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path
from typing import Final

import pytest

_IS_EMULATED: Final = "JITREE_EMULATED_PYTHON" in os.environ
_TABLE: Final = Path(__file__).parent / "aarch64" / "not_shown.tsv"
_NOT_CONFINED: Final = "the system does not confine the process: Invalid argument"
"""What a sandbox in a process of its own says where there is no seccomp."""


def rows() -> list[tuple[str, str]]:
    """Patterns of names of tests (`*` is anything), and why they are left out."""
    lines = _TABLE.read_text().splitlines()
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return [(pattern, reason) for pattern, reason in rows]


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Marks the tests of the table, under emulation."""
    if not _IS_EMULATED:
        return
    patterns = [(re.compile(translate(pattern.replace("[", "[[]"))), reason) for pattern, reason in rows()]
    for item in items:
        for pattern, reason in patterns:
            if pattern.match(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"emulation: {reason}"))


def excuse(report: pytest.TestReport) -> None:
    """Makes a skipped test of one that failed since no process can be confined, under emulation."""
    if _IS_EMULATED and report.failed and _NOT_CONFINED in report.longreprtext:
        report.outcome = "skipped"
        report.longrepr = (*report.location[:1], report.location[1] or 0, "Skipped: emulation: no seccomp")
