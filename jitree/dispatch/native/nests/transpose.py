"""Transposes a square of elements on its way from memory into vectors."""

from __future__ import annotations

from collections.abc import Callable

from jitree.dispatch.native.nests.writer import Writer

PARTS = 4
"""128-bit parts of a vector of 512 bits: instructions that work inside them are the cheap ones."""


def part_columns(lanes: int) -> int:
    """How many columns a part has."""
    return lanes // PARTS


def load_columns(writer: Writer, element: str, lanes: int, load: Callable[[int, int, int], str]) -> list[str]:
    """The columns of a square of ``lanes`` rows; ``load(row, first, count)`` loads a piece of a row.

    The squares of parts change places by being loaded where they belong, the elements of each square by
    interleaving: half the shuffles of a transposition in registers.
    """
    width = part_columns(lanes)
    columns: list[str] = []
    for part in range(PARTS):
        rows = []
        for row in range(width):
            pieces = [load(row + width * other, width * part, width) for other in range(PARTS)]
            halves = [_join(writer, element, width, *pieces[at : at + 2]) for at in (0, 2)]
            rows.append(_join(writer, element, 2 * width, *halves))
        columns += interleaved(writer, element, PARTS, rows)
    return columns


def _join(writer: Writer, element: str, count: int, left: str, right: str) -> str:
    return writer.shuffled(f"<{count} x {element}>", range(2 * count), left, right)


def interleaved(writer: Writer, element: str, parts: int, rows: list[str]) -> list[str]:
    """Transposes the squares of the parts of as many rows as a part has elements."""
    size, count = 1, len(rows)
    while size < count:
        # Runs of `size` elements of two rows alternate: the lower halves of the parts, then the upper ones.
        half = count // 2
        merged: list[str] = []
        for first in range(half):
            for start in (0, half):
                merged.append(
                    _alternate(writer, element, parts, rows[first], rows[first + half], start, count)
                )
        rows = merged
        size *= 2
    return rows


def _alternate(
    writer: Writer, element: str, parts: int, left: str, right: str, start: int, width: int
) -> str:
    lanes = parts * width
    order = [
        lane + part * width + source * lanes
        for part in range(parts)
        for lane in range(start, start + width // 2)
        for source in (0, 1)
    ]
    return writer.shuffled(f"<{lanes} x {element}>", order, left, right)
