"""Turns drawings of text into SVG.

A block of text with the corner of a box in it is a drawing. Lines, boxes and arrows are characters
(``┌─┐│└┘├┤┬┴┼``, ``►◄▲▼``); all else is text, where it stands.
``python -m tests.site.drawings docs/how/calls.md`` prints those of a page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

WIDE: Final = 8
HIGH: Final = 18
"""Of a character, in pixels."""
RIGHT, DOWN, LEFT, UP = (1, 0), (0, 1), (-1, 0), (0, -1)
LINES: Final = {
    "─": (LEFT, RIGHT), "│": (UP, DOWN), "┌": (RIGHT, DOWN), "┐": (LEFT, DOWN), "└": (RIGHT, UP),
    "┘": (LEFT, UP), "├": (UP, DOWN, RIGHT), "┤": (UP, DOWN, LEFT), "┬": (LEFT, RIGHT, DOWN),
    "┴": (LEFT, RIGHT, UP), "┼": (LEFT, RIGHT, UP, DOWN),
}  # fmt: skip
"""Where lines go from the middle of a character."""
ARROWS: Final = {"►": RIGHT, "▼": DOWN, "◄": LEFT, "▲": UP}
WORDS: Final = re.compile(r"[^\s─│┌┐└┘├┤┬┴┼►▼◄▲]+(?: [^\s─│┌┐└┘├┤┬┴┼►▼◄▲]+)*")
DRAWING: Final = re.compile(r"^```text\n([^`]*?┌[^`]*?)^```$", re.MULTILINE)


class Canvas:
    """The characters of a drawing by column and row."""

    def __init__(self, text: str) -> None:
        self.rows = text.rstrip("\n").split("\n")
        self.width = max(map(len, self.rows))

    def at(self, column: int, row: int) -> str:
        is_inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row])
        return self.rows[row][column] if is_inside else " "

    def places(self) -> Iterator[tuple[int, int, str]]:
        for row, line in enumerate(self.rows):
            yield from ((column, row, character) for column, character in enumerate(line))

    def end(self, column: int, row: int, towards: tuple[int, int], last: str) -> tuple[int, int] | None:
        """The corner ``last`` on a line from a place, if it leads there."""
        x, y = column + towards[0], row + towards[1]
        while towards in LINES.get(self.at(x, y), ()):
            x, y = x + towards[0], y + towards[1]
        return (x, y) if self.at(x, y) in last else None

    def boxes(self) -> Iterator[tuple[int, int, int, int]]:
        """Column, row, last column and last row of what lines enclose."""
        for column, row, character in self.places():
            if character in "┌├┬┼":
                right, below = self.end(column, row, RIGHT, "┐"), self.end(column, row, DOWN, "└")
                if right and below and self.at(right[0], below[1]) == "┘":
                    yield column, row, right[0], below[1]


def middle(column: int, row: int) -> tuple[float, float]:
    return (column + 0.5) * WIDE, (row + 0.5) * HIGH


def box(column: int, row: int, last_column: int, last_row: int) -> str:
    (x, y), (right, below) = middle(column, row), middle(last_column, last_row)
    return f'<rect class="box" x="{x}" y="{y}" width="{right - x}" height="{below - y}" rx="4"/>'


def lines(canvas: Canvas) -> str:
    """One path of all lines; an arrow has its line as far as its head."""
    steps: list[str] = []
    for column, row, character in canvas.places():
        x, y = middle(column, row)
        arrow = ARROWS.get(character)
        for dx, dy in LINES.get(character, ((-arrow[0], -arrow[1]),) if arrow else ()):
            steps.append(f"M{x} {y}L{x + dx * WIDE / 2} {y + dy * HIGH / 2}")
    return f'<path class="line" d="{"".join(steps)}"/>'


def head(column: int, row: int, towards: tuple[int, int]) -> str:
    x, y = middle(column, row)
    (dx, dy), tip = towards, 5
    x, y = x + dx * (WIDE / 2 - tip), y + dy * (HIGH / 2 - tip)
    corners = [(x + dx * tip, y + dy * tip), (x - dx * 3 - dy * 4, y - dy * 3 - dx * 4)]
    corners.append((x - dx * 3 + dy * 4, y - dy * 3 + dx * 4))
    return f'<polygon class="head" points="{" ".join(f"{a},{b}" for a, b in corners)}"/>'


def words(row: int, found: re.Match[str]) -> str:
    text = found.group()
    length = f' textLength="{len(text) * WIDE}" lengthAdjust="spacingAndGlyphs"' if len(text) > 1 else ""
    return f'<text x="{found.start() * WIDE}" y="{row * HIGH + 13}"{length}>{escape(text)}</text>'


def svg(text: str, title: str) -> str:
    """The drawing, in the colours of the page around it."""
    canvas = Canvas(text)
    parts = [box(*place) for place in canvas.boxes()] + [lines(canvas)]
    parts += [head(x, y, ARROWS[character]) for x, y, character in canvas.places() if character in ARROWS]
    parts += [words(row, found) for row, line in enumerate(canvas.rows) for found in WORDS.finditer(line)]
    width, height = canvas.width * WIDE, len(canvas.rows) * HIGH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def drawn(page: str, title: str) -> str:
    """A page with its drawings as SVG, for Sphinx."""

    def replace(block: re.Match[str]) -> str:
        return f'```{{raw}} html\n<div class="drawing">{svg(block.group(1), title)}</div>\n```'

    return DRAWING.sub(replace, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for block in DRAWING.findall(Path(name).read_text(encoding="utf-8")):
            print(svg(block, name))
