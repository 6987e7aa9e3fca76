"""Describes what the loops of a nest write together: tiles and windows.

Windows are reductions of so few iterations that they are written out, as those of depthwise convolutions
and pooling. Rows of such a window are rows of its neighbours' windows, too. Written in the order in which
rows lie in memory, a tile reads each of them once; each element still has its own iterations in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product, repeat
from operator import mul

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.memory import Offsets
from jitree.dispatch.native.nests.panels import DepthBlock
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import Level, Structure


class Tile(NamedTuple):
    """Says what is written together: vectors of lanes, iterations of the tiled loop."""

    vectors: int
    mask: tuple[str, ...] | None
    copies: int = 1
    left: str | None = None
    """Lanes that the mask leaves."""
    width: int | None = None
    """Iterations of the vector loop, where they do not fill its vectors: the last one begins earlier then,
    and computes what the one before does, too."""
    block: DepthBlock | None = None
    """The part of the last reduction that it runs over; None: all."""

    def places(self, plan: Plan) -> list[Offsets]:
        """Where each copy of the nest's body is, in iterations from the tile's first ones."""
        loops = (plan.tiled, range(self.copies)), (plan.vector, self.firsts(plan.lanes))
        levels = [level for level, _ in loops if level is not None]
        ranges = [numbers for level, numbers in loops if level is not None]
        return [dict(zip(levels, numbers, strict=True)) for numbers in product(*ranges)]

    def firsts(self, lanes: int) -> list[int]:
        """The first lanes of its vectors."""
        firsts = range(0, self.vectors * lanes, lanes)
        return [first if self.width is None else min(first, self.width - lanes) for first in firsts]


def iterations(structure: Structure, plan: Plan, copies: Sequence[Offsets]) -> list[tuple[Offsets, int]]:
    """What a tile of a window does, one after the other: an iteration, for which of its copies."""
    ranges = [range(level.extent or 0) for level in plan.reductions]
    steps = [dict(zip(plan.reductions, numbers, strict=True)) for numbers in product(*ranges)]
    pairs = [(step, copy) for step in steps for copy in range(len(copies))]
    factors = _factors(structure, plan)
    if factors is None:
        return pairs
    distances = [_distance(factors, step) for step in steps]
    if any(one >= other for one, other in pairwise(distances)):  # each copy's are to stay in order
        return pairs
    of_copies = [_distance(factors, copy) for copy in copies]
    sums = [one + other for one in distances for other in of_copies]
    return [pairs[at] for at in sorted(range(len(sums)), key=sums.__getitem__)]


def _factors(structure: Structure, plan: Plan) -> dict[Level, int] | None:
    """How far apart, in elements, a load of rows is in the iterations of the tiled loop and the reductions;
    None if there is no such load, or that is not constant."""
    assert plan.vector is not None
    levels = plan.reductions if plan.tiled is None else (plan.tiled, *plan.reductions)
    for value, load in structure.loads.items():
        if value in plan.accumulators or load.computed or load.step(plan.vector).number != 1:
            continue
        numbers = [load.step(level).number for level in levels]  # that of no step is 0
        found = [number for number in numbers if number is not None]
        return dict(zip(levels, found, strict=True)) if len(found) == len(levels) else None
    return None


def _distance(factors: dict[Level, int], offsets: Offsets) -> int:
    """Iterations of reductions and copies of a tile are of different loops: distances add up."""
    return sum(map(mul, factors.values(), map(offsets.get, factors, repeat(0))))
