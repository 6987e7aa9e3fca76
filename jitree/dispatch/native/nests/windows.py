"""Small windows: reductions of so few iterations that they are written out, as those of depthwise
convolutions and pooling.

Rows of such a window are rows of its neighbours' windows, too. Written in the order in which rows lie in
memory, a tile reads each of them once; each element still has its own iterations in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, repeat
from operator import ge, mul

from jitree.dispatch.native.nests.memory import Offsets
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure


def iterations(structure: Structure, plan: Plan, copies: Sequence[Offsets]) -> list[tuple[Offsets, int]]:
    """What a tile does, one after the other: an iteration of the reductions, for which of its copies."""
    ranges = [range(level.extent or 0) for level in plan.reductions]
    steps = [dict(zip(plan.reductions, numbers, strict=True)) for numbers in product(*ranges)]
    pairs = [(step, copy) for step in steps for copy in range(len(copies))]
    factors = _factors(structure, plan)
    if factors is None:
        return pairs
    distances = [_distance(factors, step) for step in steps]
    if any(map(ge, distances, distances[1:])):  # each copy's iterations are to stay in order
        return pairs
    of_copies = [_distance(factors, copy) for copy in copies]
    sums = [one + other for one in distances for other in of_copies]
    return [pairs[at] for at in sorted(range(len(sums)), key=sums.__getitem__)]


def _factors(structure: Structure, plan: Plan) -> dict[Level, int] | None:
    """How far apart, in elements, a load of rows is in the iterations of the tiled loop and the reductions;
    None if there is no such load, or that is not constant."""
    vector, tiled = plan.vector, plan.tiled
    assert vector is not None
    for value, load in structure.loads.items():
        if value in plan.accumulators or load.computed:
            continue
        if load.index.coefficient(vector.counter).number != 1:
            continue
        return _constant(load, plan.reductions if tiled is None else (tiled, *plan.reductions))
    return None


def _constant(load: ElementAccess, levels: Sequence[Level]) -> dict[Level, int] | None:
    found: dict[Level, int] = {}
    for level in levels:
        factor = load.index.coefficient(level.counter)
        if factor.number is None and factor.terms:
            return None
        found[level] = factor.number or 0
    return found


def _distance(factors: dict[Level, int], offsets: Offsets) -> int:
    """Iterations of reductions and copies of a tile are of different loops: distances add up."""
    return sum(map(mul, factors.values(), map(offsets.get, factors, repeat(0))))
