"""Finds rows of a result that share vectors, out of longer ones.

Two parallel loops, of which the stored index makes one, while what is loaded lies in longer rows (those of a
padded image, of which a filter meets some columns), become the vector loop together. Lanes run on in the next
row, in one of two ways:

*Of the result.* A vector of what is loaded is in two pieces: all its lanes from the place of the first one
on, and over that, under a mask, those that lie in the next row. Rows are no shorter than what is stored of
them, so no lane of the first piece lies after that lane's own place. Convolutions of 3 by 3 with 18 columns
take 0.6 of the time, with 24 three quarters. Rows of 10 to 14 columns would need a third piece, and take as
long as under one mask or longer.

*Of the image.* A vector of what is loaded is whole, and also has what lies between two rows: elements between
others that are loaded, so they lie in the buffer. What these lanes compute is not stored. Sums are loaded
before the reductions, and stored after them, a row at a time under masks. Convolutions of 3 by 3 with 7
columns take 0.6 of the time. Of rows of 32 columns and more, tiles leave fewer lanes empty: with 56 the
image's way takes 0.93 of the time, with 40 1.1.

Without reductions rows may be longer where they are stored, into a padded image: then lanes run on along what
is loaded, and a vector is stored a row at a time. It pays where values take many instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from math import prod
from typing import Final

from jitree.base.platform import processor
from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.reductions import LANES
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Polynomial, Structure, new_level

_FULLER: Final = 1.05
"""Rows share vectors where that takes so many times fewer instructions."""
_WIDE: Final = ("f32", "i32")
"""Elements that all processors load and store under a mask."""
_ELEMENTS: Final = (*_WIDE, "i16")
"""… that processors with AVX-512 do in one instruction."""
_IN_PIECES: Final = 1.05
"""What a load in pieces takes, in reductions that see whole ones."""
_MOST_PIECES: Final = {False: 4, True: 2}
"""Rows of one vector, by whether each load is in pieces: a load in three takes what full vectors save."""


@cache
def has_masks() -> bool:
    """Whether masked loads are as fast and keep the other lanes."""
    return "avx512f" in processor.words("flags")


processor.kept.extend((has_masks,))


class Fold(NamedTuple):
    """Names two loops that are one to the vectors.

    Lanes run on from row to row either of what is stored, and loads are in pieces, or of what is loaded, and
    the sums are in pieces: what lanes between two rows compute is not stored.
    """

    level: Level
    """The level that is written in place of both: a lane for each iteration."""
    rows: Level
    columns: Level
    width: int
    """Iterations of the loop over columns."""
    pitch: int
    """Lanes from row to row."""
    gaps: dict[ElementAccess, int]
    """What is in pieces, and the elements from row to row that are more, or less, than lanes."""

    @property
    def merged(self) -> tuple[Level, tuple[Level, ...]]:
        """The level, and those that it stands for."""
        return self.level, (self.rows, self.columns)

    @property
    def pieces(self) -> int:
        """Rows of which a vector may have lanes."""
        return (LANES - 2) // self.pitch + 2

    @property
    def has_gaps(self) -> bool:
        """Whether lanes lie between rows."""
        return self.pitch > self.width

    def lanes_of(self, rows: int) -> int:
        """Counts the lanes of so many rows."""
        return self.pitch * (rows - 1) + self.width


def find_fold(
    structure: Structure, dependence: Dependence, vector: Level, candidates: Sequence[Level],
    sums: Collection[ElementAccess],
) -> Fold | None:  # fmt: skip
    """Finds the loop that continues the vector loop, if vectors get fuller."""
    width = vector.extent
    if width is None or width >= 2 * LANES:
        return None
    read = dependence.counters_as_data()
    for rows in candidates:
        steps = _row_steps(structure, rows, vector)
        if rows.extent is None or rows.extent < 2 or {rows.counter, vector.counter} & read or steps is None:
            continue
        repeated = prod(
            level.count for level in structure.levels if not structure.stores[0].step(level).terms
        )
        number = min(0, *(counter.number for counter in structure.counters)) - 1
        best, least = None, rows.extent * -(-width // LANES) * (repeated + 2) / _FULLER
        for pitch in sorted({width, *steps.values()}):
            gaps = {access: step - pitch for access, step in steps.items() if step != pitch}
            iterations = Polynomial.constant(pitch * (rows.extent - 1) + width)
            fold = Fold(new_level(number, vector.counter, iterations), rows, vector, width, pitch, gaps)
            vectors = -(-fold.lanes_of(rows.extent) // LANES)
            seen = repeated + 2 * fold.pieces if fold.has_gaps else (repeated + 2) * _IN_PIECES
            cost = vectors * seen
            if gaps and cost <= least and _fits(fold, sums):
                best, least = fold, cost
        if best is not None:
            return best
    return None


def _fits(fold: Fold, sums: Collection[ElementAccess]) -> bool:
    """Whether what is in pieces may be, and is worth it."""
    if not (fold.has_gaps or any(access.instruction.results for access in (*fold.gaps, *sums))):
        return has_masks() and fold.pieces <= _MOST_PIECES[False]  # what is stored, and nothing else
    kinds = _ELEMENTS if has_masks() else _WIDE
    if any(access.element not in kinds for access in (*fold.gaps, *sums)):
        return False
    if fold.has_gaps:  # lanes that no row has are not stored
        return {*fold.gaps} == {*sums} and fold.pieces <= _MOST_PIECES[False]
    return not fold.gaps.keys() & {*sums} and has_masks() and fold.pieces <= _MOST_PIECES[True]


def _row_steps(structure: Structure, rows: Level, columns: Level) -> dict[ElementAccess, int] | None:
    """Elements from row to row of what changes with both loops; None if an access does not fit."""
    found: dict[ElementAccess, int] = {}
    for access in structure.accesses:
        along, down = access.step(columns), access.step(rows)
        if not (along.terms or down.terms or access.predicate or access.computed):
            continue
        if access.predicate or access.computed or along.number != 1 or down.number is None:
            return None
        if down.number < (columns.extent or 0) or access.bytes > 4:
            return None
        found[access] = down.number
    return found
