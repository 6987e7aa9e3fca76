"""Rows of an image that do not fill vectors: lanes run on in the next row.

Two parallel loops, of which the stored index makes one, while what is loaded lies in longer rows (those of a
padded image, of which a filter meets some columns), become the vector loop together. A vector of what is
loaded is in two pieces then: all its lanes from the place of the first one on, and over that, under a mask,
those that lie in the next row. Rows are no shorter than what is stored of them, so no lane of the first piece
lies after that lane's own place.

Convolutions of 3 by 3 with 18 columns take 0.6 of the time, with 24 three quarters. Rows of 10 to 14 columns
would need a third piece, and take as long as under one mask or longer. Of rows of more than 32 columns, tiles
leave fewer lanes empty: 0.95 of the time with 34, 1.09 with 40.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests import registers
from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.ssa import PHI, Value

_WIDTHS: Final = range(17, 32)
"""Iterations of the loop over columns: two rows, not three, share a vector of 16 lanes."""
_ELEMENTS: Final = ("f32", "i32", "i16")
"""What vectors of 16 lanes load under a mask in one instruction."""


class Fold(NamedTuple):
    """Two loops that are one to the vectors."""

    level: Level
    """The level that is written in place of both."""
    rows: Level
    columns: Level
    width: int
    """Iterations of the loop over columns."""
    gaps: dict[ElementAccess, int]
    """Loads whose rows do not follow each other, and the elements between two of them."""

    def in_place_of(self, level: Level) -> bool:
        return level is self.rows or level is self.columns


def find_fold(
    structure: Structure, dependence: Dependence, vector: Level, candidates: Sequence[Level]
) -> Fold | None:
    """The loop whose iterations continue those of the vector loop, and what is loaded of its rows."""
    width = vector.extent
    if (
        width is None
        or width not in _WIDTHS
        or not registers.has_masks()
        or any(access.element not in _ELEMENTS for access in _accesses(structure))
    ):
        return None
    read = dependence.counters_as_data()
    for rows in candidates:
        if rows.extent is None or rows.extent < 2 or {rows.counter, vector.counter} & read:
            continue
        gaps = _gaps(structure, rows, vector, width)
        if gaps:
            number = min(0, *(value.number for value in structure.counters)) - 1
            counter = Value(number, "i64", PHI, [], (), vector.counter.pc, vector.counter.block)
            zero, count = Polynomial.constant(0), Polynomial.constant(width * rows.extent)
            return Fold(Level(counter, zero, count, 1, False), rows, vector, width, gaps)
    return None


def _accesses(structure: Structure) -> tuple[ElementAccess, ...]:
    return (*structure.loads.values(), *structure.stores)


def _gaps(structure: Structure, rows: Level, columns: Level, width: int) -> dict[ElementAccess, int] | None:
    """None if an access does not fit."""
    gaps: dict[ElementAccess, int] = {}
    for access in _accesses(structure):
        along, down = (access.index.coefficient(level.counter) for level in (columns, rows))
        if not (along.terms or down.terms or access.predicate or access.computed):
            continue
        if access.predicate or access.computed or along.number != 1 or down.number is None:
            return None
        if down.number < width or (access in structure.stores and down.number > width):
            return None
        if down.number > width:
            gaps[access] = down.number - width
    return gaps
