"""Where functions of executables come from."""

from __future__ import annotations

from jitree.base.records import NamedTuple


class SourceLocation(NamedTuple):
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"
