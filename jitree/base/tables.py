"""Writes tables as HTML and as text, and numbers of bytes for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from jitree.errors import printable

_MOST_ROWS: Final = 100
"""A notebook keeps what it shows, so a table of many parameters shows the first."""
_LONGEST: Final = 400
"""Characters of a cell."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def html_table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], most: int = _MOST_ROWS
) -> str:
    """Writes a table for ``_repr_html_``. Names of programs may be any text, so all of it is escaped."""
    shown: list[Sequence[object]] = []
    left_out = 0
    for row in rows:
        if len(shown) < most:
            shown.append(row)
        else:
            left_out += 1
    lines = ["".join(f"<td>{cell(value)}</td>" for value in row) for row in shown]
    if left_out:
        lines.append(f'<td colspan="{max(1, len(header))}">… and {left_out} more</td>')
    head = "".join(f"<th>{cell(name)}</th>" for name in header)
    title = f"<caption>{cell(caption)}</caption>" if caption else ""
    return (
        f"<table>{title}"
        + (f"<thead><tr>{head}</tr></thead>" if head else "")
        + "<tbody>"
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</tbody></table>"
    )


def html_text(caption: str, text: str) -> str:
    """Writes a caption and text of several lines, whose columns stay in line."""
    return f"<div>{cell(caption)}<pre>{escape(printable(text))}</pre></div>"


class TextTable(str):
    """A table as text, with its cells: terminals may show these in another way."""

    cells: Sequence[Sequence[str]]

    @classmethod
    def of(cls, text: str, cells: Sequence[Sequence[str]]) -> TextTable:
        """Makes one of lines of cells; the first is the header."""
        made = cls(text)
        made.cells = cells
        return made


def text_table(lines: Sequence[Sequence[str]]) -> TextTable:
    """Writes lines of cells in columns: the first column begins at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return TextTable.of(
        "\n".join(
            " ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        ),
        lines,
    )


def cell(value: object) -> str:
    text = str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return escape(printable(text))


def bytes_text(count: int) -> str:
    """Writes a number of bytes: ``12 bytes``, ``1.5 MiB``."""
    size, unit = float(count), 0
    while size >= _STEP and unit + 1 < len(_UNITS):
        size, unit = size / _STEP, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} {_UNITS[0]}"
