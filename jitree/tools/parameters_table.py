"""How ``jitree parameters`` lists parameters, in the layout of IREE's tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jitree.params import ParameterEntry

_FRAME: Final = f"//===--{'-' * 106}--===//"
_TOP: Final = f"//===------------+{'-' * 18}+{'-' * 18}+{'-' * 59}===//"
_BOTTOM: Final = f"//{'-' * 15}+{'-' * 18}+{'-' * 18}+{'-' * 62}//"
_TYPE_TOP: Final = f"//===------------+{'-' * 18}+{'-' * 18}+{'-' * 26}+{'-' * 32}===//"
_TYPE_BOTTOM: Final = f"//{'-' * 15}+{'-' * 18}+{'-' * 18}+{'-' * 26}+{'-' * 35}//"
_UNKNOWN: Final = "-"


class ParameterRow(NamedTuple):
    entry: ParameterEntry
    offset: int | None
    """Where it begins in its file; None when it is not in a file as it is."""


def table(scope: str, rows: Sequence[ParameterRow]) -> str:
    """A scope's parameters: position and length in bytes, key."""
    lines = [*_title(scope, rows), _TOP, f"//{_columns('Start', 'End', 'Length')[2:]} | Key", _BOTTOM]
    lines += [f"{_position(row)} | `{row.entry.key}`" for row in rows]
    return "\n".join(lines) + "\n\n"


def long_table(scope: str, rows: Sequence[ParameterRow]) -> str:
    """As :func:`table`, with shape and element type where the archive knows them."""
    header = f"//{_columns('Start', 'End', 'Length')[2:]} | {'Type':>24} | Key"
    lines = [*_title(scope, rows), _TYPE_TOP, header, _TYPE_BOTTOM]
    for row in rows:
        kind = _UNKNOWN if row.entry.tensor is None else str(row.entry.tensor)
        lines.append(f"{_position(row)} | {kind:>24} | `{row.entry.key}`")
    return "\n".join(lines) + "\n\n"


def _title(scope: str, rows: Sequence[ParameterRow]) -> list[str]:
    name = f"`{scope}`" if scope else "<global>"
    total = sum(row.entry.length for row in rows)
    return [_FRAME, f"// Parameter scope {name} ({len(rows)} entries, {total} total bytes)"]


def _position(row: ParameterRow) -> str:
    if row.offset is None:
        return _columns(_UNKNOWN, _UNKNOWN, row.entry.length)
    return _columns(row.offset, row.offset + row.entry.length, row.entry.length)


def _columns(start: object, end: object, length: object) -> str:
    return f"{start!s:>16} | {end!s:>16} | {length!s:>16}"
