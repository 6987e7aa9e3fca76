"""The greatest or least element of a row, taken in any order: lanes are iterations of the reduction.

``acc < x ? x : acc``, or the other way round, with ``acc`` where x is no number, finds the same whatever
comes first, but for zeros: of 0 and -0, and of denormals that comparisons take for zeros, the first stays.
So a zero is looked for once more: the first element that equals it (``extremes.py``).
"""

from __future__ import annotations

from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.operations import emit
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

LEAST_ROW: Final = 96
"""Iterations of the reduction from which on it is worth it; squares of shorter rows take less."""
_KIND: Final = "f32"
_COMPARE, _NAN, _CHOOSE = f"cmp.lt.{_KIND}.u", f"cmp.nan.{_KIND}", f"select.{_KIND}"


class Extreme(NamedTuple):
    """How two elements become one."""

    is_greatest: bool
    element: Value
    """What each iteration compares with what it has found so far."""

    def of(self, writer: Writer, lanes: int, known: str, other: str) -> str:
        """The instructions of the program: ``known`` stays where the other is the same or no number."""
        order = [known, other] if self.is_greatest else [other, known]
        other_is_further = emit(writer, _COMPARE, lanes, order)
        further = emit(writer, _CHOOSE, lanes, [other_is_further, other, known])
        is_no_number = emit(writer, _NAN, lanes, [other])
        return emit(writer, _CHOOSE, lanes, [is_no_number, known, further])

    def of_lanes(self, writer: Writer, lanes: int, known: str) -> str:
        """Of all lanes of a vector."""
        vector = llvm_type(_KIND, lanes)
        distance = lanes
        while distance > 1:
            distance //= 2
            order = ", ".join(f"i32 {(lane + distance) % lanes}" for lane in range(lanes))
            moved = writer.let(f"shufflevector {vector} {known}, {vector} poison, <{lanes} x i32> <{order}>")
            known = self.of(writer, lanes, known, moved)
        return writer.let(f"extractelement {vector} {known}, i64 0")


def is_zero(writer: Writer, lanes: int, value: str) -> str:
    zero = writer.splat(_KIND, "0.0", lanes)
    return writer.let(f"fcmp oeq {llvm_type(_KIND, lanes)} {value}, {zero}")


def extreme_of(structure: Structure, last: Level, accumulators: dict[Value, ElementAccess]) -> Extreme | None:
    """What a nest looks for in long rows of elements that lie together along its last reduction."""
    if len(accumulators) != 1 or (last.extent or 0) < LEAST_ROW:
        return None
    ((accumulator, store),) = accumulators.items()
    along = 0
    for value, load in structure.loads.items():
        coefficient = load.index.coefficient(last.counter)
        if load.computed or load.predicate or (coefficient.terms and coefficient.number != 1):
            return None
        along += value is not accumulator and coefficient.number == 1
    return _extreme_of(accumulator, store) if along and store.element == "f32" else None


def _extreme_of(accumulator: Value, store: ElementAccess) -> Extreme | None:
    """What a nest's store makes of the element that it finds and another; None: something else."""
    is_no_number = _operands(store.stored, _CHOOSE)
    if is_no_number is None or is_no_number[1] is not accumulator:
        return None
    tested, further = _operands(is_no_number[0], _NAN), _operands(is_no_number[2], _CHOOSE)
    if tested is None or further is None or further[1:] != (tested[0], accumulator):
        return None
    compared = _operands(further[0], _COMPARE)
    if compared == (accumulator, tested[0]):
        return Extreme(True, tested[0])
    return Extreme(False, tested[0]) if compared == (tested[0], accumulator) else None


def _operands(value: Value, operation: str) -> tuple[Value, ...] | None:
    return tuple(value.operands) if value.operation == operation else None
