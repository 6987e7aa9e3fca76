"""Sums of products of bfloat16 numbers, two products of a lane in one instruction.

``vdpbf16ps`` multiplies two pairs of bfloat16 numbers of each lane and adds the products to a sum of
binary32, first that of the upper halves, then that of the lower ones, each as one multiply-add that rounds
to the nearest even. So it is the program's loop, with the elements of each word in that order, but for
three things: it takes denormal numbers for zeros, makes zeros of denormal sums, and chooses among NaNs in
its own way. Products of bfloat16 numbers have 16 bits, and are exact: what ``arithmetic`` rounds, or not,
is the same.

A look at all numbers in front of the loops (``pair_ranges.py``) tells whether none of these can occur; where
one can, the nest runs as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.dispatch.native.nests import registers
from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.dots import DotProduct
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.ssa import Value

PAIR: Final = 2
"""Iterations of the reduction that one instruction takes."""
LEAST_DEPTH: Final = 8
"""Iterations of the reduction that are worth it."""
LEAST_USES: Final = 8
"""Products that each number is to be part of, so that the look at it is little beside them."""
UPPER_HALF: Final = 16


def find_pairs(
    structure: Structure, dependence: Dependence, vector: Level, reductions: Sequence[Level]
) -> DotProduct | None:
    """The sum of products that a nest is; None if it is none, or the processor has no instruction for it."""
    (store, *others) = structure.stores
    if others or store.element != "f32" or not reductions or not registers.pair_lanes():
        return None
    factors, along = _factors(structure, store), reductions[-1]
    if factors is None or _count(along) < LEAST_DEPTH:
        return None
    for element, row in (factors, factors[::-1]):
        one, many = structure.loads[element], structure.loads[row]
        step = many.index.coefficient(vector.counter)
        if (
            vector.counter not in dependence.place(one)
            and step.terms
            and (step.number == 1 or many.index.coefficient(along.counter).number == 1)
            and all(_is_looked_at(structure, access) for access in (one, many, store))
        ):
            return DotProduct(element, row, along, PAIR)
    return None


def line(structure: Structure, access: ElementAccess) -> Level | None:
    """The loop whose iterations lie one after the other."""
    found = [level for level in structure.levels if access.index.coefficient(level.counter).number == 1]
    return max(found, key=_count, default=None)


def _is_looked_at(structure: Structure, access: ElementAccess) -> bool:
    """Whether a look at all elements is possible, and little work."""
    apart = [level for level in structure.levels if not access.index.coefficient(level.counter).terms]
    uses = 1
    for level in apart:
        uses *= _count(level)
    return line(structure, access) is not None and uses >= LEAST_USES


def _factors(structure: Structure, store: ElementAccess) -> tuple[Value, Value] | None:
    """The loads of the numbers whose product is added to the element that is stored."""
    value = store.stored
    if value.operation not in ("fma.f32", "fma.f32.fused"):
        return None
    total = structure.loads.get(value.operands[2])
    left, right = (_number(structure, operand) for operand in value.operands[:2])
    if total is None or total.buffer is not store.buffer or total.element != "f32":
        return None
    return None if left is None or right is None else (left, right)


def _number(structure: Structure, value: Value) -> Value | None:
    """A load of 16 bits that become the upper half of a binary32 number."""
    if value.operation != "bitcast.i32.f32":
        return None
    (value,) = value.operands
    if value.operation != "shl.i32" or value.operands[1].literals[:1] != (UPPER_HALF,):
        return None
    value = value.operands[0]
    while value.operation in ("ext.i16.i32.u", "ext.i16.i32.s"):
        (value,) = value.operands
    load = structure.loads.get(value)
    return None if load is None or load.element != "i16" or load.predicate or load.computed else value


def _count(level: Level) -> int:
    """The number of iterations, a large one where it is not known."""
    return 1 << 30 if level.extent is None else level.extent
