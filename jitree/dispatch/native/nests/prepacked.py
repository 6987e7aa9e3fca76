"""Which loads find constants in the order of lanes (`../packed.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.dispatch.native.nests.structure import ElementAccess, Level
from jitree.dispatch.native.ssa import Value
from jitree.regs.layout import PACKED_ROWS

LEAST_DEPTH: Final = 64
MOST_DEPTH: Final = 1 << 20


def is_packable(
    access: ElementAccess, place: frozenset[Value], vector: Level, reductions: Sequence[Level]
) -> bool:
    """Whether a load's lanes are whole blocks of sixteen rows, one after the other; ``place`` are the
    counters on which its index depends."""
    if len(reductions) != 1 or access.element != "f32" or access.predicate or access.computed:
        return False
    depth, rows = reductions[0].extent or 0, vector.extent or 0
    return (
        place == {vector.counter, reductions[0].counter}
        and access.index.coefficient(vector.counter).number == depth
        and access.index.coefficient(reductions[0].counter).number == 1
        and rows > 0
        and rows % PACKED_ROWS == 0
        and depth % PACKED_ROWS == 0
        and LEAST_DEPTH <= depth <= MOST_DEPTH
    )
